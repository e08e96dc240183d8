#!/bin/sh
# What busybox's udhcpc runs.
case $1 in
bound)
    ip link set "$interface" mtu "${mtu:-1500}"
    ip address add "$ip/$mask" dev "$interface"
    ip route add default via "$router"
    echo "options4 hostname=$hostname search=$search staticroutes=$staticroutes"
    echo "dhcp4 $ip/$mask $router $dns ${mtu:-none}"
    ;;
esac
