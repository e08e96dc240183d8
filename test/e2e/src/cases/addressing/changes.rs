//! Cases about changes of the host's addresses while a guest runs, and their effects on flows, policy and mapped
//! addresses.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use pontoon_netns::{add_address, ip};

use super::super::{OBEDIENT, expect};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::run::RunningProgram;
use crate::{process, server};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (plan, options) in PLANS {
        cases.extend(Case::both(
            &format!("addressing.gained-address-resets-flows-{plan}"),
            30,
            move |context, family| gained(context, family, options),
        ));
        cases.extend(Case::both(
            &format!("addressing.lost-addresses-unmap-the-host-{plan}"),
            30,
            move |context, family| lost(context, family, options),
        ));
    }
    cases
}

const PLANS: [(&str, &[&str]); 2] = [("private", &[]), ("host", &["--addressing", "host"])];

/// Time limit for a change to reach the engine.
const LIMIT: Duration = Duration::from_secs(5);

/// Waits until the guest's shell prints `wanted` for `line`.
fn soon(guest: &mut RunningProgram, what: &str, line: &str, wanted: &str) -> Result<()> {
    process::wait_until(what, LIMIT, || Ok(guest.ask(line)? == wanted))?;
    Ok(())
}

/// Tests that a connection to an address that the host gains is reset, and that the address is refused like the host's
/// others, for TCP and UDP.
fn gained(context: &Context, family: Family, options: &[&str]) -> Result<()> {
    let network = Network::new(context)?;
    let remote: IpAddr = family.pick([203, 0, 113, 7].into(), "2001:db8:ff::7".parse()?);
    let prefix = format!("{remote}/{}", if remote.is_ipv4() { 32 } else { 128 });
    let to = SocketAddr::new(remote, 7000);
    network.server().enter(|| {
        add_address("lo", &prefix)?;
        server::tcp::start(to)?;
        server::udp::start(to)
    })?;
    let everywhere = SocketAddr::new(family.unspecified(), 7000);
    server::tcp::start(everywhere)?;
    server::udp::start(everywhere)?;
    let run = network.run().options(options).shell(OBEDIENT);
    let mut guest = run.spawn()?.listening()?;
    let udp = format!("$E2E guest udp peer {to} 2>/dev/null || echo no");
    expect(&guest.ask(&udp)?, "ok")?;
    expect(&guest.ask(&format!("$E2E guest tcp {to} waits"))?, "waiting")?;
    add_address("lo", &prefix)?;
    expect(&guest.line()?, "reset")?;
    let tcp = format!("$E2E guest tcp {to} peer >/dev/null 2>&1 && echo reached || echo not");
    expect(&guest.ask(&tcp)?, "not")?;
    expect(&guest.ask(&udp)?, "no")
}

/// Tests that the mapped address reaches the host until the host has lost its last address of the family, and again
/// when it has another. An existing connection is reset.
fn lost(context: &Context, family: Family, options: &[&str]) -> Result<()> {
    let network = Network::new(context)?;
    server::tcp::start(SocketAddr::new(family.unspecified(), 7000))?;
    let mapped = family.pick([169, 254, 1, 2].into(), "fd00:1::2".parse()?);
    let to = SocketAddr::new(mapped, 7000);
    let run = network
        .run()
        .options(options)
        .options(["--map-host", &mapped.to_string()]);
    let mut guest = run.shell(OBEDIENT).spawn()?.listening()?;
    let tcp = format!("$E2E guest tcp {to} peer >/dev/null 2>&1 && echo reached || echo not");
    expect(&guest.ask(&tcp)?, "reached")?;
    expect(&guest.ask(&format!("$E2E guest tcp {to} waits"))?, "waiting")?;
    let own = network.host_address(family);
    let width = if family == Family::V4 { 24 } else { 64 };
    ip(&format!("address del {own}/{width} dev net0"))?;
    expect(&guest.line()?, "reset")?;
    soon(&mut guest, "the mapped address is refused", &tcp, "not")?;
    add_address("net0", &format!("{own}/{width}"))?;
    ip(&format!(
        "route replace default via {}",
        network.server_address(family)
    ))?;
    soon(&mut guest, "the mapped address is reached", &tcp, "reached")?;
    let direct = SocketAddr::new(own, 7000);
    let direct = format!("$E2E guest tcp {direct} peer >/dev/null 2>&1 && echo reached || echo not");
    expect(&guest.ask(&direct)?, "not")
}
