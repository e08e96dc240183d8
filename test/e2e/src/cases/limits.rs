//! Cases about limits and their warnings.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::sysctl;

use super::{OBEDIENT, expect, talk, tcp_server, udp_server};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::process::QuietMachine;
use crate::server;

pub(super) fn cases() -> Vec<Case> {
    [
        Case::both("limits.flows-at-one-time", 20, |context, family| {
            bites(context, family, "--max-flows", "5")
        }),
        Case::both("limits.new-flows-per-second", 20, |context, family| {
            bites(context, family, "--max-flow-rate", "5")
        }),
        Case::both("limits.udp-ports", 20, udp_ports),
        Case::both("limits.tcp-ports", 30, tcp_ports),
        Case::both("limits.reserved-udp-ports", 20, reserved_ports),
        Case::both("limits.bandwidth", 30, bandwidth),
    ]
    .into_iter()
    .flatten()
    .chain([Case::new("limits.three-hundred-instances", 300, many_instances).alone()])
    .map(Case::pontoon_only)
    .collect()
}

/// Number of instances of one user that run at the same time.
const INSTANCES: usize = 300;

/// Number of instances that are started at the same time.
const AT_ONCE: usize = 20;

/// Tests that more instances start and serve than a user may have inotify instances (`fs.inotify.max_user_instances`,
/// 128 by default).
fn many_instances(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let line = format!("$E2E guest tcp {server} peer >/dev/null 2>&1 && echo reached || echo refused");
    let begin = Instant::now();
    let mut running = Vec::new();
    while running.len() < INSTANCES {
        let some: Result<Vec<_>> = (0..AT_ONCE.min(INSTANCES - running.len()))
            .map(|_| network.run().shell(OBEDIENT).spawn())
            .collect();
        for one in some? {
            running.push(one.listening()?);
        }
    }
    eprintln!("{INSTANCES} started in {:?}", begin.elapsed());
    for one in running.iter_mut().step_by(INSTANCES / 10) {
        expect(&one.ask(&line)?, "reached")?;
    }
    expect(&running[INSTANCES - 1].ask(&line)?, "reached")?;

    let ours = context.program.processes();
    let mut kinds = std::collections::BTreeMap::<String, usize>::new();
    let mut descriptors = 0;
    for process in &ours {
        // Only root may list the descriptors of an engine.
        let Ok(entries) = std::fs::read_dir(format!("/proc/{}/fd", process.id())) else {
            continue;
        };
        for entry in entries {
            let target = std::fs::read_link(entry?.path())?;
            let kind = target.to_string_lossy().into_owned();
            let kind = kind.split_once(":[").map_or(kind.as_str(), |(kind, _)| kind);
            *kinds.entry(kind.to_owned()).or_default() += 1;
            descriptors += 1;
        }
    }
    let pss: u64 = ours
        .iter()
        .filter_map(|process| process.number("smaps_rollup", "Pss").ok())
        .sum();
    let each = |count: u64| count as f64 / INSTANCES as f64;
    eprintln!(
        "each: {} processes, {} descriptors, PSS {} KiB; of all: {kinds:?}",
        each(ours.len() as u64),
        each(descriptors),
        each(pss)
    );
    let limit: usize = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances")?
        .trim()
        .parse()?;
    let inotify = kinds.get("anon_inode:inotify").copied().unwrap_or(0);
    ensure!(
        inotify <= limit.min(INSTANCES),
        "{inotify} inotify instances, {limit} allowed"
    );
    Ok(())
}

/// Tests that twenty connections to a host that does not answer exceed the limit, which is logged once.
fn bites(context: &Context, family: Family, option: &str, limit: &str) -> Result<()> {
    let network = Network::new(context)?;
    let talk = talk()?;
    let nowhere = family.pick([203, 0, 113, 1].into(), "2001:db8:ffff::1".parse()?);
    let words = ["raw", "pending", &nowhere.to_string(), "20"].map(String::from);
    let run = network.run().options([option, limit]).guest(words).talk_to(&talk);
    run.text()?;
    let talk = std::fs::read_to_string(&talk)?;
    let warnings: Vec<_> = talk
        .lines()
        .filter(|line| line.contains("flows refused"))
        .collect();
    ensure!(
        warnings.len() == 1 && warnings[0].contains(&format!("{option} {limit}")),
        "warnings {warnings:?}:\n{talk}"
    );
    Ok(())
}

/// Tests that a guest that sends from every UDP port leaves three fourths of the ephemeral ports to other programs of
/// the host.
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
    running.send_line("end")?;
    running.finish()?;
    Ok(())
}

/// Tests that a guest with as many connections to one destination as possible leaves a fourth of the ephemeral ports
/// to other programs of the host, for connections to that destination and for listeners.
fn tcp_ports(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    sysctl("net/ipv4/ip_local_port_range", "40000 40099")?;
    let server = tcp_server(&network, family)?;
    let line = format!("$E2E guest load ports {server} 100");
    let mut running = network.run().shell(&line).spawn()?;
    let held = running.line()?;
    let (held, error) = held
        .split_once(' ')
        .context("the client printed no number of ports")?;
    expect(error, "Some(NetworkUnreachable)")?;
    let held: usize = held.parse()?;
    // The kernel selects the first 25 ports anywhere in the range, so a fourth of them is expected in the reserved
    // fourth.
    ensure!((75..=95).contains(&held), "the guest holds {held} ports");
    let listener = TcpListener::bind((family.unspecified(), 0)).context("bind to port 0")?;
    let connect = |_| TcpStream::connect(server).ok();
    let streams: Vec<TcpStream> = (0..100).map_while(connect).collect();
    // The listener of the test occupies one port.
    ensure!(
        streams.len() == 99 - held,
        "{} connections are left",
        streams.len()
    );
    drop((listener, streams, running));
    Ok(())
}

/// Tests that the guest's UDP endpoints use none of the host's reserved ports (`net.ipv4.ip_local_reserved_ports`).
fn reserved_ports(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    sysctl("net/ipv4/ip_local_port_range", "40000 40099")?;
    sysctl("net/ipv4/ip_local_reserved_ports", "40000-40049,40052-40099")?;
    let server = SocketAddr::new(network.server_address(family), 7100);
    network.server().enter(|| server::stun::start(server))?;
    for _ in 0..4 {
        let mapping = network
            .run()
            .guest(["udp", "mappings", &server.to_string(), "1"].map(String::from))
            .text()?;
        let from: SocketAddr = mapping.trim().parse()?;
        ensure!(
            [40_050, 40_051].contains(&from.port()),
            "the datagram has the source {from}"
        );
    }
    Ok(())
}

/// Tests that traffic beyond `--max-bandwidth` is delayed in both directions, and that none is lost.
fn bandwidth(context: &Context, family: Family) -> Result<()> {
    const LEN: u64 = 5_000_000;
    let network = Network::new(context)?;
    let server = tcp_server(&network, family)?;
    let machine = QuietMachine::begin()?;
    let run = network.run().options(["--max-bandwidth", "40M"]).shell(OBEDIENT);
    let mut guest = run.spawn()?.listening()?;
    for way in ["fetch", "put"] {
        let start = Instant::now();
        expect(
            &guest.ask(&format!("$E2E guest tcp {server} {way} 0 1 {LEN}"))?,
            "ok",
        )?;
        let took = start.elapsed();
        // The transfer takes a second at the limit, except the burst that is permitted after a pause.
        ensure!(
            took > Duration::from_millis(950),
            "{way}: {LEN} bytes in {took:?}"
        );
        machine.judge(
            took < Duration::from_secs(5),
            &format!("{way}: {LEN} bytes in {took:?}"),
        )?;
    }
    // The guest's kernel drops frames for which the queue of the interface has no room.
    let dropped = "awk '/tap0:/ { print $13 }' /proc/net/dev";
    expect(&guest.ask(dropped)?, "0")
}
