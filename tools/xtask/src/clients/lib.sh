# Functions of the cases. A case prints its results to descriptor 3, one line each: `check NAME pass`, `check NAME fail
# REASON`, `check NAME skip REASON`, `value NAME TEXT`; everything else goes to its log.

# Runs a command as the check NAME.
check() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1 3>&-); then
        echo "check $name pass" >&3
    else
        echo "check $name fail $(tail -n 1 <<<"$output" | tr -c '[:print:]' ' ')" >&3
    fi
    printf '%s\n' "--- $name" "$output"
}

# Same as `check`, for a command that has to fail.
refused() {
    local name=$1
    shift
    check "$name" fails "$@"
}

fails() {
    ! "$@"
}

# Prints a value that has to be the same with both programs.
value() {
    if [ -n "$2" ]; then
        echo "value $1 $(tr '\n' ' ' <<<"$2")" >&3
    else
        echo "check $1 fail no output" >&3
    fi
}

note() {
    echo "note $*" >&3
}

skip() {
    echo "check $1 skip $2" >&3
}

# Repeats a command until it succeeds, for at most SECONDS.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "not within the deadline: $*"; return 1; }
        sleep 0.05
    done
}

equal() {
    [ "$1" = "$2" ] || { echo "expected '$2', not '$1'"; return 1; }
}

# Runs a command that has to print TEXT.
prints() {
    local text=$1
    shift
    equal "$("$@")" "$text"
}

get() {
    curl --silent --show-error --fail --globoff --max-time 5 "$@"
}

# Sends a datagram to HOST (in brackets for IPv6) and PORT, and prints the reply. Repeats it once if it was lost.
datagram() {
    local reply try
    for try in 1 2; do
        reply=$(printf ping | timeout 4 socat -T 1 -t 1 - "$1")
        [ -n "$reply" ] && break
    done
    printf '%s' "$reply"
}

# Ends the process PID, a child of this shell, and waits for it.
end() {
    local pid=$1
    kill "$pid" 2>/dev/null || true
    within 10 gone "$pid" || kill -KILL "$pid"
    wait "$pid" 2>/dev/null || true
}

gone() {
    ! kill -0 "$1" 2>/dev/null || [ "$(awk '/^State/ {print $2}' "/proc/$1/status" 2>/dev/null)" = Z ]
}
