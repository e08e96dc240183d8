# QEMU with `-netdev passt`.
. /run/scripts/machine.sh

stream() {
    netdev_passt ''
}

vhost_user() {
    netdev_passt ,vhost-user=on
}

# Sends a line to the monitor of QEMU.
monitor() {
    echo "$1" | socat -t 1 - "UNIX-CONNECT:$HOME/monitor"
}

# Prints the process id of the passt that QEMU has started.
passt_of_qemu() {
    pgrep --oldest '^passt'
}

netdev_passt() {
    local machine boot pid ports=,tcp-ports=8080:80,tcp-ports=9000-9001,udp-ports=192.0.2.1/8080:7
    qemu-system-x86_64 -machine q35,memory-backend=memory -accel tcg -cpu max -smp 2 -m 512 -nodefaults -no-user-config \
        -object memory-backend-memfd,id=memory,size=512M,share=on -display none \
        -kernel /run/machine/vmlinuz -initrd /run/machine/initrd -append "$KERNEL_ARGUMENTS" \
        -chardev file,id=console,path="$HOME/console" -serial chardev:console \
        -chardev socket,id=monitor,path="$HOME/monitor",server=on,wait=off -mon chardev=monitor \
        -netdev passt,id=net$1$ports -device virtio-net-pci,netdev=net,mac=52:54:00:12:34:50,romfile= 3>&- &
    machine=$!
    within 10 test -S "$HOME/monitor"
    boot=$(booted '')
    check boot test -n "$boot"
    [ -n "$boot" ] || return 1
    pid=$(passt_of_qemu)
    value command-line "$(tr '\0' ' ' <"/proc/$pid/cmdline" | sed 's,^[^ ]* ,,; s,--pid [^ ]*,--pid FILE,')"
    outbound boot
    inbound boot
    sources
    monitor system_reset
    check rebooted booted "$boot"
    check passt-stays prints "$pid" passt_of_qemu
    outbound reboot

    kill -KILL "$pid"
    check restarted within 30 prints machine get http://127.0.0.1:8080/
    outbound restart
    inbound restart
    check quit end_of_qemu $machine
    check no-passt within 10 no_passt /tmp
    refused no-port get http://127.0.0.1:8080/
    cat "$HOME/console"
}

end_of_qemu() {
    monitor quit
    within 10 gone "$1"
}
