# Checks of `cargo xtask dist --check` in a clean system.
. /check/common.sh

as_user() {
    setpriv --reuid user --regid user --clear-groups --reset-env "$@"
}

# Fails unless the command prints one line on standard error, exits with status $1, and prints $2.
refused() {
    status=0 expected=$1 text=$2
    shift 2
    "$@" >/check/output 2>/check/error || status=$?
    [ "$status" = "$expected" ] && [ ! -s /check/output ] && [ "$(wc -l </check/error)" = 1 ] &&
        grep -qF "$text" /check/error && return
    echo "status $status:"
    cat /check/output /check/error
    exit 1
}

use() {
    check "$1: version"
    pontoon --version | grep -q '^pontoon [0-9]'

    check "$1: run as root"
    pontoon run --require-sandbox -- true
    check "$1: run as a user"
    as_user pontoon run --require-sandbox -- true
    as_user pontoon run -- sh -c 'test -e /sys/class/net/tap0 && test "$(id -u)" = 0'
    as_user pontoon compat pasta --config-net -- true

    check "$1: manual pages"
    for page in pontoon pontoon-run pontoon-vm pontoon-relay pontoon-ctl-flows pontoon-pasta pontoon-slirp4netns; do
        man --warnings $page 2>/check/error | grep -q 'SEE ALSO'
        [ ! -s /check/error ] || { cat /check/error; exit 1; }
    done

    check "$1: completions"
    bash -c '. /usr/share/bash-completion/completions/pontoon && complete -p pontoon' | grep -q pontoon
    grep -q host-loopback /usr/share/fish/vendor_completions.d/pontoon.fish
    cat /usr/share/zsh/*/_pontoon | grep -q '^#compdef pontoon'

    check "$1: units and documents"
    ls /usr/lib/systemd/system/pontoon-relay.service /usr/lib/systemd/system/pontoon-netns@.service \
        /usr/lib/systemd/user/pontoon-vm@.service /usr/share/doc/pontoon/docs/relay.md \
        /usr/share/doc/pontoon/THIRD-PARTY-LICENCES >/check/output

    check "$1: errors in one line"
    refused 2 "invalid value 'tcsh'" pontoon completions tcsh
    mkdir -p /check/read-only
    mount -t tmpfs -o ro tmpfs /check/read-only
    refused 1 'Read-only file system' pontoon man --output /check/read-only
    refused 1 'Read-only file system' pontoon man --output /check/read-only/man1
    umount /check/read-only
    refused 127 'pontoon-bench is neither beside pontoon nor on PATH' pontoon bench

    check "$1: links"
    mkdir /check/bin
    pontoon compat install /check/bin >/check/output
    /check/bin/slirp4netns --version | grep -q pontoon
    rm -r /check/bin
}

useradd --create-home --shell /bin/sh user
ldconfig
list >/check/before

check 'deb: installation'
$apt install --yes /check/pontoon.deb >/check/log 2>&1 || { cat /check/log; exit 1; }
command -v newuidmap >/check/output || { echo 'no newuidmap'; exit 1; }
use deb
check 'deb: removal'
$apt purge --yes --autoremove pontoon >/check/log 2>&1 || { cat /check/log; exit 1; }
unchanged deb

# AppArmor's parser, which this system does not have, is not needed to install the profile for it.
mkdir -p /etc/apparmor.d/abi
for abi in 3.0 4.0; do
    check "deb: profile of AppArmor $abi"
    touch /etc/apparmor.d/abi/$abi
    $apt install --yes --no-install-recommends /check/pontoon.deb >/check/log 2>&1 || { cat /check/log; exit 1; }
    grep -q "^abi <abi/$abi>,$" /etc/apparmor.d/pontoon
    $apt purge --yes pontoon >/check/log 2>&1 || { cat /check/log; exit 1; }
done
rm -r /etc/apparmor.d/abi
unchanged 'deb with AppArmor'

# Directories that belong to packages of shells and systemd, in distributions that use rpm.
mkdir -p /usr/share/zsh/site-functions /usr/share/fish/vendor_completions.d /usr/lib/systemd/user
list >/check/before
check 'rpm: installation'
rpm --install --nodeps /check/pontoon.rpm 2>/check/error
use rpm
check 'rpm: removal'
rpm --erase --nodeps pontoon 2>/check/error
unchanged rpm
