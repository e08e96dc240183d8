//! Cases about the network interface or socket to which `slirp4netns` attaches.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::carrier::{Framing, dial};
use crate::case::{Context, Family};
use crate::cases::lifecycle::nothing_left;
use crate::cases::shell::Shell;
use crate::cases::{expect, tcp_server, udp_server};
use crate::guest::tcp;
use crate::machine::TapGuest;
use crate::network::Network;

/// Tests an existing tap with addresses, as RootlessKit creates it; the program does not change it.
pub(super) fn existing_tap(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let tcp = tcp_server(&network, Family::V4)?;
    let udp = udp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.tap()?;
    let show = "ip -oneline address show dev tap0 scope global; ip link show tap0 | grep link/; ip route show default";
    let before = shell.inside(show)?;
    ensure!(
        before.contains("10.0.2.100/24") && before.contains("02:11:22:33:44:55"),
        "{before}"
    );
    shell.slirp(
        "--mtu 65520 --disable-host-loopback --api-socket /mnt/api --enable-sandbox --enable-seccomp $holder tap0",
    )?;
    // The guest has sent nothing yet, so the engine knows its Ethernet address from the tap.
    let nsenter = shell.nsenter;
    shell.run(&format!(
        "coproc nsenter {nsenter} --net --target $holder $E2E guest serve tcp:0.0.0.0:80; read -r -u ${{COPROC[0]}}"
    ))?;
    let add = r#"{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_port":8080,"guest_addr":"10.0.2.100","guest_port":80}}"#;
    expect(&shell.api(add)?, r#"{"return":{"id":1}}"#)?;
    let published = SocketAddr::new(network.host_address(Family::V4), 8080);
    let peer = network.server().enter(|| tcp::command(published, &["peer"]))?;
    ensure!(
        peer.starts_with("198.51.100.2"),
        "the guest sees the client {peer}"
    );

    let peer = shell.inside(&format!("$E2E guest tcp {tcp} peer"))?;
    ensure!(
        peer.starts_with("198.51.100.1"),
        "the server sees the client {peer}"
    );
    expect(
        &shell.inside(&format!("$E2E guest tcp {tcp} put 0 7 1000000"))?,
        "ok",
    )?;
    let text = shell.inside(&format!("$E2E guest udp peer {udp}"))?;
    expect(&text, "ok")?;

    expect(&shell.end("TERM")?, "0")?;
    // The tap is as it was.
    let after = shell.inside(show)?;
    ensure!(after == before, "before: {before}\n after: {after}");
    // Another instance attaches to the tap.
    shell.slirp("$holder tap0")?;
    expect(&shell.inside(&format!("$E2E guest tcp {tcp} connects 3"))?, "ok")?;
    shell.run("kill ${COPROC_PID}")?;
    // The program exits when the process of the namespace exits.
    shell.run("kill $holder; wait $slirp")?;
    drop(shell);
    nothing_left()
}

/// Tests that a second instance at one tap fails with one error line.
pub(super) fn tap_in_use(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.tap()?;
    shell.slirp("$holder tap0")?;
    let second = "$SLIRP $holder tap0 2>&1 >/dev/null; echo status $?";
    let text = shell.ask(&format!("echo $({second})"))?;
    // The text of EBUSY depends on the C library.
    ensure!(
        text.matches("error: ").count() == 1
            && text.contains("cannot attach to tap \"tap0\": ")
            && text.contains("resource busy (try: ")
            && text.ends_with(" status 1"),
        "{text}"
    );
    // Another kind of interface has the name.
    expect(&shell.inside("ip tuntap add name tap1 mode tun")?, "")?;
    let text = shell.ask(&format!("echo $({})", second.replace("tap0", "tap1")))?;
    ensure!(
        text.contains("cannot attach to tap \"tap1\": invalid") && text.ends_with(" status 1"),
        "{text}"
    );
    expect(&shell.end("TERM")?, "0")?;
    shell.finish()
}

pub(super) fn configure_by_pid(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.slirp("-c --macaddress 0e:d4:18:d9:38:fb $holder tap11")?;
    let text = shell.inside("ip -4 -oneline address show; ip link show tap11; ip route")?;
    for part in [
        "lo inet 127.0.0.1/8",
        "tap11 inet 10.0.2.100/24",
        "link/ether 0e:d4:18:d9:38:fb",
        "mtu 1500",
        "default via 10.0.2.2 dev tap11",
    ] {
        ensure!(text.contains(part), "no {part}: {text}");
    }
    expect(
        &shell.inside(&format!("$E2E guest tcp {server} connects 3"))?,
        "ok",
    )?;
    // Without --enable-ipv6 there is no IPv6 on the link.
    expect(&shell.inside("ip -6 address show dev tap11")?, "")?;
    expect(&shell.end("TERM")?, "0")?;
    expect(&shell.inside("ip link show tap11 2>/dev/null")?, "")?;
    shell.finish()
}

pub(super) fn configure_by_path(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let servers = [Family::V4, Family::V6].map(|family| tcp_server(&network, family));
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.slirp(
        "--cidr=10.0.135.128/25 --enable-ipv6 --mtu=65520 -c --userns-path=/proc/$holder/ns/user --netns-type=path \
         /proc/$holder/ns/net tap11",
    )?;
    let text =
        shell.inside("ip -oneline address show dev tap11; ip link show tap11; ip route; ip -6 route")?;
    for part in [
        "inet 10.0.135.228/25",
        "inet6 fd00::100/64",
        "mtu 65520",
        "default via 10.0.135.130 dev tap11",
        "default via fd00::2 dev tap11",
    ] {
        ensure!(text.contains(part), "no {part}: {text}");
    }
    for server in servers {
        expect(
            &shell.inside(&format!("$E2E guest tcp {} connects 3", server?))?,
            "ok",
        )?;
    }
    expect(&shell.end("TERM")?, "0")?;
    shell.finish()
}

/// Tests that a missing tap is created, and is not configured without `-c`.
pub(super) fn new_tap(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.slirp("$holder tap0")?;
    let text = shell.inside("ip -oneline address show; ip link show tap0")?;
    ensure!(text.contains("tap0: ") && !text.contains("inet"), "{text}");
    ensure!(text.contains("state DOWN") && !text.contains(",UP"), "{text}");
    // The owner of the namespace configures it later.
    let text = shell.inside(
        "ip address add 10.0.2.100/24 dev tap0; ip link set tap0 up; ip route add default via 10.0.2.2",
    )?;
    expect(&text, "")?;
    expect(
        &shell.inside(&format!("$E2E guest tcp {server} connects 3"))?,
        "ok",
    )?;
    expect(&shell.end("TERM")?, "0")?;
    shell.finish()
}

/// Tests `--target-type=bess`: the program is ready before User Mode Linux connects, and ends when it disconnects.
pub(super) fn bess(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.slirp("--target-type=bess /mnt/bess")?;
    let guest = TapGuest::at(dial(Path::new("/mnt/bess"), Framing::Packet)?, Framing::Packet)?;
    expect(&guest.dhcp4()?, "dhcp4 10.0.2.100/24 10.0.2.2 10.0.2.3 1500")?;
    let text = guest
        .namespace
        .enter(|| tcp::command(server, &["connects", "3"]))?;
    expect(&text, "ok")?;
    drop(guest);
    expect(&shell.ask("wait $slirp; echo $?")?, "0")?;
    drop(shell);
    nothing_left()
}
