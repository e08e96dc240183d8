#!/bin/bash
# Runs a command in the machine of a test, over one of its serial ports. Arguments: directory of the ports' sockets, words
# of the command. Nine sockets of ports are named 1 to 9. The machine runs passt-guest-init.sh.
directory=$1
shift
for port in 1 2 3 4 5 6 7 8 9; do
    exec {lock}>"$directory/lock.$port"
    flock -n $lock && break
    exec {lock}>&-
    [ $port != 9 ] || { echo "no free port" >&2; exit 125; }
done
token=$$.$RANDOM
coproc port { exec socat - "UNIX-CONNECT:$directory/$port"; }
trap 'kill $port_PID 2>/dev/null' EXIT
printf '%s %s\n' "$token" "$(base64 -w 0 <<<"$*")" >&"${port[1]}"
while read -r given status output errors <&"${port[0]}"; do
    [ "$given" = "$token" ] || continue
    base64 -d <<<"${output#.}"
    base64 -d <<<"${errors#.}" >&2
    exit "$status"
done
echo "the machine has closed the port" >&2
exit 125
