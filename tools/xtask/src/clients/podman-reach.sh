# Destinations that a container of podman reaches, and who reaches the container, with podman's default options: each
# class a value `open` or `closed`. A class is open if the server of the probe has received its name, or if the host or its
# neighbour has received an echo request, and its reply has arrived. host-reach.sh has the servers.
. /run/scripts/podman.sh
. /run/reach/variables

# Addresses of the host, or that may stand for it: name, family and address.
HOST_ADDRESSES="127.0.0.1 4 127.0.0.1
127.0.0.2 4 127.0.0.2
0.0.0.0 4 0.0.0.0
gateway 4 192.0.2.2
dns-forwarder 4 169.254.1.1
host.containers.internal 4 169.254.1.2
own 4 192.0.2.1
second 4 198.51.100.1
::1 6 [::1]
:: 6 [::]
::ffff:127.0.0.1 6 [::ffff:127.0.0.1]
::127.0.0.1 6 [::127.0.0.1]
64:ff9b::127.0.0.1 6 [64:ff9b::7f00:1]
2002:7f00:1:: 6 [2002:7f00:1::]
gateway6 6 [fd00:db8::2]
gateway-link-local 6 [$NEIGHBOUR_LINK_LOCAL%uplink]
own6 6 [fd00:db8::1]
own-link-local 6 [$HOST_LINK_LOCAL%uplink]
second6 6 [fd00:db8:1::1]"

# Addresses of other hosts.
OTHER_ADDRESSES="gateway 4 192.0.2.2
neighbour 4 192.0.2.3
behind-gateway 4 203.0.113.9
metadata 4 169.254.169.254
link-local 4 169.254.77.7
gateway6 6 [fd00:db8::2]
neighbour6 6 [fd00:db8::3]
neighbour-link-local 6 [$NEIGHBOUR_LINK_LOCAL%uplink]
behind-gateway6 6 [fd00:db8:9::9]
metadata6 6 [fd00:ec2::254]"

# Addresses that belong to the kernel of a container until it changes its addresses and routes, which needs
# CAP_NET_ADMIN, and a neighbour for comparison.
ROUTED_ADDRESSES="127.0.0.1 4 127.0.0.1
127.0.0.2 4 127.0.0.2
own 4 192.0.2.1
neighbour 4 192.0.2.3
::1 6 [::1]
own6 6 [fd00:db8::1]
neighbour6 6 [fd00:db8::3]"

# Services and their ports. The last two are those of another container.
SERVICES="loopback 9001
any 9002
own 9003
published 8080
unpublished 81"

# Prints lines of service, name of the probe, and address for socat: TCP and UDP to PORT of the addresses in standard input.
towards() {
    local service=$1 port=$2 prefix=$3 name family address
    while read -r name family address; do
        echo "$service $prefix$name.$service.tcp TCP$family:$address:$port"
        echo "$service $prefix$name.$service.udp UDP$family:$address:$port"
    done
}

# Prints the probes of a container.
from_container() {
    local service port name family address
    while read -r service port; do
        towards "$service" "$port" "" <<<"$HOST_ADDRESSES"
    done <<<"$SERVICES"
    towards neighbour 9004 "" <<<"$OTHER_ADDRESSES"
    everywhere ""
}

# Prints the probes that have the same addresses from the host and from a container: groups, broadcasts, an abstract socket.
everywhere() {
    local service
    for service in host neighbour; do
        echo "group-$service ${1}239.1.2.3.$service.udp UDP4-DATAGRAM:239.1.2.3:9005"
        echo "group-$service ${1}255.255.255.255.$service.udp UDP4-DATAGRAM:255.255.255.255:9005,broadcast"
        echo "group-$service ${1}192.0.2.255.$service.udp UDP4-DATAGRAM:192.0.2.255:9005,broadcast"
        echo "group-$service ${1}ff02::123.$service.udp UDP6-DATAGRAM:[ff02::123%uplink]:9005"
    done
    echo "abstract ${1}abstract.unix ABSTRACT-CONNECT:reach"
}

# Prints probes of the host that have to arrive, so that no class is closed because its server does not work.
controls() {
    grep -E '^(127|::1 )' <<<"$HOST_ADDRESSES" | towards loopback 9001 control.
    grep -E '^(127|::1 |own|second)' <<<"$HOST_ADDRESSES" | towards any 9002 control.
    grep -E '^(own6?|second6?) ' <<<"$HOST_ADDRESSES" | towards own 9003 control.
    towards neighbour 9004 control. <<<"$OTHER_ADDRESSES"
    everywhere control.
}

# Prints the same for the container `other`, from its own namespace.
controls_of_other() {
    grep -E '^(127.0.0.1|::1) ' <<<"$HOST_ADDRESSES" | towards unpublished 81 control.
    grep -E '^(127.0.0.1|::1) ' <<<"$HOST_ADDRESSES" | towards container-loopback 82 control.
}

# Prints the probes of a container that has removed its addresses and sends packets to them by its interface.
routed() {
    grep -v neighbour <<<"$ROUTED_ADDRESSES" | towards loopback 9001 routed.
    grep -v neighbour <<<"$ROUTED_ADDRESSES" | towards any 9002 routed.
    grep own <<<"$ROUTED_ADDRESSES" | towards own 9003 routed.
    grep neighbour <<<"$ROUTED_ADDRESSES" | towards neighbour 9004 routed.
}

# Starts a container with CAP_NET_ADMIN, and replaces its addresses and routes.
start_routed() {
    # busybox has a command `ip` of its own.
    cat >/tmp/routed <<'SCRIPT'
/bin/ip address delete 192.0.2.1/24 dev uplink
/bin/ip address add 192.0.2.77/24 dev uplink
/bin/ip route replace default via 192.0.2.2 dev uplink
/bin/ip route delete table local 127.0.0.1 dev lo
/bin/ip route delete table local 127.0.0.0/8 dev lo
/bin/ip route add 127.0.0.0/8 via 192.0.2.2 dev uplink src 192.0.2.77
/bin/ip address add fd00:db8::77/64 dev uplink nodad
/bin/ip address delete fd00:db8::1/64 dev uplink
/bin/ip route replace default via fd00:db8::2 dev uplink
/bin/ip address delete ::1/128 dev lo
/bin/ip route add ::1 via fd00:db8::2 dev uplink src fd00:db8::77
SCRIPT
    try routed podman run --detach --name routed --cap-add NET_ADMIN --sysctl net.ipv4.conf.all.route_localnet=1 \
        -v /run/scripts:/scripts:ro -v /tmp/routed:/routed:ro test sleep infinity
    try routes podman exec routed sh -ec '. /routed'
}

# Prints the probes of the host or of the neighbour (FROM) to the container.
to_container() {
    local service port addresses
    addresses="192.0.2.1 4 192.0.2.1
fd00:db8::1 6 [fd00:db8::1]"
    [ "$1" = neighbour ] || addresses="$addresses
127.0.0.1 4 127.0.0.1
198.51.100.1 4 198.51.100.1
::1 6 [::1]
fd00:db8:1::1 6 [fd00:db8:1::1]
link-local 6 [$HOST_LINK_LOCAL%uplink]"
    for service in "published 8080" "unpublished 81" "container-loopback 82"; do
        towards "${service% *}" "${service#* }" "from-$1." <<<"$addresses"
    done
}

# Sends probes (standard input) with a command, and prints a value for each, or with KIND `check` a check.
probes() {
    local kind=$1 list try service name address
    shift
    list=$(cat)
    # On a busy machine a probe may arrive too late, so the missing ones are repeated.
    for try in 1 2; do
        while read -r service name address; do
            arrived "$service" "$name" || echo "$name $address"
        done <<<"$list" | "$@"
    done
    while read -r service name address; do
        if [ "$kind" = check ]; then
            check "$name" arrived "$service" "$name"
        elif arrived "$service" "$name"; then
            value "$name" open
        else
            value "$name" closed
        fi
    done <<<"$list"
}

# Sends echo requests from the container `probe`, and prints a value for each. The kernel of the container answers requests
# to its own addresses, and Pontoon those to its DNS forwarder, so the requests that arrive are counted.
echoes() {
    local name family address before
    while read -r name family address; do
        before=$(echo_requests)
        if podman exec probe ping -c 1 -W 2 "$(tr -d '[]' <<<"$address")" && [ "$(echo_requests)" -gt "$before" ]; then
            value "$name.echo" open
        else
            value "$name.echo" closed
        fi </dev/null
    done < <(grep -vE '^(gateway|(own|own6) )' <<<"$HOST_ADDRESSES"; echo "$OTHER_ADDRESSES")
}

# Prints the number of echo requests that the host and its neighbour have received.
echo_requests() {
    cat {/proc,/proc/$NEIGHBOUR}/net/{snmp,snmp6} | awk '
        $1 == "Icmp:" && $2 == "InMsgs" {for (column = 2; $column != "InEchos"; column += 1); next}
        $1 == "Icmp:" {sum += $column}
        $1 == "Icmp6InEchos" {sum += $2}
        END {print sum}'
}

# Returns true if the probe NAME has arrived at SERVICE.
arrived() {
    grep -qsxF "$2" "/run/reach/$1"
}

# Starts the container to which the probes are sent. Its ports 81 and 82 are not published, and the servers of 82 listen
# at its loopback addresses.
start_other() {
    cat >/tmp/other <<'SCRIPT'
server() {
    socat -T 3 "TCP$2-LISTEN:$3,fork,reuseaddr" SYSTEM:"tee -a /reach/$1" &
    socat -T 3 "UDP$2-RECVFROM:$3,fork,reuseaddr" SYSTEM:"tee -a /reach/$1" &
}
for port in "published 80" "unpublished 81"; do
    server ${port% *} 4 ${port#* }
    server ${port% *} 6 ${port#* },ipv6only
done
server container-loopback 4 82,bind=127.0.0.1
server container-loopback 6 "82,bind=[::1]"
wait
SCRIPT
    try other podman run --detach --name other -p 8080:80 -p 8080:80/udp -v /run/reach:/reach -v /tmp/other:/other:ro \
        -v /run/scripts:/scripts:ro test sh /other
    try other-listens within 10 other_listens
}

other_listens() {
    [ "$(podman exec other ss -Hlntu | grep -cE ':8[012] ')" = 12 ]
}

reach() {
    prepare || return 0
    start_other
    try probe podman run --detach --name probe -v /run/scripts:/scripts:ro test sleep infinity
    controls | probes check sh /run/scripts/reach-probe.sh
    controls_of_other | probes check podman exec --interactive other sh /scripts/reach-probe.sh
    from_container | probes value podman exec --interactive probe sh /scripts/reach-probe.sh
    echoes
    to_container host | probes value sh /run/scripts/reach-probe.sh
    to_container neighbour | probes value socat -t 60 - UNIX-CONNECT:/run/reach.sock
    try map-gw podman run --detach --name map-gw --network=pasta:--map-gw -v /run/scripts:/scripts:ro test sleep infinity
    grep '^gateway6\? ' <<<"$HOST_ADDRESSES" | towards loopback 9001 map-gw. |
        probes value podman exec --interactive map-gw sh /scripts/reach-probe.sh
    start_routed
    routed | probes value podman exec --interactive routed sh /scripts/reach-probe.sh
    value dns-forwarder.53.udp "$(answered podman exec probe nslookup example.com 169.254.1.1)"
    value dns-forwarder.53.tcp "$(answered podman exec probe sh -c '[ "$(printf "\0\35\0\1\1\0\0\1\0\0\0\0\0\0\7example\3com\0\0\1\0\1" |
        socat -T 2 - TCP4:169.254.1.1:53 | tail -c 4 | od -An -tu1 | tr -d " ")" = 192022 ]')"
    finish
    rm -f /tmp/other /tmp/routed
}

answered() {
    if timeout 20 "$@" >/dev/null 2>&1; then echo open; else echo closed; fi
}
