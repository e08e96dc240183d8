# Changes what passt's tests use in another way: 192.0.2.1 and 192.0.2.2 are not addresses of the host's network, the
# IPv6 gateway is link-local, and ip and jq are new. Login shells find a stand-in for neper. As root.
ln -s /run/clients/passt-programs/usr/bin/{ip,jq,sipcalc} /run/column
mkdir -p /run/local
for program in tcp_crr tcp_rr; do
    cp /run/scripts/passt-tcp-crr.pl "/run/local/$program"
    chmod 755 "/run/local/$program"
done
mount -t overlay -o lowerdir=/run/local:/usr/local/bin overlay /usr/local/bin
for side in "1 ip" "2 at_neighbour ip"; do
    number=${side%% *} ip=${side#* }
    $ip address del "192.0.2.$number/24" dev uplink
    $ip address add "198.51.100.$number/24" dev uplink
done
ip route replace default via 198.51.100.2
gateway=$(at_neighbour ip -o -6 address show dev uplink scope link | awk '{print $4}')
ip -6 route replace default via "${gateway%/*}" dev uplink
