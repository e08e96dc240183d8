# Prepares the host of libvirt and QEMU, as root: a root directory at /mnt that has the unpacked packages, in which the case
# runs, the machine's kernel and initrd in /run/machine, and a gateway at another address than that of the neighbour, as
# the machine reaches the host's loopback there.
at_neighbour ip address add 192.0.2.254/24 dev uplink
at_neighbour ip address add fd00:db8::fe/64 dev uplink nodad preferred_lft 0
ip route replace default via 192.0.2.254
ip -6 route replace default via fd00:db8::fe
mount -t tmpfs -o mode=755 clients /mnt
mkdir -p /mnt/{usr,etc,proc,sys,dev,tmp,run,var} "/mnt$CLIENTS_HOME" /run/machine/root/{bin,modules,tmp,proc,sys,dev,etc,web}
mount --bind /run/clients/machine/usr /mnt/usr
for item in bin sbin lib lib64; do
    ln -s "usr/$item" "/mnt/$item"
done
cp -r /run/clients/machine/etc/. /mnt/etc
cp -r /run/clients/machine/var/. /mnt/var
cp /etc/passwd /etc/group /etc/nsswitch.conf /etc/resolv.conf /etc/hosts /mnt/etc
for item in /proc /sys /dev /run /tmp "$CLIENTS_HOME"; do
    mount --rbind "$item" "/mnt$item"
done
ln -s /usr/bin/gawk /run/column/awk
# A process in a chroot could not create a user namespace.
in_root=(unshare --mount sh -ec 'cd /mnt; pivot_root . .; umount -l .; exec "$@"' sh)

kernel=/run/clients/machine-kernel
cp "$kernel"/boot/vmlinuz-* /run/machine/vmlinuz
for item in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net evdev button; do
    echo "$item"
    find "$kernel/lib/modules/" -name "$item.ko" -exec cp {} /run/machine/root/modules \;
done >/run/machine/root/modules/order
libraries() { ldd "$1" | grep -o '/[^ ]*\.so[^ ]*' | grep -v ':$'; }
cp "$(command -v busybox)" /run/machine/root/bin
for program in socat dhclient; do
    cp "$(command -v $program)" /run/machine/root/bin
    for item in $(libraries "$(command -v $program)"); do
        cp --parents --dereference "$item" /run/machine/root
    done
done
cp /run/scripts/machine-init.sh /run/machine/root/init
cp /run/scripts/machine-lease.sh /run/machine/root/lease
cp /run/scripts/machine-lease6.sh /run/machine/root/lease6
cp /run/scripts/machine-checks.sh /run/machine/root/checks
chmod 755 /run/machine/root/{init,lease,lease6,checks}
(cd /run/machine/root && find . | cpio --quiet --create --format=newc | gzip -1) >/run/machine/initrd
rm -r /run/machine/root
