# Runs end-to-end cases with the program at /usr/bin/pontoon, confined by its AppArmor profile, in a virtual machine.
#
# Arguments: the profile, the program, the program of the tests, the directory of the profile's additions, the options
# and cases of root, and those of an unprivileged user, separated by blanks; then the parser and its arguments.

set -eu
profile=$1 program=$2 tests=$3 additions=$4 arguments=$5 of_user=$6
shift 6

mount -t securityfs none /sys/kernel/security
# The kernel limits the rate of the lines that are examined below.
sysctl -q kernel.printk_ratelimit=0
install -m 755 "$program" /usr/bin/pontoon
# The tests keep their files in /mnt.
mkdir -p "$additions"
echo '/mnt/{,**} rwk,' >"$additions/pontoon"
"$@" --replace "$profile"
grep -q '^pontoon (enforce)$' /sys/kernel/security/apparmor/profiles

# Profiles that differ in user namespaces, where the kernel mediates them, for the case of `pontoon doctor`.
if [ -e /sys/kernel/security/apparmor/features/namespaces/userns_create ]; then
    for name in without with; do
        deny=
        [ $name = with ] || deny='deny userns,'
        cat >/run/namespaces <<EOF
abi <abi/4.0>,
profile pontoon-$name-namespaces /usr/lib/pontoon-$name-namespaces/pontoon flags=(attach_disconnected) {
    allow all,
    $deny
}
EOF
        "$@" --replace /run/namespaces
    done
fi

dmesg -c >/dev/null
status=0
# shellcheck disable=SC2086 # The options and cases are words.
"$tests" --binary /usr/bin/pontoon $arguments || status=$?
# shellcheck disable=SC2086
setpriv --reuid=1000 --regid=1000 --clear-groups "$tests" --binary /usr/bin/pontoon $of_user || status=$?

# The cases apparmor.* provoke denials: operations of the thread pontoon-probe, a capture, and user namespaces.
denied=$(dmesg | grep 'apparmor="DENIED"' | grep -v -e 'comm="pontoon-probe"' -e 'name="/etc/pontoon.pcapng"' \
    -e 'profile="pontoon-without-namespaces"' || true)
if [ -n "$denied" ]; then
    echo 'FAIL denied by the profile:'
    echo "$denied"
    status=1
fi
exit $status
