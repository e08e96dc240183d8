//! Cases about the destinations that a guest of `slirp4netns` reaches.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Result, ensure};
use pontoon_netns::{add_address, ip};

use crate::case::{Context, Family};
use crate::cases::expect;
use crate::cases::shell::Shell;
use crate::network::Network;
use crate::server;

/// Port of the servers of [`reached`].
const PORT: u16 = 7000;

/// Addresses by which a guest might reach the host's loopback, except the gateway's. `127.0.0.1` is 7f00:1.
const LOOPBACK: [&str; 15] = [
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "10.0.2.3",
    "10.0.2.255",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:7f00:1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "ff02::1",
    "fe80::2",
    "fd00::3",
];

/// Returns the probes over TCP and UDP to which a guest that builds its own frames receives a response. Servers listen
/// on all addresses of the host, one of which is that of a metadata service.
fn reached(context: &Context, options: &str) -> Result<Vec<String>> {
    let network = Network::new(context)?;
    // The sockets accept IPv4, too.
    let everywhere = SocketAddr::new(Family::V6.unspecified(), PORT);
    server::tcp::start(everywhere)?;
    server::udp::start(everywhere)?;
    let metadata = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));
    network.server().enter(|| {
        add_address("left", &format!("{metadata}/32"))?;
        server::tcp::start(SocketAddr::new(metadata, PORT))
    })?;
    ip(&format!(
        "route add {metadata} via {}",
        network.server_address(Family::V4)
    ))?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.slirp(&format!("-c -6 {options} $holder tap0"))?;
    let mut answered = Vec::new();
    for family in [Family::V4, Family::V6] {
        let own = network.host_address(family).to_string();
        let is_of_family = |text: &&str| text.parse::<Ipv6Addr>().is_ok() == (family == Family::V6);
        let targets: Vec<_> = LOOPBACK.into_iter().filter(is_of_family).collect();
        let metadata = metadata.to_string();
        let metadata = if family == Family::V4 {
            metadata.as_str()
        } else {
            ""
        };
        let text = shell.inside(&format!(
            "$E2E guest raw reach {} {PORT} gateway {own} {metadata} {} | tr \"\\n\" ,",
            family.suffix(),
            targets.join(" ")
        ))?;
        let lines = text
            .trim_end_matches(',')
            .split(',')
            .map(|line| line.replace("gateway", &format!("gateway-{}", family.suffix())));
        // The engine answers echo requests itself, and the case's namespaces permit no others.
        answered.extend(lines.filter(|line| line != "end" && !line.ends_with(" icmp")));
    }
    expect(&shell.end("TERM")?, "0")?;
    shell.finish()?;
    Ok(answered)
}

/// Tests the destinations that are reached by default: the host's loopback at the gateway's address, the host's own
/// addresses and metadata services.
pub(super) fn destinations(context: &Context) -> Result<()> {
    let answered = reached(context, "")?;
    let wanted = [
        "gateway-v4 tcp",
        "gateway-v4 udp",
        "198.51.100.1 tcp",
        "198.51.100.1 udp",
        "169.254.169.254 tcp",
        "gateway-v6 tcp",
        "gateway-v6 udp",
        "2001:db8:1::1 tcp",
        "2001:db8:1::1 udp",
    ];
    ensure!(answered == wanted, "answered: {answered:?}\n  wanted: {wanted:?}");
    Ok(())
}

pub(super) fn no_loopback(context: &Context) -> Result<()> {
    let answered = reached(context, "--disable-host-loopback")?;
    let wanted = [
        "198.51.100.1 tcp",
        "198.51.100.1 udp",
        "169.254.169.254 tcp",
        "2001:db8:1::1 tcp",
        "2001:db8:1::1 udp",
    ];
    ensure!(answered == wanted, "answered: {answered:?}\n  wanted: {wanted:?}");
    Ok(())
}
