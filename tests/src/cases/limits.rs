//! Limits, and that they are told of.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{OBEDIENT, expect, talk, tcp_server, udp_server};
use crate::case::{Case, Context, Family};
use crate::network::{Network, sysctl};

pub(super) fn cases() -> Vec<Case> {
    [
        Case::both("limits.flows-at-one-time", 20, |context, family| {
            bites(context, family, "--max-flows", "5")
        }),
        Case::both("limits.new-flows-per-second", 20, |context, family| {
            bites(context, family, "--max-flow-rate", "5")
        }),
        Case::both("limits.udp-ports", 20, udp_ports),
        Case::both("limits.bandwidth", 30, bandwidth),
    ]
    .into_iter()
    .flatten()
    .map(Case::pontoon_only)
    .collect()
}

/// Twenty connections to where nobody answers are too many, which is said once.
fn bites(context: &Context, family: Family, option: &str, limit: &str) -> Result<()> {
    let network = Network::new(context)?;
    let talk = talk()?;
    let nowhere = family.pick([203, 0, 113, 1].into(), "2001:db8:ffff::1".parse()?);
    let words = ["raw", "pending", &nowhere.to_string(), "20"].map(String::from);
    let run = network.run().options([option, limit]).guest(words).talk_to(&talk);
    run.text()?;
    let talk = std::fs::read_to_string(&talk)?;
    let told: Vec<_> = talk
        .lines()
        .filter(|line| line.contains("flows refused"))
        .collect();
    ensure!(
        told.len() == 1 && told[0].contains(&format!("{option} {limit}")),
        "told {told:?}:\n{talk}"
    );
    Ok(())
}

/// A guest that sends from every port leaves the host's other programs three fourths of the ephemeral ports.
fn udp_ports(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    sysctl("net/ipv4/ip_local_port_range", "40000 40099")?;
    let server = udp_server(&network, family)?;
    let line = format!("$E2E guest udp ports {server} 300 && read end");
    let mut running = network.run().shell(&line).spawn()?;
    expect(&running.line()?, "ok")?;
    let bind = |_| UdpSocket::bind((family.unspecified(), 0)).ok();
    let sockets: Vec<UdpSocket> = (0..100).map_while(bind).collect();
    ensure!(
        (70..=80).contains(&sockets.len()),
        "{} ports are left",
        sockets.len()
    );
    drop(sockets);
    running.tell("end")?;
    running.finish()?;
    Ok(())
}

/// What is too fast waits, up and down, and none of it is lost.
fn bandwidth(context: &Context, family: Family) -> Result<()> {
    const LEN: u64 = 5_000_000;
    let network = Network::new(context)?;
    let server = tcp_server(&network, family)?;
    let run = network.run().options(["--max-bandwidth", "40M"]).shell(OBEDIENT);
    let mut guest = run.spawn()?.listening()?;
    for way in ["fetch", "put"] {
        let start = Instant::now();
        expect(
            &guest.ask(&format!("$E2E guest tcp {server} {way} 0 1 {LEN}"))?,
            "ok",
        )?;
        let took = start.elapsed();
        // It takes a second, but for what may pass at once after a rest.
        ensure!(
            took > Duration::from_millis(950),
            "{way}: {LEN} bytes in {took:?}"
        );
        ensure!(took < Duration::from_secs(5), "{way}: {LEN} bytes in {took:?}");
    }
    // The guest's kernel drops what finds no room in the interface's queue.
    let dropped = "awk '/tap0:/ { print $13 }' /proc/net/dev";
    expect(&guest.ask(dropped)?, "0")
}
