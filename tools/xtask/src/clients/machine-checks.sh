#!/bin/busybox sh
# Prints the results of checks of outbound traffic of the machine, as lib.sh does. The neighbour is 192.0.2.2 and
# fd00:db8::2.
PATH=/bin

check() {
    name=$1
    shift
    if output=$("$@" 2>&1); then
        echo "check $name pass"
    else
        echo "check $name fail $(echo "$output" | tail -n 1)"
    fi
}

# Prints the page of a socat address and a path.
get() {
    printf 'GET %s HTTP/1.0\r\n\r\n' "$2" | timeout 20 socat -t 20 - "$1" | {
        while read -r line && [ "$line" != "$(printf '\r')" ]; do
            :
        done
        cat
    }
}
page() { equal "$(get "TCP:$1:80" /)" neighbour; }
big() { equal "$(get "TCP:$1:80" /big | sha256sum)" "$(get "TCP:$1:80" /big.sum)"; }
upload() { equal "$(timeout 20 socat -t 10 - "TCP:$1:7001" </web/big)" "$(cat /web/big.sum)"; }
datagram() { equal "$(head -c 1400 /dev/zero | tr '\0' x | timeout 5 socat -T 2 -t 2 - "$1" | wc -c)" 1400; }
refused() { ! socat -u "$1" - 2>/tmp/error && grep 'Connection refused' /tmp/error; }
names() { nslookup -type="$1" example.com | grep -q "Address: $2"; }
equal() { [ "$1" = "$2" ] || { echo "'$1' instead of '$2'"; return 1; }; }

# Options of DHCP and DHCPv6 of each interface, and the prefix of router advertisements.
for file in /tmp/lease.* /tmp/lease6.* /tmp/dns.* /tmp/dns6.*; do
    echo "value ${file#/tmp/} $(cat "$file")"
done
echo "value prefix6 $(ip -6 route show dev eth0 | awk '/^fd.*::\/64/ {print $1; exit}')"

# Checks of each family.
for family in '4 192.0.2.2 192.0.2.2' '6 [fd00:db8::2] fd00:db8::2'; do
    set -- $family
    check "page$1" page "$2"
    check "download$1" big "$2"
    check "upload$1" upload "$2"
    check "datagram$1" datagram "UDP$1:$2:7002"
    check "ping$1" ping -c 1 -W 3 "$3"
    check "refused-port$1" refused "TCP:$2:81"
done
check name4 names a 192.0.2.2
check name6 names aaaa fd00:db8::2
check loopback equal "$(get TCP4:192.0.2.254:8000 /)" host-loopback
check loopback6 equal "$(get 'TCP6:[fd00:db8::fe]:8000' /)" host-loopback
if [ -e /tmp/lease.eth1 ]; then
    address=$(sed 's,/.*,,' /tmp/lease.eth1)
    check second-page equal "$(get "TCP4:192.0.2.2:80,bind=$address" /)" neighbour
    check second-datagram datagram "UDP4:192.0.2.2:7002,bind=$address"
    check second-ping ping -c 1 -W 3 -I eth1 192.0.2.2
fi
