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

# The kernel and the initrd of the machine of passt's tests, with its script for the DHCP client.
if [ "${name#tests_machine}" != "$name" ]; then
    guest=/run/machine/root
    mkdir -p $guest/{bin,sbin,modules,tmp,proc,sys,dev,etc,root,var/lib/dhcp,var/log,run}
    ln -s /run $guest/var/run
    for program in dash dhclient socat /run/clients/passt-programs/usr/bin/{ip,jq,sipcalc}; do
        program=$(command -v $program)
        cp --dereference "$program" $guest/bin
        ldd "$program" | grep -o '/[^ ]*\.so[^ ]*' | grep -v ':$' |
            while read -r library; do cp --parents --dereference "$library" $guest; done
    done
    mv $guest/bin/dhclient $guest/sbin
    # The shell of busybox would execute its own `ip`.
    mv $guest/bin/dash $guest/bin/sh
    cp "$(command -v busybox)" $guest/bin
    for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net \
        virtio_console; do
        echo $module
        find /run/clients/machine-kernel/lib/modules/ -name $module.ko -exec cp {} $guest/modules \;
    done >$guest/modules/order
    cp /run/clients/machine-kernel/boot/vmlinuz-* /run/machine/vmlinuz
    cp /run/scripts/passt-guest-init.sh $guest/init
    sed -n '/> \/sbin\/dhclient-script << EOF/,/^EOF$/p' /run/clients/passt-source/test/passt.mbuto |
        sed '1d; $d; s/\\\$/$/g' >$guest/sbin/dhclient-script
    chmod 755 $guest/init $guest/sbin/dhclient-script
    for size in "small 2048" "medium 5120" "big 10485760"; do
        head -c "${size#* }" /dev/urandom >"$guest/root/${size% *}.bin"
    done
    cp $guest/root/*.bin /run/machine
    (cd $guest && find . | cpio --quiet --create --format=newc | gzip -1) >/run/machine/initrd
    rm -r $guest
fi
