#!/bin/busybox sh
# The script of the DHCP client of the machine. A second interface has a routing table of its own.
[ "$1" = bound ] || exit 0
echo "$ip/$mask $router ${mtu:-none} ${hostname:-none}" >"/tmp/lease.$interface"
echo "$dns" >"/tmp/dns.$interface"
[ -z "$mtu" ] || ip link set "$interface" mtu "$mtu"
ip address add "$ip/$mask" dev "$interface"
if [ "$interface" = eth0 ]; then
    ip route add default via "$router" dev "$interface"
    for server in $dns; do
        echo "nameserver $server" >>/etc/resolv.conf
    done
else
    ip route add default via "$router" dev "$interface" table 9
    ip rule add from "$ip" table 9
fi
