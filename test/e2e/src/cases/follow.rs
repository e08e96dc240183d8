//! Cases about changes of the host's network while a guest runs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use pontoon_netns::{add_address, ip};

use super::OBEDIENT;
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::process;
use crate::run::RunningProgram;
use crate::server;

/// TCP port of the servers in the host's network.
const PORT: u16 = 7000;

pub(super) fn cases() -> Vec<Case> {
    [
        Case::both("follow.default-route", 30, default_route),
        Case::both("follow.late-network", 30, late_network),
        Case::both("follow.own-addresses", 30, own_addresses),
        Case::both("follow.pending-connect", 30, pending_connect),
    ]
    .into_iter()
    .flatten()
    .map(Case::pontoon_only)
    .collect()
}

/// Returns an address behind the far end, to which only a default route leads.
fn behind(family: Family) -> IpAddr {
    family.pick(
        Ipv4Addr::new(203, 0, 113, 7),
        Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 7),
    )
}

/// Returns `address` as a prefix that contains only this address, for `ip`.
fn host_route(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// Returns a network with a server at the address [`behind`].
fn scene(context: &Context, family: Family) -> Result<Network<'_>> {
    let network = Network::new(context)?;
    network.server().enter(|| {
        add_address("lo", &host_route(behind(family)))?;
        server::tcp::start(SocketAddr::new(behind(family), PORT))
    })?;
    Ok(network)
}

fn guest(network: &Network<'_>) -> Result<RunningProgram> {
    let run = network
        .run()
        .options(["--connect-timeout", "500ms"])
        .shell(OBEDIENT);
    run.spawn()?.listening()
}

fn reaches(guest: &mut RunningProgram, address: IpAddr) -> Result<bool> {
    let to = SocketAddr::new(address, PORT);
    let line = format!("$E2E guest tcp {to} peer >/dev/null 2>&1 && echo reached || echo not");
    Ok(guest.ask(&line)? == "reached")
}

/// Checks that the guest reaches `address` within two seconds, as the guest's kernel may have to process the change
/// as well.
fn soon_reaches(guest: &mut RunningProgram, address: IpAddr) -> Result<()> {
    process::wait_until("the far end is reached", Duration::from_secs(2), || {
        reaches(guest, address)
    })?;
    Ok(())
}

/// Tests that the guest uses the host's new default route, through another neighbour.
fn default_route(context: &Context, family: Family) -> Result<()> {
    let network = scene(context, family)?;
    let nowhere = family.pick([198, 51, 100, 9].into(), "2001:db8:1::9".parse()?);
    ip(&format!("route replace default via {nowhere}"))?;
    let mut guest = guest(&network)?;
    ensure!(
        !reaches(&mut guest, behind(family))?,
        "reached by a gateway that does not exist"
    );
    ip(&format!(
        "route replace default via {}",
        network.server_address(family)
    ))?;
    soon_reaches(&mut guest, behind(family))
}

/// Tests a guest that is started when the host has only its loopback, gets a network, loses it, and gets it again.
fn late_network(context: &Context, family: Family) -> Result<()> {
    let network = scene(context, family)?;
    let own = network.host_address(family);
    let width = if family == Family::V4 { 24 } else { 64 };
    let down = || {
        ip("address flush dev net0")?;
        ip("link set net0 down")
    };
    down()?;
    let mut guest = guest(&network)?;
    for _ in 0..2 {
        ensure!(
            !reaches(&mut guest, behind(family))?,
            "the guest has reached an address although the host has no network"
        );
        ip("link set net0 up")?;
        add_address("net0", &format!("{own}/{width}"))?;
        ip(&format!(
            "route add default via {}",
            network.server_address(family)
        ))?;
        soon_reaches(&mut guest, behind(family))?;
        down()?;
    }
    Ok(())
}

/// Tests that an address that the host gets while the guest runs is refused like the host's earlier addresses.
fn own_addresses(context: &Context, family: Family) -> Result<()> {
    let network = scene(context, family)?;
    server::tcp::start(SocketAddr::new(family.unspecified(), PORT))?;
    let mut guest = guest(&network)?;
    soon_reaches(&mut guest, behind(family))?;
    let added = family.pick([192, 0, 2, 5].into(), "2001:db8:fe::5".parse()?);
    add_address("lo", &host_route(added))?;
    // Waits until the supervisor has sent the new address to the engine.
    process::wait_until(
        "the host's new address is refused",
        Duration::from_secs(5),
        || Ok(!reaches(&mut guest, added)?),
    )?;
    ensure!(
        !reaches(&mut guest, added)?,
        "the host is reached by its new address"
    );
    Ok(())
}

/// Tests a connect that is pending without a reply when the host gets its destination address: the kernel delivers
/// the next SYN to the host itself, and the engine must not connect the guest to it.
fn pending_connect(context: &Context, family: Family) -> Result<()> {
    let network = scene(context, family)?;
    server::tcp::start(SocketAddr::new(family.unspecified(), PORT))?;
    let run = network
        .run()
        .options(["--connect-timeout", "10s"])
        .shell(OBEDIENT);
    let mut guest = run.spawn()?.listening()?;
    soon_reaches(&mut guest, behind(family))?;
    let added: IpAddr = family.pick([192, 0, 2, 5].into(), "2001:db8:fe::5".parse()?);
    let to = SocketAddr::new(added, PORT);
    // The far end drops packets to this address, so the connect stays pending.
    guest.send_line(&format!(
        "timeout 8 $E2E guest tcp {to} peer >/dev/null 2>&1 && echo reached || echo not"
    ))?;
    process::wait_until("the engine's connect is pending", Duration::from_secs(5), || {
        is_connecting(family, PORT)
    })?;
    add_address("lo", &host_route(added))?;
    ensure!(guest.line()? == "not", "the host is reached by a pending connect");
    Ok(())
}

/// Returns true if the host has a TCP socket in SYN-SENT to `port` (/proc/net/tcp, `TCP_SYN_SENT`).
fn is_connecting(family: Family, port: u16) -> Result<bool> {
    let sockets = std::fs::read_to_string(match family {
        Family::V4 => "/proc/self/net/tcp",
        Family::V6 => "/proc/self/net/tcp6",
    })?;
    let remote = format!(":{port:04X}");
    Ok(sockets.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        matches!(fields[..], [_, _, to, "02", ..] if to.ends_with(&remote))
    }))
}
