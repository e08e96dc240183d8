# Runs the tests of slirp4netns in the directory SOURCE, each a check.
scripts() {
    local script name status
    mkdir -p /tmp/programs
    ln -s "$(command -v busybox)" /tmp/programs/udhcpc
    cp -r "$SOURCE/tests" /tmp/tests
    cd /tmp/tests
    for script in test-slirp4netns-*.sh; do
        name=${script#test-slirp4netns-}
        name=${name%.sh}
        echo "--- $name"
        PATH=/tmp/programs:$PATH timeout 90 bash "./$script" 3>&-
        status=$?
        # A script that fails before it has set its trap leaves its processes.
        pkill -KILL -u "$(id -u)" '^(slirp4netns|pontoon|sleep|ncat)' && within 5 fails pgrep -u "$(id -u)" '^sleep'
        case $status in
            0) echo "check $name pass" >&3 ;;
            77) skip "$name" "by the script" ;;
            *) echo "check $name fail exit status $status" >&3 ;;
        esac
    done
    cd /
    rm -rf /tmp/tests /tmp/slirp4netns-*
}
