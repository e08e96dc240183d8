# libvirt with the passt backend, in a session daemon.
. /run/scripts/machine.sh

STATE=$XDG_RUNTIME_DIR/libvirt/qemu/run/passt

# Prints the options for an interface of the domain: KIND, ALIAS (net0), and elements.
interface() {
    local type=user
    [ "$1" = stream ] || type=vhostuser
    echo "<interface type='$type'><mac address='52:54:00:12:34:5${2#net}'/>"
    echo "<backend type='passt' hostname='machine'/><model type='virtio'/>$3</interface>"
}

# Prints the domain with a passt of KIND, stream or vhost-user: the second interface has an address of its own.
domain() {
    local memory=
    [ "$1" = stream ] || memory="<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"
    cat <<END
<domain type='qemu'>
  <name>machine</name>
  <memory unit='MiB'>512</memory>$memory
  <vcpu>2</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/run/machine/vmlinuz</kernel><initrd>/run/machine/initrd</initrd>
    <cmdline>$KERNEL_ARGUMENTS</cmdline>
  </os>
  <features><acpi/></features>
  <on_reboot>restart</on_reboot>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <serial type='file'><source path='$HOME/console'/></serial>
    $(interface "$1" net0 "
        <portForward proto='tcp'><range start='8080' to='80'/><range start='9000' end='9001'/></portForward>
        <portForward proto='udp' address='192.0.2.1'><range start='8080' to='7'/></portForward>
        <portForward proto='tcp' address='127.0.0.1'>
            <range start='8100' end='8102' to='80'/><range start='8101' exclude='yes'/></portForward>")
    $(interface "$1" net1 "
        <ip family='ipv4' address='10.9.0.5' prefix='24'/><route family='ipv4' gateway='10.9.0.1'/>
        <portForward proto='tcp'><range start='8090' to='80'/></portForward>")
  </devices>
</domain>
END
}

# Checks the ports of the domain's other specifications.
specifications() {
    check in.range prints machine get http://127.0.0.1:8100/
    refused in.excluded get http://127.0.0.1:8101/
    check in.range-end prints machine get http://127.0.0.1:8102/
    refused in.other-address get http://192.0.2.1:8100/
    check in.second prints machine get http://127.0.0.1:8090/
}

# Prints the command lines of the processes of passt whose files of the process id are in DIRECTORY.
command_lines() {
    local file
    for file in "$1"/*.pid; do
        tr '\0' ' ' <"/proc/$(cat "$file")/cmdline" | sed 's/^[^ ]* //'
        echo
    done
}

stream() {
    domain_with stream
}

vhost_user() {
    domain_with vhost-user
}

domain_with() {
    local daemon boot pids
    mkdir -p "$HOME/.config/libvirt"
    echo 'stdio_handler = "file"' >"$HOME/.config/libvirt/qemu.conf"
    libvirtd 3>&- &
    daemon=$!
    check daemon within 20 virsh version
    domain "$1" >"$HOME/domain.xml"
    interface "$1" net1 "<ip family='ipv4' address='10.9.0.5' prefix='24'/>" >"$HOME/second.xml"
    check define virsh define "$HOME/domain.xml"
    check start virsh start machine
    value command-lines "$(command_lines "$STATE")"
    boot=$(booted '')
    check boot test -n "$boot"
    [ -n "$boot" ] || return 1
    outbound boot
    inbound boot
    sources
    specifications
    check suspend sh -c 'virsh suspend machine && sleep 1 && virsh resume machine'
    check suspended.in prints machine get http://127.0.0.1:8080/

    pids=$(cat "$STATE"/*.pid)
    check reboot virsh reboot machine
    check rebooted booted "$boot"
    check passt-stays prints "$pids" cat "$STATE"/*.pid
    outbound reboot
    inbound reboot

    kill -KILL $(cat "$STATE"/*net0*.pid)
    check restarted within 30 prints machine get http://127.0.0.1:8080/
    outbound restart

    check detach virsh detach-device machine "$HOME/second.xml"
    check detached within 20 sh -c "[ \"\$(ls '$STATE'/*.pid | wc -l)\" = 1 ]"
    refused detached.in get http://127.0.0.1:8090/
    cat "$HOME"/.cache/libvirt/qemu/log/*.log
    check destroy virsh destroy machine
    check destroyed within 10 no_passt "$STATE"
    refused destroyed.in get http://127.0.0.1:8080/

    check start-again virsh start machine
    check booted-again booted ''
    inbound again
    check shutdown virsh shutdown machine
    check shut-off within 30 sh -c '[ "$(virsh domstate machine)" = "shut off" ]'
    check no-passt within 10 no_passt "$STATE"
    check undefine virsh undefine machine
    end $daemon
    cat "$HOME/console" "$HOME"/.cache/libvirt/qemu/log/*.log
}
