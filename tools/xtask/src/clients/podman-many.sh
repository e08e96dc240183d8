# Many containers of one user side by side.
. /run/scripts/podman.sh

# Starts 300 containers, which wait until all of them run; then each requests a page of the neighbour.
containers_300() {
    local begin
    prepare || return 0
    mkdir /tmp/shared
    mkfifo /tmp/shared/begin
    cat >/tmp/shared/wait <<'SCRIPT'
: </shared/begin
curl -sSm 30 http://192.0.2.2/ >/shared/page.$HOSTNAME 2>&1
exec sleep infinity
SCRIPT
    # A user has 200 keyrings (kernel.keys.maxkeys).
    printf '[containers]\nkeyring = false\n' >/tmp/many.conf
    export CONTAINERS_CONF_OVERRIDE=/tmp/many.conf
    begin=$SECONDS
    limited 600 start sh -c 'seq 300 | xargs --max-procs=3 --replace=N timeout 60 podman run --detach --name cN \
        --volume /tmp/shared:/shared test sh /shared/wait'
    note "started in $((SECONDS - begin)) s"
    check running prints 300 running_containers
    figures_of idle
    try begin timeout 10 sh -c ': >/tmp/shared/begin'
    check connected within 60 connected
    figures_of "after a request"
    begin=$SECONDS
    limited 400 remove podman rm --all --force --time 0
    note "removed in $((SECONDS - begin)) s"
    check removed within 10 fails network_processes
    unset CONTAINERS_CONF_OVERRIDE
    rm -rf /tmp/shared /tmp/many.conf
    finish
}

running_containers() {
    podman ps --quiet | wc -l
}

connected() {
    [ "$(grep -lx neighbour /tmp/shared/page.* | wc -l)" = 300 ]
}

# Prints a remark with the figures of the network's processes.
figures_of() {
    local size processes descriptors instances
    read -r size processes descriptors instances <<<"$(figures)"
    note "$1: $processes processes, PSS $((size / 1024)) MiB ($((size / 300)) kB each container)," \
        "$descriptors descriptors, $instances inotify instances"
}
