#!/bin/bash
# Runs one case on a host of its own: as root, in new network, mount and PID namespaces.
#
# The host (192.0.2.1, fd00:db8::1) has one neighbour (192.0.2.2, fd00:db8::2), which is its router and name server.
# Arguments: directory of scripts, directory of programs, directory for results, library of cases, name of the case,
# variables of the case (NAME=VALUE). CLIENTS_LINKS has the programs of the column: lines of name, `=` and path.
set -eu
scripts=$1 cache=$2 results=$3 library=$4 name=$5
shift 5
user=$(id --user "$CLIENTS_USER")

mount --bind "$scripts" /mnt
mount -t tmpfs -o mode=755 clients /run
mkdir -p /run/scripts /run/clients /run/column /run/user/"$user" /run/results
mount --move /mnt /run/scripts
mount --bind "$cache" /run/clients
mount --bind "$results" /run/results
# Pontoon selects a command line by the name of the link, so the program itself has another name.
while IFS== read -r link program; do
    cp --dereference "$program" "/run/column/$link.program"
    ln -s "$link.program" "/run/column/$link"
    # pasta executes this variant of itself.
    [ ! -e "$program.avx2" ] || cp --dereference "$program.avx2" "/run/column/$link.program.avx2"
done <<<"$CLIENTS_LINKS"
chown "$CLIENTS_USER:$CLIENTS_USER" /run/user/"$user"
chmod 700 /run/user/"$user"
mount -t tmpfs -o mode=1777 clients /tmp
mount -t tmpfs -o mode=700 clients "$CLIENTS_HOME"
chown "$CLIENTS_USER:$CLIENTS_USER" "$CLIENTS_HOME"
case $library in
    podman* | buildah) . /run/scripts/host-podman.sh ;;
esac
printf 'nameserver 192.0.2.2\nnameserver fd00:db8::2\n' >/run/resolv.conf
mount --bind /run/resolv.conf /etc/resolv.conf
printf '127.0.0.1 localhost\n::1 localhost\n' >/run/hosts
mount --bind /run/hosts /etc/hosts
sysctl -q -w net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 net.ipv4.ping_group_range="0 2147483647"
# rootlesskit's tests publish ports below 1024.
[ "$name" != unit ] || sysctl -q -w net.ipv4.ip_unprivileged_port_start=0

unshare --net sleep infinity &
neighbour=$!
until [ "$(readlink /proc/$neighbour/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
at_neighbour() { nsenter --net="/proc/$neighbour/ns/net" "$@"; }
ip link add uplink type veth peer name uplink netns "$neighbour"
at_neighbour sysctl -q -w net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
for side in "1 ip" "2 at_neighbour ip"; do
    number=${side%% *} ip=${side#* }
    $ip link set lo up
    $ip address add "192.0.2.$number/24" dev uplink
    $ip address add "fd00:db8::$number/64" dev uplink nodad
    $ip link set uplink up
done
ip route add default via 192.0.2.2
ip -6 route add default via fd00:db8::2

web=/run/web
mkdir -p $web/host $web/neighbour
echo host-loopback >$web/host/index.html
echo neighbour >$web/neighbour/index.html
head -c 16777216 /dev/urandom >$web/neighbour/big
sha256sum <$web/neighbour/big >$web/neighbour/big.sum
busybox httpd -f -p 127.0.0.1:8000 -h $web/host &
busybox httpd -f -p '[::1]:8000' -h $web/host &
at_neighbour busybox httpd -f -p 80 -h $web/neighbour &
at_neighbour dnsmasq --keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --user=root --pid-file= \
    --address=/example.com/192.0.2.2 --address=/example.com/fd00:db8::2 \
    --address=/l.root-servers.net/192.0.2.2 --address=/l.root-servers.net/fd00:db8::2 \
    --address=/google.com/192.0.2.2 --address=/google.com/fd00:db8::2 --log-facility=- &
at_neighbour socat TCP6-LISTEN:7001,fork,reuseaddr EXEC:sha256sum &
at_neighbour socat -b 65536 -T 2 UDP6-RECVFROM:7002,fork EXEC:cat &
# The neighbour forwards its ports 7003 and 7004 to port 8080 of the host, as a client of the host.
at_neighbour socat TCP4-LISTEN:7003,fork,reuseaddr TCP4:192.0.2.1:8080 &
at_neighbour socat -T 2 UDP4-LISTEN:7004,fork,reuseaddr UDP4:192.0.2.1:8080 &
at_neighbour iperf3 -s >/dev/null &
[ "$library" != podman-bench ] || at_neighbour qperf &

tries=0
until [ "$(at_neighbour ss -Hlnt | grep -cE ':(80|53|7001|7003|5201) ')" -ge 6 ] &&
    [ "$(ss -Hlnt | grep -c ':8000 ')" = 2 ]; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { echo "the servers of the neighbour have not started" >&2; exit 3; }
    sleep 0.05
done
[ "$library" != podman-reach ] || . /run/scripts/host-reach.sh

[ "$library" != passt ] || . /run/scripts/host-passt.sh
# The command by which the case runs in another root directory.
in_root=()
case $library in
    libvirt | qemu) . /run/scripts/host-machine.sh ;;
esac

# Prints processes of the user, network devices, listening sockets, socket files and mounted namespaces.
state() {
    ps -e -o uid=,pid=,comm= | awk '$1 != 0 {print "process " $2 " " $3}'
    ip -o link | awk '{print "device " $2}'
    ss -Hlntu | awk '{print "socket " $1 " " $5}'
    awk '$9 == "nsfs" || $8 == "nsfs" {print "namespace " $5}' /proc/self/mountinfo
    find /tmp /run/user "$CLIENTS_HOME" -xdev -type s 2>/dev/null | sed 's/^/socket /' || true
}
state | sort >/run/before

# Cases whose names begin with `root` run as root.
as=$CLIENTS_USER
[ "${name#root}" = "$name" ] || as=root
status=0
"${in_root[@]}" setpriv --reuid="$as" --regid="$as" --init-groups --inh-caps=-all \
    env -i HOME="$CLIENTS_HOME" USER="$CLIENTS_USER" LC_ALL=C.UTF-8 TERM=dumb XDG_RUNTIME_DIR=/run/user/"$user" \
    PATH=/run/column:/run/clients/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@" \
    bash -c 'cd "$HOME"; . /run/scripts/lib.sh; . "/run/scripts/$0.sh"; "$1"' "$library" "$name" \
    3>>/run/results/checks || status=$?
[ $status = 0 ] || echo "check script fail exit status $status" >>/run/results/checks

left=$(state | sort | comm -13 /run/before -)
tries=0
while [ -n "$left" ] && [ $tries -lt 50 ]; do
    sleep 0.1
    tries=$((tries + 1))
    left=$(state | sort | comm -13 /run/before -)
done
if [ -z "$left" ]; then
    echo "check nothing-left pass" >>/run/results/checks
else
    echo "check nothing-left fail $(echo "$left" | tr '\n' ';')" >>/run/results/checks
fi
