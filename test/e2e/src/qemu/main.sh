#!/bin/sh
# Runs lines from the second serial port.
exec </dev/ttyS1 >/dev/ttyS1
stty raw -echo
echo ready
while read -r line; do
    eval "$line"
done
poweroff -f
