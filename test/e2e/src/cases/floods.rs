//! Cases about floods of frames by the guest: each flood is limited and counted, and no other flow breaks.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{expect, talk, tcp_server};
use crate::case::{Case, Context, Family};
use crate::counters::{self, Counters};
use crate::guest::tcp;
use crate::network::Network;
use crate::process::QuietMachine;
use crate::{process, server};

/// Kinds of floods: name, address family, and the counter that increases when the flood has arrived.
const FLOODS: [(&str, Family, &str); 8] = [
    ("refused", Family::V4, "tcp_connect_failed"),
    ("pending", Family::V6, "frames_up"),
    ("sweep", Family::V6, "udp_up"),
    ("sources", Family::V4, "udp_up"),
    ("fragments", Family::V6, "fragments_dropped"),
    ("queries", Family::V4, "dns_queries"),
    ("arp", Family::V4, "frames_up"),
    ("solicitations", Family::V6, "frames_up"),
];

/// Limit on the resident memory of all processes: flow slots up to the limit on flows, pools, and the program, in
/// KiB.
const RSS_LIMIT_KIB: u64 = 192 * 1024;

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = FLOODS
        .into_iter()
        .map(|(kind, family, counter)| {
            Case::new(&format!("floods.{kind}"), 60, move |context| {
                flood(context, family, kind, counter)
            })
        })
        .collect();
    cases.extend(Case::both("floods.slow-clients", 60, slow_clients));
    cases
        .into_iter()
        .map(Case::alone)
        .map(Case::pontoon_only)
        .collect()
}

/// Tests that thousands of clients of a published port which never complete their request do not disturb other
/// clients.
fn slow_clients(context: &Context, family: Family) -> Result<()> {
    const CLIENTS: usize = 3000;
    let network = Network::new(context)?;
    let inside = SocketAddr::new(family.unspecified(), 80);
    let published = SocketAddr::new(network.host_address(family), 8080);
    let run = network.run().options(["--publish", "8080:80"]);
    let _guest = run
        .guest(["serve", &format!("tcp:{inside}")])
        .spawn()?
        .listening()?;
    let ask = |words: &[&str]| network.server().enter(|| tcp::command(published, words));
    expect(&ask(&["connects", "5"])?, "ok")?;
    let engine = context.program.engine()?;
    let before = engine.descriptors()?;
    let slow = network.server().enter(|| {
        let begin = |_| -> Result<TcpStream> {
            let mut stream = TcpStream::connect(published)?;
            stream.write_all(b"ech")?;
            Ok(stream)
        };
        (0..CLIENTS).map(begin).collect::<Result<Vec<_>>>()
    })?;
    expect(&ask(&["connects", "50"])?, "ok")?;
    expect(&ask(&["put", "0", "31", "16777216"])?, "ok")?;
    let resident = engine.number("status", "VmRSS")?;
    eprintln!("{CLIENTS} slow clients: the engine has {resident} KiB");
    ensure!(
        resident <= RSS_LIMIT_KIB,
        "the program has {resident} KiB of resident memory"
    );
    drop(slow);
    process::wait_until(
        "the engine has closed the descriptors of all flows",
        Duration::from_secs(10),
        || Ok(engine.descriptors()? <= before),
    )?;
    Ok(())
}

fn flood(context: &Context, family: Family, kind: &str, counter: &str) -> Result<()> {
    let network = Network::new(context)?;
    let talk = talk()?;
    let server = tcp_server(&network, family)?;
    let resolver = SocketAddr::new(server.ip(), 53);
    network.server().enter(|| server::dns::start(resolver))?;
    // The far end does not forward, so packets that are routed through it are never answered.
    let nowhere = family.pick([203, 0, 113, 1].into(), "2001:db8:ffff::1".parse()?);
    let run = network
        .run()
        .options([counters::LOGGED, "--dns", &resolver.ip().to_string()])
        .talk_to(&talk);
    let line = format!("$E2E guest flood {kind} {server} {nowhere} && read end");
    let machine = QuietMachine::begin()?;
    let mut running = run.shell(&line).spawn()?;
    let figures = running.line()?;
    let resident = context.program.resident_kib()?;
    eprintln!("{kind}: {figures} (p99 in us), resident {resident} KiB");
    running.send_line("end")?;
    running.finish()?;
    ensure!(
        resident <= RSS_LIMIT_KIB,
        "the program has {resident} KiB of resident memory"
    );
    let counters = Counters::read(&talk)?;
    ensure!(
        counters.count(counter) > 0,
        "the counter {counter} was not increased"
    );
    counters.expect("panics", 0)?;
    counters.expect("sandbox_refused", 0)?;
    let p99 = |name: &str| -> Result<u64> {
        let mut words = figures.split(' ').skip_while(|word| *word != name);
        Ok(words.nth(1).with_context(|| format!("no {name}"))?.parse()?)
    };
    let (quiet, limit) = (p99("quiet")?, p99("limit")?);
    for when in ["settled", "tenth"] {
        let now = p99(when)?;
        machine.judge(
            now <= limit,
            &format!("round trip p99 went from {quiet} to {now} us: {when}"),
        )?;
    }
    Ok(())
}
