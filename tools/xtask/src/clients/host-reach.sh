# Adds destinations to the host of the case `podman.reach`, as root: a second interface of the host, further addresses
# of the neighbour, and servers. A server sends back what it receives, and writes it to the file of its service in
# /run/reach, in which the case looks for the names of its probes.
mkdir -m 777 /run/reach
ip link add second type veth peer name second netns "$neighbour"
at_neighbour ip link set second up
ip address add 198.51.100.1/24 dev second
ip address add fd00:db8:1::1/64 dev second nodad
ip link set second up
at_neighbour ip address add 192.0.2.3/24 dev uplink
at_neighbour ip address add fd00:db8::3/64 dev uplink nodad
# 203.0.113.9 and fd00:db8:9::9 are behind the gateway; the others are metadata services of clouds, and a link-local
# address that is none of Pontoon's own.
for address in 203.0.113.9/32 169.254.169.254/32 169.254.77.7/32 fd00:db8:9::9/128 fd00:ec2::254/128; do
    at_neighbour ip address add $address dev lo
done

# Prints the link-local address of `uplink`, with a command PREFIX.
link_local() {
    "$@" ip -o -6 address show dev uplink scope link | awk '{sub("/.*", "", $4); print $4; exit}'
}
printf 'HOST_LINK_LOCAL=%s\nNEIGHBOUR_LINK_LOCAL=%s\nNEIGHBOUR=%s\n' \
    "$(link_local)" "$(link_local at_neighbour)" "$neighbour" >/run/reach/variables

# Starts servers of SERVICE for TCP and UDP at ADDRESS of FAMILY and PORT, with a command PREFIX.
reach_server() {
    local service=$1 family=$2 address=$3 port=$4 options=fork,reuseaddr
    shift 4
    [ "$family" = 4 ] || options=$options,ipv6only
    "$@" socat -T 3 "TCP$family-LISTEN:$port,bind=$address,$options" SYSTEM:"tee -a /run/reach/$service" &
    "$@" socat -T 3 "UDP$family-RECVFROM:$port,bind=$address,$options" SYSTEM:"tee -a /run/reach/$service" &
}
reach_server loopback 4 127.0.0.1 9001
reach_server loopback 4 127.0.0.2 9001
reach_server loopback 6 '[::1]' 9001
reach_server any 4 0.0.0.0 9002
reach_server any 6 '[::]' 9002
for address in 192.0.2.1 198.51.100.1; do
    reach_server own 4 $address 9003
done
for address in fd00:db8::1 fd00:db8:1::1; do
    reach_server own 6 "[$address]" 9003
done
reach_server neighbour 4 0.0.0.0 9004 at_neighbour
reach_server neighbour 6 '[::]' 9004 at_neighbour
socat -T 3 ABSTRACT-LISTEN:reach,fork SYSTEM:'tee -a /run/reach/abstract' &
# Groups and broadcasts, which arrive at all sockets of the port.
for side in "group-host" "group-neighbour at_neighbour"; do
    service=${side%% *} prefix=${side#"${side%% *}"}
    $prefix socat -u UDP4-RECVFROM:9005,fork,reuseaddr,ip-add-membership=239.1.2.3:uplink \
        SYSTEM:"tee -a /run/reach/$service" &
    $prefix socat -u UDP6-RECVFROM:9005,fork,reuseaddr,ipv6only,ipv6-join-group='[ff02::123]:uplink' \
        SYSTEM:"tee -a /run/reach/$service" &
done
# Sends probes from the neighbour.
socat UNIX-LISTEN:/run/reach.sock,fork,mode=666 \
    SYSTEM:"nsenter --net=/proc/$neighbour/ns/net sh /run/scripts/reach-probe.sh" &
tries=0
until [ "$(ss -Hlntu | grep -cE ':900[1235] ')" -ge 20 ] && [ "$(at_neighbour ss -Hlntu | grep -cE ':900[45] ')" -ge 6 ] &&
    [ -e /run/reach.sock ]; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { echo "the servers of podman.reach have not started" >&2; ss -Hlntu >&2; exit 3; }
    sleep 0.05
done
