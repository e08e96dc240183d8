# Sends the name of each probe to its destination, 40 at a time: standard input has lines of name, and address for socat.
probe() {
    # The second datagram is for a first one that was lost.
    (echo "$1"; sleep 1; echo "$1"; sleep 1) | timeout 4 socat -T 3 - "$2" >/dev/null 2>&1
}

count=0
while read -r name address; do
    probe "$name" "$address" </dev/null &
    count=$((count + 1))
    [ $((count % 40)) != 0 ] || wait
done
wait
