# Measures TCP by iperf3 in namespaces of rootlesskit. ROOTLESSKIT is the directory of its programs. Each result is a
# line `value STACK/MEASUREMENT MBITS`.
PATH=$ROOTLESSKIT:$PATH
ORIGINAL=/run/clients/debian/usr/bin/slirp4netns
OURS=/run/column/slirp4netns
IPERF=(timeout $((SECONDS_EACH + 15)) iperf3 --time "$SECONDS_EACH" --json)

# Starts rootlesskit as STACK with OPTIONS.
stack() {
    local name=$1 state=/tmp/$1
    shift
    mkdir "$state"
    rootlesskit --state-dir="$state" --copy-up=/etc "$@" sh -c 'echo ready >"$0"; exec sleep infinity' "$state/ready" 3>&- &
    PARENTS+=($!)
    within 15 test -s "$state/ready" || { check "$name" false; return 1; }
}

enter() {
    local child
    child=$(cat "/tmp/$1/child_pid")
    shift
    nsenter --preserve-credentials --user --mount --net --target "$child" "$@"
}

# Runs a command that prints a report of iperf3, and prints the Mbit/s of the receiver as the measurement NAME.
measure() {
    local name=$1 rate
    shift
    rate=$("$@" 3>&- | jq '.end.sum_received.bits_per_second / 1e6 | round')
    echo "value $name ${rate:-0}" >&3
}

finish() {
    local parent
    for parent in "${PARENTS[@]}"; do
        kill -TERM "$parent"
    done
    for parent in "${PARENTS[@]}"; do
        check end within 10 gone "$parent"
        wait "$parent" 2>/dev/null
    done
    rm -rf /tmp/original /tmp/ours /tmp/pasta
}

# Measures from the namespace to the host and back, with two MTUs.
networks() {
    local mtu round name
    iperf3 -s >/dev/null 3>&- &
    local server=$!
    for mtu in 1500 65520; do
        PARENTS=()
        stack original --net=slirp4netns --slirp4netns-binary=$ORIGINAL --mtu=$mtu || return 0
        stack ours --net=slirp4netns --slirp4netns-binary=$OURS --mtu=$mtu || return 0
        stack pasta --net=pasta --mtu=$mtu || return 0
        for round in $(seq "$ROUNDS"); do
            for name in original ours pasta; do
                measure "$name/up-$mtu" enter $name "${IPERF[@]}" -c 10.0.2.2
                measure "$name/down-$mtu" enter $name "${IPERF[@]}" -c 10.0.2.2 --reverse
            done
        done
        finish
    done
    end $server
}

# Measures from the host to a published port and back, with each port driver.
ports() {
    local driver round name servers=() server
    for driver in builtin slirp4netns implicit; do
        PARENTS=()
        servers=()
        case $driver in
            implicit)
                stack pasta --net=pasta --port-driver=implicit || return 0
                ;;
            *)
                stack original --net=slirp4netns --slirp4netns-binary=$ORIGINAL --port-driver=$driver || return 0
                stack ours --net=slirp4netns --slirp4netns-binary=$OURS --port-driver=$driver || return 0
                ;;
        esac
        for name in original ours pasta; do
            [ -e /tmp/$name/child_pid ] || continue
            nsenter --preserve-credentials --user --mount --net --target "$(cat /tmp/$name/child_pid)" \
                iperf3 -s -p "$(port $name)" >/dev/null 3>&- &
            servers+=($!)
            [ $driver = implicit ] ||
                rootlessctl --socket=/tmp/$name/api.sock add-ports "127.0.0.1:$(port $name):$(port $name)/tcp"
            within 10 sh -c "ss -Hlnt | grep -q ':$(port $name) '" || check "$name-$driver" false
            within 10 enter $name sh -c "ss -Hlnt | grep -q ':$(port $name) '" || check "$name-$driver" false
        done
        for round in $(seq "$ROUNDS"); do
            for name in original ours pasta; do
                [ -e /tmp/$name/child_pid ] || continue
                measure "$name/in-$driver" "${IPERF[@]}" -c 127.0.0.1 -p "$(port $name)"
                measure "$name/out-$driver" "${IPERF[@]}" -c 127.0.0.1 -p "$(port $name)" --reverse
            done
        done
        for server in "${servers[@]}"; do
            end "$server"
        done
        finish
    done
}

port() {
    case $1 in
        original) echo 5301 ;;
        ours) echo 5302 ;;
        pasta) echo 5303 ;;
    esac
}

all() {
    networks
    ports
}
