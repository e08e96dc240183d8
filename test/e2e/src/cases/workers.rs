//! Cases about several workers: a packet may arrive at any queue, and is processed by the owner of its flow.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Result, ensure};

use super::{expect, talk, tcp_server, udp_server};
use crate::case::{Case, Context, Family};
use crate::counters::{self, Counters};
use crate::guest::tcp_load;
use crate::network::Network;
use crate::run::PontoonRun;
use crate::server;

/// Options of `pontoon run` for four workers.
pub(super) const OPTIONS: [&str; 2] = ["--workers", "4"];

/// Options of `pontoon run` for two workers.
pub(super) const TWO: [&str; 2] = ["--workers", "2"];

/// Number of connections that are idle for some time.
const FLOWS: usize = 1000;

/// Idle time in seconds, longer than the guest's kernel remembers the queue of a flow (3 s, `TUN_FLOW_EXPIRE`).
const SECONDS: u64 = 10;

pub(super) fn cases() -> Vec<Case> {
    [
        Case::both("workers.1000-accepted-flows-idle-for-10-s", 90, accepted),
        Case::both("workers.1000-opened-flows-idle-for-10-s", 90, opened),
        Case::both("workers.one-mapping-for-100-servers", 30, mapping),
        Case::both("workers.fragments-in-every-flow", 60, fragmented),
        Case::both("workers.refused", 20, refused),
    ]
    .into_iter()
    .flatten()
    .map(Case::pontoon_only)
    .collect()
}

/// Returns a `pontoon run` with several workers, which logs its counters to the file `talk`.
fn several<'a>(network: &'a Network<'_>, talk: &Path) -> PontoonRun<'a> {
    network
        .run()
        .options(OPTIONS)
        .options([counters::LOGGED])
        .talk_to(talk)
}

/// Checks that at least `at_least` frames were handed over between workers, as otherwise the case has tested nothing.
/// Returns the counters.
fn some_were_handed_over(talk: &Path, at_least: u64) -> Result<Counters> {
    let counters = Counters::read(talk)?;
    let count = counters.count("handed_over");
    ensure!(count >= at_least, "{count} frames were handed over");
    Ok(counters)
}

/// Tests connections of clients that are idle so long that the guest's kernel forgets their queue, and sends their
/// frames to the queue that the hash selects.
fn accepted(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let talk = talk()?;
    let inside = SocketAddr::new(family.unspecified(), 80);
    let guest = several(&network, &talk)
        .options(["--publish", "8080:80"])
        .shell(&format!("$E2E guest serve tcp:{inside} & read end; kill $!"))
        .spawn()?;
    let mut guest = guest.listening()?;
    let to = SocketAddr::new(network.host_address(family), 8080);
    network.server().enter(|| tcp_load::idle(to, FLOWS, SECONDS))?;
    guest.send_line("end")?;
    guest.finish()?;
    let counters = some_were_handed_over(&talk, FLOWS as u64)?;
    counters.expect("tcp_accepted", FLOWS as u64)?;
    counters.expect("tcp_unknown", 0)
}

/// Tests connections of the guest after idle time. They began at the worker that the hash selects, so no frame is
/// handed over. In the simulated network (`simnet`) frames of such flows arrive at any worker.
fn opened(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let talk = talk()?;
    let server = tcp_server(&network, family)?.to_string();
    let (flows, seconds) = (FLOWS.to_string(), SECONDS.to_string());
    let run = several(&network, &talk).guest(["load", "idle", &server, &flows, &seconds]);
    expect(&run.text()?, "ok")?;
    let counters = Counters::read(&talk)?;
    counters.expect("tcp_opened", FLOWS as u64)?;
    counters.expect("tcp_unknown", 0)
}

/// Tests endpoint-independent mapping (RFC 4787 REQ-1) when datagrams of one endpoint arrive at several queues.
fn mapping(context: &Context, family: Family) -> Result<()> {
    const SERVERS: u16 = 100;
    let network = Network::new(context)?;
    let talk = talk()?;
    let first = SocketAddr::new(network.server_address(family), 10_000);
    network.server().enter(|| {
        (0..SERVERS).try_for_each(|index| {
            server::stun::start(SocketAddr::new(first.ip(), first.port() + index)).map(|_| ())
        })
    })?;
    let run = several(&network, &talk).guest(["udp", "mappings", &first.to_string(), &SERVERS.to_string()]);
    run.text()?;
    some_were_handed_over(&talk, 10)?;
    Ok(())
}

fn fragmented(context: &Context, family: Family) -> Result<()> {
    const FLOWS: u64 = 100;
    let network = Network::new(context)?;
    let talk = talk()?;
    let server = udp_server(&network, family)?.to_string();
    let run = several(&network, &talk).options(["--mtu", "1500"]);
    let run = run.guest(["udp", "fragmented", &server, &FLOWS.to_string()]);
    expect(&run.text()?, "ok")?;
    let counters = some_were_handed_over(&talk, FLOWS)?;
    let whole = counters.count("reassembled");
    ensure!(whole >= FLOWS, "{whole} datagrams were put together");
    Ok(())
}

fn refused(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    for protocol in ["tcp", "udp"] {
        let closed = SocketAddr::new(network.server_address(family), 9).to_string();
        let words = match protocol {
            "tcp" => ["tcp", &closed, "refused"],
            _ => ["udp", "refused", &closed],
        };
        network.run().options(OPTIONS).guest(words).text()?;
    }
    Ok(())
}
