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

# Same as `check`, but the command is killed after SECONDS, with all processes that have started since, also those that
# have left its session. The reason names the process that started last, and the last line of output. Returns 1 if the
# check has failed.
limited() {
    local seconds=$1 name=$2 before job last running status=0 log ended=
    shift 2
    log=$(mktemp /tmp/limited.XXXXXX)
    before=$(processes)
    "$@" >"$log" 2>&1 3>&- </dev/null &
    job=$!
    seconds=$((SECONDS + seconds))
    until [ $SECONDS -ge $seconds ]; do
        ! gone $job || { ended=yes; break; }
        sleep 0.02
    done
    if [ -n "$ended" ]; then
        wait $job || status=$?
        last=$(tail -n 1 "$log" | tr -c '[:print:]' ' ')
        case $status in
            0) echo "check $name pass" >&3 ;;
            77) skip "$name" "$last" ;;
            *) echo "check $name fail ${last:-exit status $status}" >&3 ;;
        esac
    else
        running=$(started "$before")
        running=$(ps -o args= -p "$(tail -n 1 <<<"$running")" | tr -c '[:print:]' ' ')
        last=$(tail -n 1 "$log" | tr -c '[:print:]' ' ')
        echo "check $name fail exceeded its deadline; running: $running; output: $last" >&3
        kill_started "$before"
        wait $job 2>/dev/null || true
        status=1
    fi
    echo "--- $name"
    cat "$log"
    rm -f "$log"
    [ $status = 0 ] || [ $status = 77 ]
}

# Prints the ids of all processes that are not root's, the newest last.
processes() {
    ps -e -o uid=,pid= --sort=start_time,pid | awk '$1 != 0 {print $2}'
}

# Prints the ids of processes that are not in BEFORE, without this shell and its parents.
started() {
    local pid
    for pid in $(processes); do
        grep -qx "$pid" <<<"$1" || [ "$pid" = $BASHPID ] || [ ! -e "/proc/$pid" ] || echo "$pid"
    done
}

# Kills the processes that are not in BEFORE.
kill_started() {
    local try pids
    for try in 1 2 3 4 5; do
        pids=$(started "$1")
        [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
        sleep 0.1
    done
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

# Prints a name as one word, for `check`.
word() {
    tr -c 'A-Za-z0-9.,\n' - <<<"$1" | sed 's/--*/-/g; s/-$//'
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

# Writes the files of an image to ARCHIVE: busybox, the PROGRAMs with their libraries, and the files of DIRECTORY.
image() {
    local root name file archive=$1 directory=$2
    shift 2
    root=$(mktemp --directory /tmp/image.XXXXXX)
    mkdir -p "$root"/{bin,etc,tmp,proc,sys,dev,root,run,var,home}
    ln -s bin "$root/sbin"
    cp "$(command -v busybox)" "$root/bin"
    for name in $(busybox --list | grep -vx busybox) busybox-extras; do
        ln -s busybox "$root/bin/$name"
    done
    for name; do
        rm -f "$root/bin/$name"
        cp "$(command -v "$name")" "$root/bin"
        ldd "$root/bin/$name" | grep -o '/[^ ]*\.so[^ ]*' | grep -v ':$' || true
    done >"$root/libraries"
    ls /lib/x86_64-linux-gnu/libnss_dns.so.2 /lib/x86_64-linux-gnu/libnss_files.so.2 >>"$root/libraries"
    sort -u "$root/libraries" | while read -r file; do
        cp --parents --dereference "$file" "$root"
    done
    rm "$root/libraries"
    printf '%s\n' root:x:0:0::/root:/bin/sh nobody:x:65534:65534::/:/bin/sh >"$root/etc/passwd"
    printf '%s\n' root:x:0: nobody:x:65534: >"$root/etc/group"
    echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
    [ -z "$directory" ] || cp --recursive --preserve=mode --remove-destination "$directory/." "$root"
    tar -C "$root" --owner=0 --group=0 -cf "$archive" .
    rm -rf "$root"
}
