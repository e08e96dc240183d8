#!/bin/busybox sh
# The first process of a guest.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
    insmod "$module"
done
ip link set lo up
turns=0
until [ -e /sys/class/net/eth0 ] || [ $turns = 100 ]; do
    sleep 0.1
    turns=$((turns + 1))
done
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/eth0/router_solicitation_delay
ip link set eth0 up
exec /main "$@"
