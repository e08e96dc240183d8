# Cases of buildah, which executes `pasta` of the column.
. /run/scripts/podman.sh

# Steps of a build, each with the network of one option.
run() {
    prepare || return 0
    try from buildah from --name work test
    value address "$(buildah run work -- ip -o -4 address show scope global | awk '{print $2, $4}')"
    value address6 "$(buildah run work -- ip -o -6 address show scope global | awk '{print $2, $4}')"
    value mtu "$(buildah run work -- cat /sys/class/net/uplink/mtu)"
    value resolv.conf "$(buildah run work -- grep nameserver /etc/resolv.conf)"
    value hosts "$(buildah run work -- grep internal /etc/hosts)"
    out buildah run work --
    refused host-loopback buildah run work -- curl -sSm 3 http://192.0.2.2:8000/
    try pasta prints neighbour buildah run --network=pasta work -- curl -sSm 5 http://192.0.2.2/
    value option "$(buildah run --network=pasta:-I,eth7,-a,10.9.8.7,-n,24,-g,10.9.8.1 work -- \
        ip -o -4 address show scope global | awk '{print $2, $4}')"
    try host prints host-loopback buildah run --network=host work -- curl -sSm 5 http://127.0.0.1:8000/
    refused none buildah run --network=none work -- curl -sSm 3 http://192.0.2.2/
    try commit buildah commit --quiet work result
    try remove buildah rm work
    check no-process within 5 fails network_processes
    finish
}

build() {
    prepare || return 0
    mkdir -p /tmp/build
    printf '%s\n' 'FROM test' 'RUN curl -sSm 5 -o /page http://example.com/' \
        'RUN curl -sSm 20 http://192.0.2.2/big | sha256sum >/sum' >/tmp/build/Containerfile
    try build buildah build --quiet --no-cache --tag built /tmp/build
    try from buildah from --name built built
    try page prints neighbour buildah run --network=none built -- cat /page
    try bulk-down prints "$(get http://192.0.2.2/big.sum)" buildah run --network=none built -- cat /sum
    try build-option buildah build --quiet --no-cache --network=pasta:-m,1400 /tmp/build
    try build-host buildah build --quiet --no-cache --network=host /tmp/build
    refused build-none buildah build --quiet --no-cache --network=none /tmp/build
    try remove buildah rm built
    rm -rf /tmp/build
    finish
}
