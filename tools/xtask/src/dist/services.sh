# Checks of the services, in a system that systemd-nspawn has booted: `cargo xtask dist --check`. It prints the name of each
# check to /check/output, and writes the result to /check/result.
exec >/check/output 2>&1
last='preparation'
trap 'systemctl poweroff' EXIT
set -e

check() {
    last=$*
    echo "  $last"
}

failed() {
    echo "failed: $last: $1"
    journalctl --no-pager --lines 30
    exit 1
}

# Fails unless the unit runs, and its log has no warning about the sandbox.
runs() {
    sleep 2
    systemctl is-active --quiet "$1" || failed 'not active'
    if journalctl --no-pager --unit "$1" | grep -E 'sandbox is incomplete|ignoring'; then
        failed 'a layer of the sandbox is missing'
    fi
}

ip link add veth0 type veth peer name veth1
ip address add 10.9.0.1/24 dev veth0
ip link set veth0 up
ip link set veth1 up

check 'pontoon-relay: does not start without rules'
systemctl start pontoon-relay
if systemctl is-active --quiet pontoon-relay; then failed 'active'; fi
check 'pontoon-relay: runs with all layers of the sandbox'
mkdir /etc/pontoon
echo 'rules = ["veth0 239.1.1.1:5001 -> lo 239.2.2.2:5002"]' >/etc/pontoon/relay.toml
systemctl start pontoon-relay
runs pontoon-relay
control='pontoon ctl --control /run/pontoon-relay/control'
$control relay list | grep -q '^veth0 239.1.1.1:5001' || failed 'no rule'
if $control relay list | grep waits; then failed 'the rule waits'; fi
check 'pontoon-relay: reads a changed file'
echo 'rules = ["veth0 239.1.1.9:5001 -> lo 239.2.2.2:5002"]' >/etc/pontoon/relay.toml
systemctl reload pontoon-relay
sleep 1
$control relay list | grep -q '^veth0 239.1.1.9:5001' || failed 'no new rule'

check 'pontoon-netns@: gives a namespace a network'
ip netns add blue
mkdir /etc/pontoon/netns
echo 'PONTOON_OPTIONS=--publish 80:80' >/etc/pontoon/netns/blue.conf
systemctl start pontoon-netns@blue
runs pontoon-netns@blue
ip netns exec blue ip address show dev tap0 | grep -q 10.0.2.15 || failed 'no address'
pontoon ctl --control /run/pontoon-netns/blue/control publish list | grep -q 80 || failed 'no published port'
check 'pontoon-netns@: stops with the namespace'
ip netns delete blue
sleep 2
if systemctl is-active --quiet pontoon-netns@blue; then failed 'still active'; fi
if systemctl is-failed --quiet pontoon-netns@blue; then failed 'failed'; fi

check 'pontoon-vm@: serves a machine of a user'
useradd --create-home bob
loginctl enable-linger bob
until [ -S /run/user/$(id -u bob)/bus ]; do sleep 0.2; done
as_bob() {
    setpriv --reuid bob --regid bob --init-groups env HOME=/home/bob XDG_RUNTIME_DIR=/run/user/$(id -u bob) "$@"
}
as_bob systemctl --user start pontoon-vm@debian
sleep 2
as_bob systemctl --user is-active --quiet pontoon-vm@debian || failed 'not active'
if journalctl --no-pager _UID="$(id -u bob)" | grep -E 'sandbox is incomplete|ignoring'; then failed 'a layer is missing'; fi
[ -S /run/user/$(id -u bob)/pontoon/debian/socket ] || failed 'no socket'
as_bob pontoon ctl --control /run/user/$(id -u bob)/pontoon/debian/control stats | grep -q flows || failed 'no statistics'

check 'exposure by systemd-analyze'
for unit in pontoon-relay pontoon-netns@blue; do
    systemd-analyze security --no-pager $unit | tail --lines 1
done
echo passed >/check/result
