//! The host's network changes while a guest runs.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::case::{Case, Context, Family};
use crate::network::{self, Network};
use crate::run::Running;
use crate::server;

/// What the servers listen on.
const PORT: u16 = 7000;

/// An address behind the far end, which only a default route leads to.
const BEHIND: &str = "203.0.113.7";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("follow.default-route", 30, default_route),
        Case::new("follow.late-network", 30, late_network),
        Case::new("follow.own-addresses", 30, own_addresses),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

/// A network with a server at [`BEHIND`].
fn scene(context: &Context) -> Result<Network<'_>> {
    let network = Network::new(context)?;
    network.server().enter(|| {
        network::add_address("lo", &format!("{BEHIND}/32"))?;
        server::tcp::start(SocketAddr::new(BEHIND.parse()?, PORT))
    })?;
    Ok(network)
}

fn guest(network: &Network<'_>) -> Result<Running> {
    let shell = "echo listening; while read -r line; do eval \"$line\"; done";
    let run = network.run().options(["--connect-timeout", "500ms"]).shell(shell);
    run.spawn()?.listening()
}

fn reaches(guest: &mut Running, address: &str) -> Result<bool> {
    let line = format!("$E2E guest tcp {address}:{PORT} peer >/dev/null 2>&1 && echo reached || echo not");
    Ok(guest.ask(&line)? == "reached")
}

/// The way out moves to another neighbour.
fn default_route(context: &Context) -> Result<()> {
    let network = scene(context)?;
    // Nobody is there.
    network::ip("route replace default via 198.51.100.9")?;
    let mut guest = guest(&network)?;
    ensure!(!reaches(&mut guest, BEHIND)?, "reached by way of nobody");
    network::ip("route replace default via 198.51.100.2")?;
    ensure!(reaches(&mut guest, BEHIND)?, "not reached by the new route");
    Ok(())
}

/// The host has nothing but its loopback when the guest starts.
fn late_network(context: &Context) -> Result<()> {
    let network = scene(context)?;
    network::ip("address flush dev net0")?;
    network::ip("link set net0 down")?;
    let mut guest = guest(&network)?;
    ensure!(!reaches(&mut guest, BEHIND)?, "reached without a network");
    network::ip("link set net0 up")?;
    let own = network.host_address(Family::V4);
    network::add_address("net0", &format!("{own}/24"))?;
    network::ip("route add default via 198.51.100.2")?;
    ensure!(reaches(&mut guest, BEHIND)?, "not reached by the new network");
    Ok(())
}

/// An address that the host gets while the guest runs is as closed as those that it had.
fn own_addresses(context: &Context) -> Result<()> {
    let network = scene(context)?;
    server::tcp::start(SocketAddr::new(Family::V4.unspecified(), PORT))?;
    let mut guest = guest(&network)?;
    ensure!(reaches(&mut guest, BEHIND)?, "the far end is not reached");
    network::add_address("lo", "192.0.2.5/32")?;
    // The engine hears of it from the supervisor.
    std::thread::sleep(Duration::from_millis(200));
    ensure!(
        !reaches(&mut guest, "192.0.2.5")?,
        "the host is reached by its new address"
    );
    Ok(())
}
