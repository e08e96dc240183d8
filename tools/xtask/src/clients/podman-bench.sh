# Measures containers of podman, once with each program as `pasta`: `original`, `ours`. Each result is a line
# `value STACK/MEASUREMENT NUMBER`.
. /run/scripts/podman.sh

STACKS=(original ours)

# Writes a configuration for each stack, in which its program is the first one of that name.
configure() {
    local stack
    for stack in "${STACKS[@]}"; do
        printf '[engine]\nhelper_binaries_dir = ["/run/stacks/%s", "%s", "%s"]\n' "$stack" \
            /mnt/usr/libexec/podman /mnt/usr/lib/podman >/tmp/$stack.conf
    done
}

# Runs podman with the program of STACK.
with() {
    local stack=$1
    shift
    CONTAINERS_CONF_OVERRIDE=/tmp/$stack.conf timeout 60 podman "$@" 3>&-
}

# Prints the microseconds that a command takes.
microseconds() {
    local begin=${EPOCHREALTIME/./}
    "$@" >/dev/null 2>&1
    echo $((${EPOCHREALTIME/./} - begin))
}

# Measures the share of the network in the duration of `podman run`: the difference to a run without network in the same
# round. The order changes from round to round, because the end of a container overlaps with the next start.
start() {
    local round run stack none
    local -a order=(none "${STACKS[@]}")
    local -A time
    for round in $(seq "$STARTS"); do
        for run in "${order[@]}"; do
            case $run in
                none) time[none]=$(microseconds with original run --rm --network=none test true) ;;
                *) time[$run]=$(microseconds with "$run" run --rm test true) ;;
            esac
        done
        none=${time[none]}
        for stack in "${STACKS[@]}"; do
            echo "value $stack/start $((time[$stack] - none))" >&3
        done
        echo "value none/start $none" >&3
        order=("${order[@]:1}" "${order[0]}")
    done
}

# Runs a command in the container of STACK that prints a report of iperf3, and prints the Mbit/s as the measurement NAME.
rate() {
    local stack=$1 name=$2 rate
    shift 2
    rate=$(with "$stack" exec "$stack" iperf3 --client 192.0.2.2 --time "$SECONDS_EACH" --json "$@" |
        jq '(.end.sum_received // .end.sum).bits_per_second / 1e6 | round')
    echo "value $stack/$name ${rate:-0}" >&3
}

# Prints the nanoseconds that qperf prints for TEST, in the container of STACK.
latency() {
    local stack=$1 test=$2 time
    time=$(with "$stack" exec "$stack" qperf --time 2 --unify_units 192.0.2.2 "$test" |
        awk '$1 == "latency" {printf "%d", $3}')
    echo "value $stack/$test ${time:-0}" >&3
}

# Prints the microseconds of one of 300 HTTP requests in sequence, each with a connection of its own.
requests() {
    local stack=$1 time
    time=$(microseconds with "$stack" exec "$stack" curl --silent --output /dev/null 'http://192.0.2.2/index.html?[1-300]')
    echo "value $stack/requests $((time / 300))" >&3
}

traffic() {
    local mtu round stack
    for mtu in 65520 1500; do
        for stack in "${STACKS[@]}"; do
            check $stack-$mtu with "$stack" run --detach --name "$stack" --network=pasta:-m,$mtu test /serve
        done
        for round in $(seq "$ROUNDS"); do
            for stack in "${STACKS[@]}"; do
                rate "$stack" up-$mtu
                rate "$stack" down-$mtu --reverse
                [ $mtu = 65520 ] || continue
                rate "$stack" udp-up --udp --bandwidth 0 --length 1400
                latency "$stack" tcp_lat
                latency "$stack" udp_lat
                requests "$stack"
            done
        done
        podman rm --all --force --time 0
        check end-$mtu within 5 fails network_processes
    done
}

# Measures the memory of the network's processes of 20 idle containers, in kB for each container.
memory() {
    local number stack
    for stack in "${STACKS[@]}"; do
        for number in $(seq 20); do
            with "$stack" run --detach test sleep infinity
        done
        sleep 3
        echo "value $stack/memory $(($(figures | cut -d ' ' -f 1) / 20))" >&3
        podman rm --all --force --time 0
        check end-memory within 5 fails network_processes
    done
}

all() {
    prepare || return 0
    configure
    start
    traffic
    memory
    finish
}
