# Podman's own tests of its networks, as files of bats. TESTS is the directory `test/system` of its source.
. /run/scripts/podman.sh

# Creates the image of podman's tests from programs of this machine and the files of the script that builds the original.
prepare_tests() {
    local files=/tmp/files tag
    cp -r "$TESTS/." /tmp/tests
    # The keys are those of tests with a remote podman, and need OpenSSL 3.2.
    sed -i 's/^ *gen-tls$/    :/' /tmp/tests/setup_suite.bash
    mkdir -p $files/home/podman
    echo 20241011 >$files/home/podman/testimage-id
    (cd $files/home/podman && sed -n '/^cat >pause/,/^EOF/p; /^cat >healthcheck/,/^EOF/p; /^cat >bytecheck/,/^EOF/p' \
        /tmp/tests/build-testimage | sh && chmod +x pause healthcheck bytecheck)
    mkdir -p $files/bin
    cat >$files/bin/nc <<'END'
#!/bin/sh
# Busybox's nc with the options -l -n -v -p PORT, of which not all builds have -v. Prints to standard error.
if [ "$1" = connected ]; then
    address() {
        set -- $(echo "$1" | tr '[]:' '   ')
        printf '[::ffff:%d.%d.%d.%d]' "0x${7%??}" "0x${7#??}" "0x${8%??}" "0x${8#??}"
    }
    echo "connect to $(address "$SOCAT_SOCKADDR"):$SOCAT_SOCKPORT from $(address "$SOCAT_PEERADDR"):$SOCAT_PEERPORT" >&2
    exec cat >&2
fi
case "$*" in
    *-v*) ;;
    *) exec busybox nc "$@" ;;
esac
while [ "$1" != -p ]; do shift; done
echo "listening on [::]:$2 ..." >&2
exec socat -t 1 "TCP6-LISTEN:$2,ipv6only=0,reuseaddr" 'SYSTEM:/bin/nc connected'
END
    chmod +x $files/bin/nc
    image /tmp/image.tar $files socat ip ss getent
    tag=$(sed -n 's/^PODMAN_TEST_IMAGE_TAG=.*:-"\(.*\)"}/\1/p' /tmp/tests/helpers.bash)
    try image podman import --quiet --change WORKDIR=/home/podman --change 'CMD ["/bin/echo", "an image of tests"]' \
        /tmp/image.tar "quay.io/libpod/testimage:$tag"
    rm -rf $files /tmp/image.tar
    podman image exists "quay.io/libpod/testimage:$tag" || { finish; return 1; }
}

# Runs FILE, each test a check with a deadline of 130 s, after which the tests behind it run in a further process. (The
# deadline of bats is a child process for which these tests would wait.)
run_file() {
    local file=/tmp/tests/$1 before job idle size name
    prepare_tests || return 0
    grep -o '^@test "[^"]*"' "$file" | cut -d '"' -f 2 >/tmp/names
    before=$(processes)
    while [ -s /tmp/names ]; do
        PODMAN=/mnt/usr/bin/podman PODMAN_TIMEOUT=40 bats --tap --filter "^($(pattern))\$" "$file" \
            >/tmp/tap 2>/tmp/tap.errors 3>&- </dev/null &
        job=$!
        idle=0 size=0
        until gone $job || [ $idle -ge 130 ]; do
            sleep 1
            idle=$((idle + 1))
            [ "$(stat -c %s /tmp/tap)" = "$size" ] || { size=$(stat -c %s /tmp/tap); idle=0; }
        done
        cat /tmp/tap /tmp/tap.errors
        results
        if [ $idle -ge 130 ] && [ -s /tmp/names ]; then
            name=$(head -n 1 /tmp/names)
            echo "check $(word "$name") fail exceeded its deadline; running: $(running "$before")" >&3
            sed -i 1d /tmp/names
            kill_started "$before"
            podman rm --all --force --time 0
        else
            while read -r name; do
                echo "check $(word "$name") fail bats did not run it" >&3
            done </tmp/names
            : >/tmp/names
        fi
        wait $job 2>/dev/null
    done
    kill_started "$(printf '%s\n' "$before"; cat "$XDG_RUNTIME_DIR/libpod/tmp/pause.pid")"
    rm -rf /tmp/tests /tmp/names /tmp/tap /tmp/tap.errors /tmp/bats-run-* /tmp/podman*
    finish
}

# Prints a pattern that matches the remaining names.
pattern() {
    sed 's/[].[()*+?{}|^$\\]/\\&/g' /tmp/names | tr '\n' '|' | sed 's/|$//'
}

running() {
    ps -o args= -p "$(started "$1" | tail -n 1)"
}

# Prints the checks of the tests that have ended, and removes their names from the list.
results() {
    local line name reason
    grep -n '^\(not \)\?ok ' /tmp/tap >/tmp/tap.results
    while IFS=: read -r number line; do
        name=$(sed 's/^\(not \)\?ok [0-9]* //; s/^\[[0-9]*\] //; s/ in [0-9]*ms\( # skip\|$\)/\1/; s/ # skip.*//
            s/ # timeout.*//' <<<"$line")
        case $line in
            ok*'# skip'*) skip "$(word "$name")" "${line##*# skip }" ;;
            ok*) echo "check $(word "$name") pass" >&3 ;;
            *)
                reason=$(sed -n "$((number + 1)),\$p" /tmp/tap | sed '/^\(not \)\?ok /,$d' | grep -E '#\|' |
                    sed 's/^# #| *//' | tr -s '\n ' ' ' | cut -c 1-200)
                echo "check $(word "$name") fail ${reason:-see the log}" >&3
                ;;
        esac
        grep -vxF "$name" /tmp/names >/tmp/names.left
        mv /tmp/names.left /tmp/names
    done </tmp/tap.results
    rm -f /tmp/tap.results
}

tests_500() {
    run_file 500-networking.bats
}

tests_505() {
    run_file 505-networking-pasta.bats
}
