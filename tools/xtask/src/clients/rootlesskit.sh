# Cases of rootlesskit. ROOTLESSKIT is the directory of the programs of one version, SOURCE that of its source.
PATH=$ROOTLESSKIT:$PATH

RK=(rootlesskit --net=slirp4netns --slirp4netns-binary=/run/column/slirp4netns)

# Starts rootlesskit with OPTIONS in the background, and waits until its command runs.
start() {
    STATE=$(mktemp --directory /tmp/state.XXXXXX)
    "${RK[@]}" --state-dir="$STATE" "$@" sh -c 'echo ready >"$0"; exec sleep infinity' "$STATE/ready" 3>&- &
    PARENT=$!
    within 15 test -s "$STATE/ready" || { check start false; return 1; }
    CHILD=$(cat "$STATE/child_pid")
    ENTER=(nsenter --preserve-credentials --user --mount --target "$CHILD")
    if [ -e "$STATE/netns" ]; then
        # With --detach-netns, this file is the network namespace, and the child process is in another one.
        ENTER+=(nsenter --net="$STATE/netns")
    else
        ENTER+=(--net)
    fi
    SERVERS=()
}

stop() {
    local server
    for server in "${SERVERS[@]}"; do
        end "$server"
    done
    kill -TERM "$CHILD" 2>/dev/null || true
    check end within 10 gone "$PARENT"
    gone "$PARENT" || kill -KILL "$PARENT"
    wait "$PARENT" 2>/dev/null || true
    rm -rf "$STATE"
}

# Runs a command in the namespaces of rootlesskit.
inside() {
    "${ENTER[@]}" "$@"
}

ctl() {
    timeout 10 rootlessctl --socket="$STATE/api.sock" "$@"
}

# Starts servers in the namespace: HTTP at TCP port 80 (`guest`, and the client's address), and echo at UDP port 80.
serve() {
    local web=$STATE/web
    mkdir -p "$web/cgi-bin"
    echo guest >"$web/index.html"
    printf '#!/bin/sh\nprintf "Content-Type: text/plain\\r\\n\\r\\n"\necho $REMOTE_ADDR\n' >"$web/cgi-bin/address"
    chmod +x "$web/cgi-bin/address"
    "${ENTER[@]}" busybox httpd -f -p 80 -h "$web" 3>&- &
    SERVERS+=($!)
    "${ENTER[@]}" socat -T 2 UDP4-RECVFROM:80,fork EXEC:cat 3>&- &
    SERVERS+=($!)
    check serve within 5 inside sh -c 'ss -Hlnt | grep -q ":80 " && ss -Hlnu | grep -q ":80 "'
}

# Checks TCP, UDP, names and bulk data to the neighbour.
out() {
    check tcp prints neighbour inside curl -sSm 5 http://192.0.2.2/
    check udp prints ping run_datagram UDP4:192.0.2.2:7002
    check name-tcp prints neighbour inside curl -4 -sSm 5 http://example.com/
    check refused test "$(inside curl -sm 5 http://192.0.2.2:9/; echo $?)" = 7
    check bulk-down equal "$(inside curl -sSm 20 http://192.0.2.2/big | sha256sum)" "$(get http://192.0.2.2/big.sum)"
    check bulk-up equal "$(get http://192.0.2.2/big | inside timeout 20 socat -t 10 - TCP4:192.0.2.2:7001)" \
        "$(get http://192.0.2.2/big.sum)"
}

run_datagram() {
    inside bash -c '. /run/scripts/lib.sh; datagram "$0"' "$1"
}

addresses() {
    inside ip -o -"$1" address show dev tap0 scope global | awk '{print $4}' | sort | tr '\n' ' '
}

net() {
    start --copy-up=/etc --disable-host-loopback || return 0
    out
    value address "$(addresses 4)"
    value route "$(inside ip route show default)"
    value mtu "$(inside cat /sys/class/net/tap0/mtu)"
    value resolv.conf "$(inside grep nameserver /etc/resolv.conf)"
    check gateway-ping inside ping -c 1 -W 3 10.0.2.2
    check neighbour-ping inside ping -c 1 -W 3 192.0.2.2
    refused host-loopback inside curl -sSm 3 http://10.0.2.2:8000/
    refused host-address-by-gateway inside curl -sSm 3 http://10.0.2.1:8000/
    stop
}

loopback() {
    start --copy-up=/etc || return 0
    check by-gateway prints host-loopback inside curl -sSm 5 http://10.0.2.2:8000/
    busybox httpd -f -p 192.0.2.1:8001 -h /run/web/host 3>&- &
    local server=$!
    check host-address within 5 prints host-loopback inside curl -sSm 5 http://192.0.2.1:8001/
    end $server
    stop
}

cidr() {
    start --copy-up=/etc --cidr=10.0.42.0/24 || return 0
    value address "$(addresses 4)"
    value route "$(inside ip route show default)"
    value resolv.conf "$(inside grep nameserver /etc/resolv.conf)"
    check by-gateway prints host-loopback inside curl -sSm 5 http://10.0.42.2:8000/
    out
    stop
}

ipv6() {
    start --copy-up=/etc --ipv6 || return 0
    check address within 5 ipv6_ready
    value address4 "$(addresses 4)"
    value resolv.conf "$(inside grep nameserver /etc/resolv.conf)"
    value route6 "$(inside ip -6 route show default | awk '{print $2, $3, $4, $5}')"
    check tcp6 prints neighbour inside curl -gsSm 5 'http://[fd00:db8::2]/'
    check udp6 prints ping run_datagram 'UDP6:[fd00:db8::2]:7002'
    check name-tcp6 prints neighbour inside curl -6 -sSm 5 http://example.com/
    check dns6 inside dig +time=2 +tries=2 @fd00::3 example.com
    check by-gateway6 prints host-loopback inside curl -gsSm 5 'http://[fd00::2]:8000/'
    check gateway-ping6 inside ping -6 -c 1 -W 3 fd00::2
    out
    stop
}

ipv6_ready() {
    inside ip -6 address show dev tap0 scope global -tentative | grep -q fd00:
}

sandbox() {
    for state in true false; do
        start --copy-up=/etc --slirp4netns-sandbox=$state --slirp4netns-seccomp=$state || return 0
        check tcp-$state prints neighbour inside curl -sSm 5 http://192.0.2.2/
        check name-tcp-$state prints neighbour inside curl -4 -sSm 5 http://example.com/
        stop
    done
}

mtu() {
    for mtu in 1280 1500 9000; do
        start --copy-up=/etc --mtu=$mtu || return 0
        value mtu-$mtu "$(inside cat /sys/class/net/tap0/mtu)"
        check bulk-down-$mtu equal "$(inside curl -sSm 20 http://192.0.2.2/big | sha256sum)" \
            "$(get http://192.0.2.2/big.sum)"
        check bulk-up-$mtu equal "$(get http://192.0.2.2/big | inside timeout 20 socat -t 10 - TCP4:192.0.2.2:7001)" \
            "$(get http://192.0.2.2/big.sum)"
        stop
    done
}

detach() {
    start --copy-up=/etc --detach-netns --disable-host-loopback || return 0
    check own-netns fails equal "$(inside readlink /proc/self/ns/net)" "$(readlink /proc/self/ns/net)"
    value address "$(addresses 4)"
    out
    refused host-loopback inside curl -sSm 3 http://10.0.2.2:8000/
    stop
}

# Checks ports that are added, listed and removed while rootlesskit runs.
ports() {
    serve
    refused before-added get http://127.0.0.1:8080/
    check add-ports prints 1 ctl add-ports 0.0.0.0:8080:80/tcp
    check add-ports-udp prints 2 ctl add-ports 0.0.0.0:8080:80/udp
    check add-ports-loopback prints 3 ctl add-ports 127.0.0.1:8081:80/tcp
    value list-ports "$(ctl list-ports | sort)"
    check tcp-loopback prints guest get http://127.0.0.1:8080/
    check tcp-address prints guest get http://192.0.2.1:8080/
    check tcp-neighbour prints guest get http://192.0.2.2:7003/
    check tcp-only-loopback prints guest get http://127.0.0.1:8081/
    refused tcp-only-loopback-by-address get http://192.0.2.1:8081/
    value source-loopback "$(get http://127.0.0.1:8080/cgi-bin/address)"
    value source-neighbour "$(get http://192.0.2.2:7003/cgi-bin/address)"
    check udp-loopback prints ping datagram UDP4:127.0.0.1:8080
    check udp-neighbour prints ping datagram UDP4:192.0.2.2:7004
    refused add-ports-twice ctl add-ports 0.0.0.0:8080:80/tcp
    busybox httpd -f -p 127.0.0.1:8082 -h /run/web/host 3>&- &
    local other=$!
    within 5 get http://127.0.0.1:8082/
    refused add-ports-of-another-program ctl add-ports 127.0.0.1:8082:80/tcp
    end $other
    check remove-ports prints 1 ctl remove-ports 1
    refused after-removed get http://127.0.0.1:8080/
    check other-port-after-removed prints guest get http://127.0.0.1:8081/
    check remove-ports-udp prints 2 ctl remove-ports 2
    refused udp-after-removed prints ping datagram UDP4:127.0.0.1:8080
    refused remove-unknown ctl remove-ports 9
    check add-again ctl add-ports 0.0.0.0:8080:80/tcp
    check tcp-again prints guest get http://127.0.0.1:8080/
    stop
    refused after-end get http://127.0.0.1:8080/
}

port_builtin() {
    start --copy-up=/etc --disable-host-loopback --port-driver=builtin || return 0
    ports
}

port_slirp4netns() {
    start --copy-up=/etc --disable-host-loopback --port-driver=slirp4netns || return 0
    ports
}

port_builtin_detach() {
    start --copy-up=/etc --disable-host-loopback --port-driver=builtin --detach-netns || return 0
    ports
}

port_slirp4netns_detach() {
    start --copy-up=/etc --disable-host-loopback --port-driver=slirp4netns --detach-netns || return 0
    ports
}

port_none() {
    start --copy-up=/etc --disable-host-loopback --port-driver=none || return 0
    refused add-ports ctl add-ports 127.0.0.1:8080:80/tcp
    stop
}

# Checks ports of the option -p, for each port driver.
publish() {
    local driver
    for driver in builtin slirp4netns; do
        start --copy-up=/etc --disable-host-loopback --port-driver=$driver -p 127.0.0.1:8080:80/tcp \
            -p 0.0.0.0:8080:80/udp || return 0
        serve
        check $driver-tcp prints guest get http://127.0.0.1:8080/
        check $driver-udp prints ping datagram UDP4:192.0.2.2:7004
        stop
    done
}

# Checks the exit status of the command, and that all processes exit when one of them is killed.
exits() {
    local status
    "${RK[@]}" true
    check status-0 equal $? 0
    "${RK[@]}" sh -c 'exit 42'
    check status-42 equal $? 42
    start --copy-up=/etc --port-driver=slirp4netns -p 127.0.0.1:8080:80/tcp || return 0
    kill -KILL "$PARENT"
    check killed within 5 nothing_runs
    wait "$PARENT" 2>/dev/null
    rm -rf "$STATE"
    start --copy-up=/etc --port-driver=slirp4netns -p 127.0.0.1:8080:80/tcp || return 0
    kill -TERM "$PARENT"
    check terminated within 5 nothing_runs
    wait "$PARENT" 2>/dev/null
    rm -rf "$STATE"
    start --copy-up=/etc || return 0
    kill -KILL "$CHILD"
    check child-killed within 5 nothing_runs
    wait "$PARENT" 2>/dev/null
    rm -rf "$STATE"
    status=0
    "${RK[@]}" --cidr=10.0.2.0/26 true 2>/dev/null || status=$?
    check unusable-cidr fails equal $status 0
}

nothing_runs() {
    ! pgrep -u "$(id -u)" '^(rootlesskit|slirp4netns|pontoon|exe|sleep)'
}

# Starts one namespace, uses it, and ends it. Prints the reason on a failure. There is no port driver: rootlesskit's
# `builtin` sometimes fails if its command has ended before the driver is ready.
once() {
    local output
    output=$(timeout 30 rootlesskit --net=slirp4netns --slirp4netns-binary=/run/column/slirp4netns --copy-up=/etc --disable-host-loopback \
        --state-dir="$(mktemp --directory /tmp/once.XXXXXX)" \
        curl -sSm 10 http://192.0.2.2/ 2>&1)
    [ "$output" = neighbour ] || { echo "$output"; return 1; }
}

starts_in_a_row() {
    local number failed=0 first=$(date +%s%N)
    for number in $(seq 50); do
        once || failed=$((failed + 1))
    done
    check all-50 equal $failed 0
    note "$(($(date +%s%N) / 50000000 - first / 50000000)) ms each"
}

starts_at_once() {
    local number failed=0 jobs=()
    for number in $(seq 20); do
        once &
        jobs+=($!)
    done
    for number in "${jobs[@]}"; do
        wait "$number" || failed=$((failed + 1))
    done
    check all-20 equal $failed 0
}

# Runs the integration scripts of rootlesskit, each a check with a deadline of its own.
scripts() {
    local script name before
    cp -r "$SOURCE/hack" /tmp/hack
    before=$(processes)
    for script in /tmp/hack/integration-*.sh; do
        name=$(basename "$script" .sh)
        name=${name#integration-}
        case $name in
            docker | systemd-socket-check-env) ;;
            evacuate-cgroup2) skip "$name" "needs systemd" ;;
            ipv6 | propagation) skip "$name" "needs sudo" ;;
            systemd-socket) skip "$name" "needs systemd" ;;
            # A script that fails leaves its processes.
            net) limited 60 "$name" bash "$script" slirp4netns || kill_started "$before" ;;
            *) limited 60 "$name" bash "$script" || kill_started "$before" ;;
        esac
    done
    # A script that fails or kills rootlesskit leaves its directory.
    rm -rf /tmp/hack /tmp/rootlesskit* /tmp/tmp.*
}

# Runs the compiled tests of rootlesskit's packages, each test a check. `_` in a program's name is `/` in its package's.
unit() {
    local program package mark result name
    for program in "$ROOTLESSKIT"/tests/*.test; do
        package=$(basename "$program" .test)
        cd "$SOURCE/${package//_//}"
        timeout 120 "$program" -test.v -test.timeout=110s >/tmp/unit.log 2>&1 3>&-
        check "$package" equal $? 0
        while read -r mark result name _; do
            [ "$mark" = --- ] || continue
            name=${package##*_}.$name
            case $result in
                PASS:) echo "check $name pass" >&3 ;;
                FAIL:) echo "check $name fail see the log" >&3 ;;
                SKIP:) skip "$name" "by the test" ;;
            esac
        done </tmp/unit.log
        cat /tmp/unit.log
    done
    rm -rf /tmp/test-builtin*
}
