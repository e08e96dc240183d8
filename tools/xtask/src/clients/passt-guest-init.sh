#!/bin/busybox sh
# The first process of the machine of passt's tests. It executes commands that arrive at its serial ports, each at most 45 s.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
    insmod "/modules/$module.ko"
done </modules/order
hostname guest
ip link set lo up
export HOME=/root PATH=/bin:/sbin

# Executes the commands of a port: lines of a token and the command in base64. A reply has the token, the exit status, and
# both outputs in base64, each after a dot.
serve() {
    exec 3<>"$1"
    while :; do
        if read -r token command <&3; then
            echo "$command" | base64 -d >"/tmp/$2"
            cd /root
            timeout 45 /bin/sh "/tmp/$2" >"/tmp/$2.out" 2>"/tmp/$2.err" </dev/null
            status=$?
            echo "$token $status .$(base64 -w 0 "/tmp/$2.out") .$(base64 -w 0 "/tmp/$2.err")" >&3
        else
            sleep 0.05
        fi
    done
}

until [ "$(ls /dev/vport* 2>/dev/null | wc -l)" -ge 9 ]; do
    sleep 0.1
done
for port in /dev/vport*; do
    serve "$port" "${port#/dev/}" &
done
wait
