#!/bin/busybox sh
# The first process of the machine. It configures the interfaces by DHCP, DHCPv6 and router advertisements, serves pages at port
# 80 and 82, the results of its checks at 9000, the client's address at 9001 and an echo of datagrams at 7, and powers off when the
# power button is pressed.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
    insmod "/modules/$module.ko"
done </modules/order
hostname machine
ip link set lo up
try=0
until [ -e /sys/class/net/eth0 ] || [ $try = 100 ]; do
    sleep 0.1
    try=$((try + 1))
done
for interface in eth0 eth1; do
    [ -e "/sys/class/net/$interface" ] || continue
    # The same prefix on both interfaces would make the route of a reply uncertain.
    [ "$interface" = eth0 ] || echo 1 >"/proc/sys/net/ipv6/conf/$interface/disable_ipv6"
    echo 0 >"/proc/sys/net/ipv6/conf/$interface/accept_dad"
    echo 0 >"/proc/sys/net/ipv6/conf/$interface/router_solicitation_delay"
    ip link set "$interface" up
    udhcpc -i "$interface" -f -n -q -t 10 -T 1 -O mtu -s /lease
    [ "$interface" = eth0 ] || continue
    # dhclient exits without a link-local address, which the kernel adds up to a second after the carrier.
    try=0
    until ip -6 address show dev "$interface" scope link | grep -q fe80 || [ $try = 100 ]; do
        sleep 0.1
        try=$((try + 1))
    done
    dhclient -6 -1 -lf /tmp/leases6 -pf /tmp/dhclient6 -sf /lease6 "$interface" </dev/null
done
socat TCP6-LISTEN:9000,fork,reuseaddr EXEC:/checks &
socat TCP6-LISTEN:9001,fork,reuseaddr 'SYSTEM:echo $SOCAT_PEERADDR' &
socat -T 2 UDP6-RECVFROM:7,fork EXEC:cat &
mkdir -p /etc/acpi/PWRF
printf '#!/bin/sh\npoweroff -f\n' >/etc/acpi/PWRF/00000080
chmod 755 /etc/acpi/PWRF/00000080
acpid -d -c /etc/acpi &
cp /proc/sys/kernel/random/boot_id /web/boot
echo machine >/web/index.html
head -c 4194304 /dev/urandom >/web/big
sha256sum </web/big >/web/big.sum
until [ "$(netstat -lnt | grep -cE ':900[01] ')" = 2 ]; do
    sleep 0.1
done
try=0
until ip -6 route show default | grep -q via || [ $try = 50 ]; do
    sleep 0.1
    try=$((try + 1))
done
httpd -h /web
httpd -h /web -p 82
echo ready
while :; do
    sleep 1000
done
