# Runs check.sh of `cargo xtask dist --check` with the directory $1 as the root of the file system. $2 is the directory of
# downloaded packages. chroot(2) is not enough: the kernel forbids user namespaces to processes that are in one.
set -e
root=$1 archives=$2
mount --bind "$root" "$root"
mount --bind "$archives" "$root/var/cache/apt/archives"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
cd "$root"
pivot_root . .
umount -l .
exec sh /check/check.sh
