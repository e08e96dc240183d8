#!/bin/sh
# Runs test files of passt by the functions of its directory test/lib, in the directory of its source, with the pasta
# there. Arguments: name of the setup in passt's test/lib/setup, test files relative to test/. Prints the results to
# descriptor 3, as the functions of lib.sh do.
#
# Not as passt's own program: commands have deadlines, commands in the background get half a second before the next one,
# and what a failed test leaves in the background is ended. Contexts of pasta and of the namespace are not shown in a
# terminal.
group=$1
shift

# Variables of passt's test/run.
BASEPATH=$PWD/test
STATEBASE=$PWD/state
LOGDIR=$PWD/logs
LOGFILE=$LOGDIR/test.log
COMMIT=
FAST=1
VHOST_USER=${VHOST_USER:-0}
for variable in CI DEMO DEBUG TRACE PCAP VALGRIND; do
    eval $variable=0
done
mkdir -p "$STATEBASE" "$LOGDIR"
for library in util context setup setup_ugly term layout layout_ugly test; do
    . "test/lib/$library"
done

# Seconds until a command of a test is killed, and for which a command in the background is awaited to have started. A
# machine is slow without KVM.
deadline=15 delay=0.5
[ "$group" != passt ] || deadline=40 delay=4
current='' name='' reason=''
# The name of the context of pasta, and of its file of the process id.
subject=passt
[ "$group" != passt_in_ns ] || subject=pasta

word() {
    printf '%s' "$1" | tr -c 'A-Za-z0-9.,' - | sed 's/--*/-/g; s/-$//'
}

# Prints the result of the test NAME: RESULT [REASON].
report() {
    echo "check $(word "$1") $2 $(printf '%s' "${3:-}" | tr -s '[:space:]' ' ' | cut -c 1-300)" >&3
    echo "... $2 ${3:-}"
}

# Sets the reason of a failed test: that of its first directive that has failed.
failed() {
    reason=${reason:-$1}
}

status_file_start() {
    current=$1 name=''
    echo "=== $current"
}

status_test_start() {
    name="$current $1" reason=''
    echo "--- $1"
}

status_test_ok() {
    report "$name" pass
}

status_test_fail() {
    report "$name" fail "$reason"
    end_background
}

# A program of the file's `htools` or `nstools` is missing.
status_test_skip() {
    grep "^test	" "test/$current" | cut -f 2 >"$STATEBASE/skipped"
    while read -r name; do
        report "$current $name" skip "$reason"
    done <"$STATEBASE/skipped"
}

info() { echo "$*"; }
info_n() { :; }
info_nolog() { :; }
info_nolog_n() { :; }
info_sep() { :; }
info_layout() { :; }
info_check() { reason_of_check="check: $*"; }
info_check_passed() { :; }
info_check_failed() { failed "$reason_of_check"; }
pause_continue() { :; }

# The type of a test file, by which scripts are distinguished from files of directives.
file() { echo text/plain; }

# Waits until a command succeeds, for 10 s, while the pasta of the setup runs.
wait_for() {
    for try in $(seq 100); do
        ! "$@" || return 0
        kill -0 "$(cat "$STATESETUP/context_$subject.pid")" || return 1
        sleep 0.1
    done
    return 1
}

pane_or_context_run() {
    where=$1
    shift
    if context_exists "$where"; then
        context_run "$where" "$@" >/dev/null 2>&1 </dev/null
    else
        pane_run "$(pane "$where")" "$@"
        pane_status "$(pane "$where")"
    fi
    status=$?
    echo "$where: $*: $status"
    [ $status = 0 ] || failed "$where: $*: exit status $status"
    return $status
}

pane_or_context_run_bg() {
    where=$1
    shift
    echo "$where, in the background: $*"
    if context_exists "$where"; then
        context_run_bg "$where" "$@" >/dev/null 2>&1 </dev/null
        sleep $delay
    else
        pane_run "$(pane "$where")" "$@"
    fi
}

pane_or_context_wait() {
    if context_exists "$1"; then
        context_wait "$1"
    else
        pane_wait "$(pane "$1")"
    fi
    status=$?
    [ $status = 0 ] || failed "$1: the command in the background has the exit status $status"
    return $status
}

# Returns the name of a terminal's pane in the libraries.
pane() {
    echo "$1" | tr '[:lower:]' '[:upper:]'
}

# Waits until a pane shows a prompt, or until the deadline of its command, which is interrupted then.
pane_wait() {
    log=$LOGDIR/pane_$(echo "$1" | tr '[:upper:]' '[:lower:]').log
    sleep 0.05
    for try in $(seq $((deadline * 20))); do
        case $(tail -n 1 "$log" | sed 's/[[][^a-zA-Z]*[a-zA-Z]//g') in
            *'$ ' | *'# ') return 0 ;;
        esac
        sleep 0.05
    done
    eval "tmux send-keys -t \$PANE_$1 C-c"
    return 1
}

# Returns the status of the command in a pane.
pane_status() {
    pane_wait "$1" || return 124
    for try in 1 2 3 4 5; do
        pane_run "$1" 'echo $?'
        pane_wait "$1" || return 124
        status=$(pane_parse "$1")
        case $status in
            '' | *[!0-9]*) ;;
            *) return "$status" ;;
        esac
    done
    return 125
}

# Ends the commands in the background that a failed test has left.
end_background() {
    for context in host ns guest; do
        pid=$(cat "$STATESETUP/context_$context.pid" 2>/dev/null) || continue
        pkill -TERM -P "$pid" -x timeout
        wait "$pid"
        rm -f "$STATESETUP/context_$context.pid"
    done
}

# Gives each command of the tests a deadline.
limit_commands() {
    for context in host ns guest; do
        enter=$STATESETUP/context_$context.enter
        [ ! -e "$enter" ] || sed -i "s/^/timeout --kill-after=2 $deadline /" "$enter"
    done
}

# Replaces the function of passt's tests that connects to a machine: commands are executed over serial ports.
setup_guests() {
    KERNEL=/run/machine/vmlinuz INITRAMFS=/run/machine/initrd VCPUS=2 MEM_KIB=2097152
    context_setup_guest() {
        __name=$1
        __enter=$STATESETUP/context_$__name.enter
        context_setup_common "$__name"
        echo "bash /run/scripts/passt-guest.sh $STATESETUP/guest$2" >"$__enter"
        for try in $(seq 90); do
            ! timeout 2 bash /run/scripts/passt-guest.sh "$STATESETUP/guest$2" true || return 0
        done
        return 1
    }
}

# Prints QEMU's options for the serial ports of the machine NUMBER.
guest_ports() {
    mkdir -p "$STATESETUP/guest$1"
    echo "-device virtio-serial"
    for port in 1 2 3 4 5 6 7 8 9; do
        echo "-chardev socket,id=port$port,path=$STATESETUP/guest$1/$port,server=on,wait=off"
        echo "-device virtserialport,chardev=port$port"
    done
}

# Loads passt's setups. The program is the one of the column, without valgrind, and QEMU runs without KVM and vsock. That of
# passt in the namespace of a pasta is without passt and its virtual machine.
load_setups() {
    sed -i -e '/context_run passt "make/d' -e 's/"valgrind [^"]* \.\/passt /".\/passt /' -e 's/accel=kvm:tcg/accel=tcg/; s/accel=kvm/accel=tcg/' \
        -e 's/-cpu host/-cpu max/' -e 's/-device vhost-vsock-pci,guest-cid=\(\$[A-Z0-9_]*\)/$(guest_ports \1 | tr "\\n" " ")/' test/lib/setup
    . test/lib/setup
    setup_guests
    [ "$group" = passt_in_ns ] || return 0
    sed -n '/^setup_passt_in_ns()/,/^[[:space:]]*context_setup_nstool ns /p' test/lib/setup >"$STATEBASE/setup_in_ns"
    echo '}' >>"$STATEBASE/setup_in_ns"
    . "$STATEBASE/setup_in_ns"
    teardown_passt_in_ns() {
        "$NSTOOL" stop "$STATESETUP/ns.hold"
        context_wait pasta
    }
}

# Sets the namespace up, with a pasta that has written its file of the process id. If pasta refuses the forwarding of
# ports of the namespace (-T, -U), it is started without.
start() {
    load_setups
    setup "$group"
    if wait_for [ -s "$STATESETUP/$subject.pid" ]; then
        report "$group setup" pass
    else
        report "$group setup" fail "$(grep -v '^[a-z]*\$ ' "$LOGDIR/context_$subject.log" | tail -n 1)"
        teardown "$group"
        rm -rf "$STATESETUP"
        sed -i 's/ -[TU] [0-9,]*//g' test/lib/setup
        load_setups
        setup "$group"
    fi
    limit_commands
}

if [ "$group" = pasta_options ]; then
    tmux -f /dev/null new-session -d -s passt_test -x 200 -y 60 /bin/sh
    term
    setup "$group"
    test "$@"
    tmux kill-server
    rm -rf "/tmp/tmux-$(id -u)"
else
    # Nothing is shown in a terminal.
    tmux() { :; }
    for layout in pasta passt passt_in_pasta; do
        eval "layout_$layout() { :; }"
    done
    PANE_HOST='' PANE_PASST='' PANE_NS='' PANE_INFO='' PANE_GUEST=''
    start
    test "$@"
    teardown "$group"
fi
