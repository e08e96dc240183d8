# Prepares the host of podman and buildah, as root: their configuration in /etc/containers, cgroup v2, private /var/tmp.
mount --make-rshared /
# The packages are at /mnt because podman hides /run from netavark.
for variable; do
    [ "${variable%%=*}" != PODMAN_PACKAGES ] || mount --bind "${variable#*=}" /mnt
done
mkdir -p /run/etc/containers
cp "/mnt/etc/containers/policy.json" /run/etc/containers
echo 'unqualified-search-registries = []' >/run/etc/containers/registries.conf
cat >/run/etc/containers/containers.conf <<'END'
[containers]
default_sysctls = ["net.ipv4.ping_group_range=0 0"]
log_driver = "k8s-file"
seccomp_profile = "/mnt/usr/share/containers/seccomp.json"
[engine]
cgroup_manager = "cgroupfs"
conmon_path = ["/mnt/usr/bin/conmon"]
events_logger = "file"
helper_binaries_dir = ["/run/column", "/mnt/usr/libexec/podman", "/mnt/usr/lib/podman"]
runtime = "crun"
[engine.runtimes]
crun = ["/mnt/usr/bin/crun"]
END
mount -t overlay -o lowerdir=/run/etc:/etc overlay /etc
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t tmpfs -o mode=1777 clients /var/tmp
ln -s /mnt/usr/bin/{podman,buildah,bats} /run/column

# The programs of the measurements: the stacks, and the figures of the network's processes.
if [ "$library" = podman-bench ]; then
    mkdir -p /run/stacks/original /run/stacks/ours
    ln -s /run/clients/debian/usr/bin/pasta /run/stacks/original
    ln -s /run/column/pasta /run/stacks/ours
fi
case $library in
    podman-bench | podman-many) socat UNIX-LISTEN:/run/memory.sock,fork,mode=666 SYSTEM:"bash /run/scripts/memory.sh" & ;;
esac
