# Cases of podman, which executes `pasta` of the column.

# Runs a check with a deadline of 40 s.
try() {
    limited 40 "$@"
}

# Creates the image `test` in the user's storage. It has a program `/serve`: HTTP at TCP port 80 (`guest`, and the
# client's address), and echo at UDP port 80, in both families.
prepare() {
    local files=/tmp/files
    mkdir -p $files/www/cgi-bin
    echo guest >$files/www/index.html
    cat >$files/www/cgi-bin/address <<'END'
#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
echo "$REMOTE_ADDR" | sed 's/[][]//g; s/^::ffff://'
END
    cat >$files/serve <<'END'
#!/bin/sh
port=${1:-80}
trap 'exit 0' TERM
httpd -p "$port" -h /www
socat -T 2 UDP4-RECVFROM:$port,fork EXEC:cat &
socat -T 2 UDP6-RECVFROM:$port,ipv6only,fork EXEC:cat &
while :; do sleep 1000 & wait $!; done
END
    printf '\300\0\2\2' >$files/dns-reply
    chmod +x $files/serve $files/www/cgi-bin/address
    image /tmp/image.tar $files curl socat ip ss getent iperf3 ping qperf
    try image podman import --quiet /tmp/image.tar test
    rm -rf $files /tmp/image.tar
    podman image exists test || { finish; return 1; }
}

# Removes all containers, and checks that nothing of their networks remains.
finish() {
    try remove-all podman rm --all --force --time 0
    check no-network-process within 5 fails network_processes
    check no-namespace-file within 2 no_files "$XDG_RUNTIME_DIR/netns"
    check no-network-file within 2 no_files "$XDG_RUNTIME_DIR/containers/networks/rootless-netns"
    # The process that keeps podman's user namespace.
    kill "$(cat "$XDG_RUNTIME_DIR/libpod/tmp/pause.pid")" 2>/dev/null || true
    rm -rf "${XDG_RUNTIME_DIR:?}"/*
}

network_processes() {
    pgrep -u "$(id -u)" '^(pasta|pontoon|slirp4netns)'
}

# Prints the figures of memory.sh, which only root can read.
figures() {
    socat -T 120 -u UNIX-CONNECT:/run/memory.sock -
}

no_files() {
    [ -z "$(find "$1" -type f 2>/dev/null)" ] || { find "$1" -type f; return 1; }
}

# Runs a command in a new container, with the options of podman before `--`.
run() {
    local options=()
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    podman run --rm "${options[@]}" test "$@"
}

# Prints destinations and gateways of routes, without duplicates and the kernel's remarks.
routes() {
    awk '{print $1, $2 == "via" ? $3 : "link"}' | sort -u
}

# Starts a container NAME that serves, with options of podman, and waits until it does.
serve() {
    local name=$1
    shift
    try serve podman run --detach --name "$name" "$@" test /serve
    try ready within 10 ready "$name"
}

ready() {
    [ "$(podman exec "$1" ss -Hlntu | grep -c ":${2:-80} ")" -ge 3 ]
}

# Checks TCP, UDP, names and bulk data from a container to the neighbour, with a command PREFIX.
out() {
    try tcp prints neighbour "$@" curl -sSm 5 http://192.0.2.2/
    try tcp6 prints neighbour "$@" curl -gsSm 5 'http://[fd00:db8::2]/'
    try udp prints ping "$@" sh -c 'echo -n ping | socat -T 1 -t 1 - UDP4:192.0.2.2:7002'
    try udp6 prints ping "$@" sh -c 'echo -n ping | socat -T 1 -t 1 - UDP6:[fd00:db8::2]:7002'
    try name prints neighbour "$@" curl -4 -sSm 5 http://example.com/
    try name6 prints neighbour "$@" curl -6 -sSm 5 http://example.com/
    try refused prints 7 "$@" sh -c 'curl -sm 5 http://192.0.2.2:9/; echo $?'
    try bulk-down prints "$(get http://192.0.2.2/big.sum)" "$@" sh -c 'curl -sSm 20 http://192.0.2.2/big | sha256sum'
    # The original sends some Mbit/s on some hosts.
    try bulk-up prints "$(get http://192.0.2.2/big | head -c 1000000 | sha256sum)" "$@" \
        sh -c 'curl -sm 20 http://192.0.2.2/big | head -c 1000000 | socat -t 10 - TCP6:[fd00:db8::2]:7001'
}

# Addresses, routes and names of the default network, and all directions that it opens.
net() {
    prepare || return 0
    value address "$(run -- ip -o -4 address show scope global | awk '{print $2, $4}')"
    value address6 "$(run -- ip -o -6 address show scope global | awk '{print $2, $4}')"
    value route "$(run -- ip route | routes)"
    value route6 "$(run -- ip -6 route show default | routes)"
    value mtu "$(run -- cat /sys/class/net/uplink/mtu)"
    value resolv.conf "$(run -- grep nameserver /etc/resolv.conf)"
    value hosts "$(run -- grep internal /etc/hosts)"
    out run --
    try ping run -- ping -c 1 -W 3 192.0.2.2
    try ping6 run -- ping -c 1 -W 3 fd00:db8::2
    try dns run -- nslookup example.com 169.254.1.1
    try dns-tcp run -- sh -c 'printf "\0\35\0\1\1\0\0\1\0\0\0\0\0\0\7example\3com\0\0\1\0\1" |
        socat -T 2 - TCP4:169.254.1.1:53 | tail -c 4 | cmp - /dns-reply'
    try large-datagram prints 9000 run -- sh -c 'head -c 9000 /dev/zero | socat -b 10000 -T 2 - UDP4:192.0.2.2:7002 | wc -c'
    refused host-loopback run -- curl -sSm 3 http://192.0.2.2:8000/
    refused guest-loopback run -- curl -sSm 3 http://127.0.0.1:8000/
    busybox httpd -f -p 8001 -h /run/web/host 3>&- &
    local server=$!
    try host.containers.internal within 5 prints host-loopback run -- curl -sSm 5 http://host.containers.internal:8001/
    refused host.containers.internal-loopback run -- curl -sSm 3 http://host.containers.internal:8000/
    try host-network prints host-loopback run --network=host -- curl -sSm 5 http://127.0.0.1:8000/
    value host-network-devices "$(run --network=host -- ip -o link | awk '{print $2}')"
    value no-network-devices "$(run --network=none -- ip -o link | awk '{print $2}')"
    end $server
    try keep-id prints neighbour run --userns=keep-id -- curl -sSm 5 http://192.0.2.2/
    try uidmap prints neighbour run --uidmap=0:100:1000 -- curl -sSm 5 http://example.com/
    try restricted prints neighbour run --cap-drop=all --read-only -- curl -sSm 5 http://192.0.2.2/
    try privileged prints neighbour run --privileged -- curl -sSm 5 http://192.0.2.2/
    finish
}

# Options of pasta after `--network=pasta:`.
options() {
    prepare || return 0
    value address "$(run --network=pasta:-a,10.9.8.7,-n,24,-g,10.9.8.1 -- ip -o -4 address show scope global | awk '{print $2, $4}')"
    value address-route "$(run --network=pasta:-a,10.9.8.7,-n,24,-g,10.9.8.1 -- ip route | routes)"
    try address-tcp prints neighbour run --network=pasta:-a,10.9.8.7,-n,24,-g,10.9.8.1 -- curl -sSm 5 http://192.0.2.2/
    value address6 "$(run --network=pasta:-a,fd99::7,-g,fd99::1 -- ip -o -6 address show scope global | awk '{print $2, $4}')"
    try address6-tcp prints neighbour run --network=pasta:-a,fd99::7,-g,fd99::1 -- curl -gsSm 5 'http://[fd00:db8::2]/'
    value mtu "$(run --network=pasta:--mtu,1400 -- cat /sys/class/net/uplink/mtu)"
    try mtu-bulk prints "$(get http://192.0.2.2/big.sum)" run --network=pasta:-m,1400 -- \
        sh -c 'curl -sSm 20 http://192.0.2.2/big | sha256sum'
    value interface "$(run --network=pasta:-I,eth7 -- ip -o -4 address show scope global | awk '{print $2, $4}')"
    value mac "$(run --network=pasta:--ns-mac-addr,9a:dd:31:ea:92:98 -- cat /sys/class/net/uplink/address)"
    value ipv4-only "$(run --network=pasta:-4 -- ip -o address show scope global | awk '{print $2, $4}')"
    value ipv6-only "$(run --network=pasta:-6 -- ip -o address show scope global | awk '{print $2, $4}')"
    try ipv6-only-tcp6 prints neighbour run --network=pasta:-6 -- curl -gsSm 5 'http://[fd00:db8::2]/'
    value dns-forward "$(run --network=pasta:--dns-forward,198.51.100.1 -- grep nameserver /etc/resolv.conf)"
    try dns-forward-name prints neighbour run --network=pasta:--dns-forward,198.51.100.1 -- curl -4 -sSm 5 http://example.com/
    try namespace-port prints host-loopback run --network=pasta:-T,8000 -- curl -sSm 5 http://127.0.0.1:8000/
    try namespace-port6 prints host-loopback run --network=pasta:-T,8000 -- curl -gsSm 5 'http://[::1]:8000/'
    try map-gw prints host-loopback run --network=pasta:--map-gw -- curl -sSm 5 http://192.0.2.2:8000/
    try map-host-loopback prints host-loopback run --network=pasta:--map-host-loopback,203.0.113.9 -- \
        curl -sSm 5 http://203.0.113.9:8000/
    refused no-map-guest-addr run --network=pasta:--map-guest-addr,none -- curl -sSm 3 http://169.254.1.2:8000/
    try outbound-if4 prints neighbour run --network=pasta:--outbound-if4,uplink -- curl -sSm 5 http://192.0.2.2/
    try outbound prints neighbour run --network=pasta:-o,192.0.2.1 -- curl -sSm 5 http://192.0.2.2/
    try search run --network=pasta:-S,example.org -- true
    try long-and-short prints neighbour run --network=pasta:--quiet,--debug,--config-net -- curl -sSm 5 http://192.0.2.2/
    refused unknown run --network=pasta:--no-such-option -- true
    value unknown-text "$(run --network=pasta:--no-such-option -- true 2>&1 | grep -o "unrecognized option '[^']*'")"
    refused bad-address run --network=pasta:-a,1.2.3.4.5 -- true
    refused bad-port run --network=pasta:-t,70000 -- true
    printf '[network]\npasta_options = ["-I", "eth8", "-m", "1300"]\n' >/tmp/override.conf
    value configured "$(CONTAINERS_CONF_OVERRIDE=/tmp/override.conf run -- cat /sys/class/net/eth8/mtu)"
    try auto podman run --detach --name auto --network=pasta:-t,auto,-u,auto test /serve 8080
    try auto-tcp within 5 prints guest get http://127.0.0.1:8080/
    try auto-tcp-neighbour prints guest get http://192.0.2.2:7003/
    finish
}

# Published ports, in both families, by protocol, address and range.
publish() {
    prepare || return 0
    serve web -p 8080:80 -p 8080:80/udp -p 127.0.0.1:8081:80 -p '[::1]:8082:80' -p 192.0.2.1:8083:80 \
        -p 8090-8094:80-84 -p 8095:80/udp
    ports
    value port "$(podman port web | sort)"
    try only-loopback prints guest get http://127.0.0.1:8081/
    refused only-loopback-by-address get http://192.0.2.1:8081/
    refused only-loopback-by-ipv6 get 'http://[::1]:8081/'
    try only-loopback6 prints guest get 'http://[::1]:8082/'
    refused only-loopback6-by-ipv4 get http://127.0.0.1:8082/
    try only-address prints guest get http://192.0.2.1:8083/
    refused only-address-by-loopback get http://127.0.0.1:8083/
    try range-first prints guest get http://127.0.0.1:8090/
    refused range-unused get http://127.0.0.1:8092/
    try range-server podman exec --detach web httpd -p 84 -h /www
    try range-last within 5 prints guest get http://127.0.0.1:8094/
    refused udp-only get http://127.0.0.1:8095/
    refused taken run -p 8080:80 -- true
    try taken-text grep -q 8080 <(run -p 8080:80 -- true 2>&1)
    value bulk "$(podman exec web sh -c 'head -c 4000000 /dev/zero >/www/big'; get http://192.0.2.1:8080/big | wc -c)"
    value bulk-loopback "$(get http://127.0.0.1:8080/big | wc -c)"
    podman rm --force --time 0 web
    refused after-removed get http://127.0.0.1:8080/
    finish
}

# Checks port 8080 of the host, TCP and UDP.
ports() {
    try tcp-loopback prints guest get http://127.0.0.1:8080/
    try tcp-loopback6 prints guest get 'http://[::1]:8080/'
    try tcp-address prints guest get http://192.0.2.1:8080/
    try tcp-address6 prints guest get 'http://[fd00:db8::1]:8080/'
    try tcp-neighbour prints guest get http://192.0.2.2:7003/
    try udp-loopback prints ping datagram UDP4:127.0.0.1:8080
    try udp-loopback6 prints ping datagram 'UDP6:[::1]:8080'
    try udp-address prints ping datagram UDP4:192.0.2.1:8080
    try udp-address6 prints ping datagram 'UDP6:[fd00:db8::1]:8080'
    try udp-neighbour prints ping datagram UDP4:192.0.2.2:7004
    value source-loopback "$(get http://127.0.0.1:8080/cgi-bin/address)"
    value source-loopback6 "$(get 'http://[::1]:8080/cgi-bin/address')"
    value source-address "$(get http://192.0.2.1:8080/cgi-bin/address)"
    value source-neighbour "$(get http://192.0.2.2:7003/cgi-bin/address)"
}

# exec, restart, stop, start and kill of a container.
states() {
    prepare || return 0
    serve web -p 8080:80 -p 8080:80/udp
    out podman exec web
    try restart within 20 podman restart --time 1 web
    try ready-again within 10 ready web
    try tcp-again prints guest get http://127.0.0.1:8080/
    try out-again prints neighbour podman exec web curl -sSm 5 http://192.0.2.2/
    try stop podman stop --time 1 web
    refused stopped get http://127.0.0.1:8080/
    check stopped-process within 5 fails network_processes
    try start podman start web
    try started within 10 prints guest get http://127.0.0.1:8080/
    try kill podman kill web
    check killed within 5 fails network_processes
    refused killed-port get http://127.0.0.1:8080/
    try start-after-kill podman start web
    try started-after-kill within 10 prints guest get http://127.0.0.1:8080/
    try remove podman rm --force --time 0 web
    check removed within 5 fails network_processes
    check removed-namespace no_files "$XDG_RUNTIME_DIR/netns"
    finish
}

# Processes that are killed, each with a container of its own.
exits() {
    prepare || return 0
    try status-42 prints 42 status_of run -- sh -c 'exit 42'
    check ended within 5 fails network_processes
    serve web -p 8080:80
    kill -KILL "$(podman inspect --format '{{.State.Pid}}' web)"
    check command-killed within 5 fails network_processes
    try command-killed-start podman start web
    try command-killed-started within 10 prints guest get http://127.0.0.1:8080/
    kill -KILL "$(podman inspect --format '{{.State.ConmonPid}}' web)"
    sleep 1
    try conmon-killed-remove podman rm --force --time 0 web
    check conmon-killed within 5 fails network_processes
    serve web -p 8080:80
    pkill -KILL -u "$(id -u)" '^(pasta|pontoon)'
    sleep 1
    check network-killed within 5 fails network_processes
    refused network-killed-port get http://127.0.0.1:8080/
    try network-killed-restart within 20 podman restart --time 1 web
    try network-killed-restarted within 10 prints guest get http://127.0.0.1:8080/
    try remove podman rm --force --time 0 web
    try pid-file run --network=pasta:--pid,/tmp/pasta.pid -- true
    check pid-file-process within 5 fails kill -0 "$(cat /tmp/pasta.pid)"
    rm -f /tmp/pasta.pid
    finish
}

# Restarts with a published port, which the old process has to release before the new one listens. podman does not wait
# for it, so that a restart may fail with both programs. The remark is the number of those that failed.
restarts() {
    local number failed=0
    prepare || return 0
    serve web -p 8080:80
    for number in $(seq 10); do
        timeout 30 podman restart --time 1 web || failed=$((failed + 1))
        try start within 10 podman start web
    done
    try remove podman rm --force --time 0 web
    try create podman pod create --name pod -p 8080:80
    serve web --pod pod
    for number in $(seq 10); do
        timeout 30 podman pod restart pod || failed=$((failed + 1))
        try start-of-pod within 10 podman pod start pod
    done
    note "$failed of 20 restarts failed"
    finish
}

status_of() {
    local status=0
    "$@" || status=$?
    echo $status
}

pod() {
    prepare || return 0
    try create podman pod create --name pod -p 8080:80 -p 8080:80/udp
    serve web --pod pod
    ports
    try loopback prints guest run --pod pod -- curl -sSm 5 http://127.0.0.1/
    try out prints neighbour run --pod pod -- curl -sSm 5 http://192.0.2.2/
    try stop podman pod stop --time 1 pod
    refused stopped get http://127.0.0.1:8080/
    try start podman pod start pod
    try started within 10 prints guest get http://127.0.0.1:8080/
    try restart within 20 podman pod restart pod
    try restarted within 10 prints guest get http://127.0.0.1:8080/
    try remove podman pod rm --force --time 0 pod
    check removed within 5 fails network_processes
    finish
}

# Builds with a download in a build step, in each kind of network.
build() {
    local network option
    prepare || return 0
    mkdir -p /tmp/build
    printf '%s\n' 'FROM test' 'RUN curl -sSm 5 -o /page http://example.com/' \
        'RUN curl -sSm 20 http://192.0.2.2/big | sha256sum >/sum' 'CMD cat /page /sum' >/tmp/build/Containerfile
    for network in default pasta host; do
        option=--network=$network
        try build-$network podman build --quiet --no-cache ${option#*=default} --tag built-$network /tmp/build
        try built-$network prints "neighbour"$'\n'"$(get http://192.0.2.2/big.sum)" podman run --rm built-$network
    done
    refused build-none podman build --quiet --no-cache --network=none /tmp/build
    try build-options podman build --quiet --no-cache --network=pasta:-I,eth7,-m,1400 /tmp/build
    printf '%s\n' 'FROM test' 'RUN ! curl -sSm 3 http://192.0.2.2:8000/' >/tmp/build/Containerfile
    try build-host-loopback podman build --quiet --no-cache /tmp/build
    rm -rf /tmp/build
    finish
}

# A network of several containers, which is in a namespace with `pasta` in front of it.
bridge() {
    prepare || return 0
    try create podman network create --ipv6 inner
    serve web --network inner -p 8080:80 -p 8080:80/udp
    try name-of-container prints guest run --network inner -- curl -4 -sSm 5 http://web/
    try name-of-container6 prints guest run --network inner -- curl -6 -sSm 5 http://web/
    out run --network inner --
    try tcp-loopback prints guest get http://127.0.0.1:8080/
    try tcp-address prints guest get http://192.0.2.1:8080/
    try tcp-neighbour prints guest get http://192.0.2.2:7003/
    try udp-loopback prints ping datagram UDP4:127.0.0.1:8080
    try udp-neighbour prints ping datagram UDP4:192.0.2.2:7004
    value hosts "$(run --network inner -- grep internal /etc/hosts)"
    busybox httpd -f -p 8001 -h /run/web/host 3>&- &
    local server=$!
    try host.containers.internal within 5 prints host-loopback run --network inner -- \
        curl -sSm 5 http://host.containers.internal:8001/
    refused host-loopback run --network inner -- curl -sSm 3 http://192.0.2.2:8000/
    end $server
    try second-network podman network create second
    try connect podman network connect second web
    try connected prints guest run --network second -- curl -sSm 5 http://web/
    try namespace podman unshare --rootless-netns ip address show uplink
    try remove podman rm --force --time 0 web
    check removed within 5 fails network_processes
    try remove-network podman network rm inner second
    finish
}

# Ports of a custom network that podman 6 opens with pesto, a client of the socket that pasta creates with `-c`.
pesto() {
    prepare || return 0
    printf '[network]\nrootless_port_forwarder = "pasta"\n' >/tmp/pesto.conf
    export CONTAINERS_CONF_OVERRIDE=/tmp/pesto.conf
    try create podman network create --ipv6 inner
    check forward forwarded
    podman rm --all --force --time 0
    refused removed-port get http://127.0.0.1:8080/
    try remove-network podman network rm inner
    unset CONTAINERS_CONF_OVERRIDE
    rm -f /tmp/pesto.conf
    finish
}

forwarded() {
    timeout 40 podman run --detach --name web --network inner -p 8080:80 -p 8080:80/udp test /serve || return 1
    within 10 ready web || return 1
    prints guest get http://127.0.0.1:8080/ || return 1
    prints guest get http://192.0.2.2:7003/ || return 1
    prints guest get 'http://[fd00:db8::1]:8080/' || return 1
    prints 192.0.2.2 get http://192.0.2.2:7003/cgi-bin/address || return 1
    prints ping datagram UDP4:192.0.2.2:7004
}

# The network of the program slirp4netns, with each of its ports' programs.
slirp4netns() {
    local handler
    prepare || return 0
    value address "$(run --network=slirp4netns -- ip -o -4 address show scope global | awk '{print $2, $4}')"
    value cidr "$(run --network=slirp4netns:cidr=10.9.8.0/24,mtu=1400 -- ip -o -4 address show scope global | awk '{print $2, $4}')"
    value resolv.conf "$(run --network=slirp4netns -- grep nameserver /etc/resolv.conf)"
    try loopback prints host-loopback run --network=slirp4netns:allow_host_loopback=true -- curl -sSm 5 http://10.0.2.2:8000/
    for handler in slirp4netns rootlesskit; do
        serve web --network=slirp4netns:port_handler=$handler,enable_ipv6=true -p 8080:80 -p 8080:80/udp
        out podman exec web
        try $handler-tcp prints guest get http://127.0.0.1:8080/
        try $handler-tcp-neighbour prints guest get http://192.0.2.2:7003/
        try $handler-udp prints ping datagram UDP4:192.0.2.1:8080
        value $handler-source "$(get http://192.0.2.2:7003/cgi-bin/address)"
        try $handler-remove podman rm --force --time 0 web
        check $handler-ended within 5 fails network_processes
    done
    finish
}

info() {
    try executable prints /run/column/pasta podman info --format '{{.Host.Pasta.Executable}}'
    try version grep -q . <(podman info --format '{{.Host.Pasta.Version}}')
    note "$(podman info --format '{{.Host.Pasta.Version}}' | head -n 1)"
    try command pasta --version
    try help pasta --help
    value network-command "$(podman info --format '{{.Host.RootlessNetworkCmd}}')"
    finish
}

# Starts one container, uses its network, and ends it.
once() {
    local output
    output=$(timeout 60 podman run --rm test curl -sSm 10 http://192.0.2.2/ 2>&1)
    [ "$output" = neighbour ] || { echo "$output"; return 1; }
}

starts_in_a_row() {
    local number failed=0 first
    prepare || return 0
    first=$(date +%s%N)
    for number in $(seq 50); do
        once || failed=$((failed + 1))
    done
    check all-50 equal $failed 0
    note "$(($(date +%s%N) / 50000000 - first / 50000000)) ms each"
    finish
}

starts_at_once() {
    local number failed=0 jobs=()
    prepare || return 0
    for number in $(seq 20); do
        once 3>&- &
        jobs+=($!)
    done
    for number in "${jobs[@]}"; do
        wait "$number" || failed=$((failed + 1))
    done
    check all-20 equal $failed 0
    finish
}

# Executes the commands of the document about containers, each block `sh` a check. Only Pontoon's program is installed by
# them.
document() {
    local number=0 block
    case $(/run/column/pasta.program --version 2>&1) in
        pontoon*) ;;
        *) return 0 ;;
    esac
    prepare || return 0
    mkdir -p /tmp/programs
    ln -s /run/column/pasta.program /tmp/programs/pontoon
    ln -s "$(command -v podman)" "$(command -v buildah)" /tmp/programs
    podman tag test docker.io/library/busybox
    printf '[engine]\nhelper_binaries_dir = ["/mnt/usr/libexec/podman", "/mnt/usr/lib/podman"]\n' >/tmp/document.conf
    export CONTAINERS_CONF_OVERRIDE=/tmp/document.conf
    PATH=$HOME/.local/bin:/tmp/programs:/run/clients/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    awk '/^```sh$/ {n += 1; inside = 1; next} /^```/ {inside = 0} inside {print >"/tmp/block." n}' \
        /run/scripts/containers.md
    while number=$((number + 1)); [ -e /tmp/block.$number ]; do
        block=$(head -n 1 /tmp/block.$number | tr -c 'a-z\n' - | cut -c 1-40 | sed 's/--*/-/g; s/-$//')
        try "$number-$block" bash -ec ". /tmp/block.$number"
        [ $number != 1 ] ||
            check executable prints "$HOME/.local/bin/pasta" podman info --format '{{.Host.Pasta.Executable}}'
    done
    finish
    rm -rf /tmp/programs /tmp/document.conf /tmp/block.*
}

# The networks of root: slirp4netns, but not pasta. The default is a bridge in the host's namespace.
root() {
    local storage=(--root /tmp/storage --runroot /tmp/run) options=(--rm --cgroups=disabled)
    image /tmp/image.tar "" curl ip
    try import podman "${storage[@]}" import --quiet /tmp/image.tar test
    value pasta "$(podman "${storage[@]}" run "${options[@]}" --network=pasta test true 2>&1 | tail -n 1)"
    refused pasta-refused podman "${storage[@]}" run "${options[@]}" --network=pasta test true
    try host prints host-loopback podman "${storage[@]}" run "${options[@]}" --network=host test \
        curl -sSm 5 http://127.0.0.1:8000/
    value slirp4netns "$(podman "${storage[@]}" run "${options[@]}" --network=slirp4netns test \
        ip -o -4 address show scope global | awk '{print $2, $4}')"
    try slirp4netns-tcp prints neighbour podman "${storage[@]}" run "${options[@]}" --network=slirp4netns test \
        curl -sSm 5 http://192.0.2.2/
    try slirp4netns-name prints neighbour podman "${storage[@]}" run "${options[@]}" --network=slirp4netns test \
        curl -sSm 5 http://example.com/
    check ended within 5 fails pgrep '^(pasta|pontoon|slirp4netns)'
    rm -f /tmp/image.tar
}
