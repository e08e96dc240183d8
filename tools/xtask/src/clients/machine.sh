# Functions of the cases in which a program starts passt for a virtual machine, which runs machine-init.sh.
KERNEL_ARGUMENTS='console=ttyS0 quiet panic=-1 mitigations=off'

# Waits until the machine serves pages in another boot than BOOT, and prints the id of the boot.
booted() {
    local id end=$((SECONDS + 180))
    until id=$(get "http://127.0.0.1:8080/boot" 2>/dev/null) && [ "$id" != "$1" ]; do
        [ $SECONDS -lt $end ] || { tail -n 3 "$HOME/console" >&2; return 1; }
        sleep 0.2
    done
    echo "$id"
}

# Runs the checks of the machine, and prints their results, whose names get the prefix PHASE.
outbound() {
    local results
    results=$(timeout 120 socat -u TCP4:127.0.0.1:9000 - </dev/null)
    check "$1.asked" test -n "$results"
    sed -nE "s/^(check|value) /\1 $1./p" <<<"$results" >&3
}

# Checks the ports that lead to the machine, from the host and from the neighbour.
inbound() {
    local address
    for address in 127.0.0.1 192.0.2.1 '[::1]' '[fd00:db8::1]'; do
        check "$1.in.$address" prints machine get "http://$address:8080/"
    done
    check "$1.in.neighbour" prints machine get http://192.0.2.2:7003/
    check "$1.in.datagram" prints ping datagram UDP4:192.0.2.1:8080
    check "$1.in.big" big_page
}

# Prints the addresses by which clients appear to the machine.
sources() {
    local address
    for address in 127.0.0.1 192.0.2.1 '[::1]' '[fd00:db8::1]'; do
        value "source.$address" "$(socat -u "TCP:$address:9001" -)"
    done
}

big_page() {
    equal "$(get --max-time 20 http://127.0.0.1:8080/big | sha256sum)" "$(get http://127.0.0.1:8080/big.sum)"
}

# Checks that neither a process nor a file of passt is left in DIRECTORY.
no_passt() {
    local left
    left=$(ps -e -o pid=,comm= | grep -E 'passt' || true; find "$1" -type s -o -name '*.pid' 2>/dev/null | grep passt || true)
    [ -z "$left" ] || { echo "left: $left" | tr '\n' ' '; return 1; }
}
