//! A case with all kinds of traffic at the same time, for a configurable time: nothing fails, and memory and
//! descriptors do not grow.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{expect, tcp_server, tmpfs, udp_server, wanted};
use crate::case::{Case, Context, Family};
use crate::counters::{self, Counters};
use crate::guest::{tcp, udp};
use crate::network::Network;
use crate::process;

/// Path of the control socket.
const CONTROL: &str = "/mnt/control";
/// Egress rules that permit all traffic of the case, in two versions that are loaded alternately.
const RULES: [(&str, &str); 2] = [
    ("/mnt/one.toml", "deny = [\"192.0.2.0/24\"]\n"),
    (
        "/mnt/other.toml",
        "deny = [\"203.0.113.0/24\", \"*.example.org\"]\n",
    ),
];

/// Number of UDP endpoints that exist: each lasts for 120 s after its last datagram, and one is opened every second.
const ENDPOINTS: u64 = 150;

/// Growth of memory in KiB, by pools and the allocator, that is accepted after the first third of the time.
const SETTLING_KIB: u64 = 8 * 1024;

pub(super) fn cases() -> Vec<Case> {
    let case = Case::new("soak.mixed-traffic", 90 + seconds(), soak);
    vec![case.alone().pontoon_only()]
}

/// Returns the duration of the traffic in seconds: `PONTOON_SOAK`, or a few.
fn seconds() -> u64 {
    wanted("PONTOON_SOAK", 15)
}

fn soak(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/mnt"))?;
    for (file, text) in RULES {
        std::fs::write(file, text)?;
    }
    let talk = Path::new("/mnt/talk");
    let [v4, v6] = [Family::V4, Family::V6].map(|family| tcp_server(&network, family));
    let (v4, v6, datagrams) = (v4?, v6?, udp_server(&network, Family::V4)?);
    let guest = network
        .run()
        .options([counters::LOGGED, "--control", CONTROL])
        .options(["--publish", "8080:80", "--publish", "8081:81/udp"])
        .talk_to(talk)
        .shell(&format!(
            "again() {{ while [ $(date +%s) -lt $end ]; do \
             why=$(\"$@\" 2>&1 >/dev/null) || echo failed: \"$@: $why\"; done; }}; \
             go() {{ again $E2E guest \"$@\" & going=\"$going $!\"; }}; \
             now_and_then() {{ $E2E guest udp sizes {datagrams} && sleep 1; }}; \
             $E2E guest serve tcp:0.0.0.0:80 udp:0.0.0.0:81 & served=$!; \
             end=$(($(date +%s) + {seconds})); \
             go tcp {v4} connects 200; go tcp {v6} connects 200; \
             go tcp {v4} put 0 1 67108864; go tcp {v6} fetch 0 2 67108864; \
             go tcp {v6} half-ours 3 8388608; go tcp {v4} half-theirs 4 1048576; \
             go tcp {v4} reset-ours; go tcp {v6} reset-theirs; \
             again now_and_then & wait $going $!; echo done; read end; kill $served",
            seconds = seconds()
        ));
    let mut guest = guest.spawn()?.listening()?;
    let end = Instant::now() + Duration::from_secs(seconds());
    let samples = std::thread::scope(|scope| {
        let clients = scope.spawn(|| clients(&network, end));
        let samples = watch(context, end);
        clients
            .join()
            .unwrap_or_else(|_| anyhow::bail!("a client panicked"))?;
        samples
    })?;
    let line = guest.line()?;
    if line != "done" {
        eprintln!("{}", ctl(context, &["stats", "--json"])?);
    }
    expect(&line, "done")?;
    guest.send_line("end")?;
    guest.finish()?;
    let counters = Counters::read(talk)?;
    counters.expect("panics", 0)?;
    counters.expect("sandbox_refused", 0)?;
    flat(&samples)
}

fn ctl(context: &Context, words: &[&str]) -> Result<String> {
    let mut command: Command = context.program.command()?;
    process::output(command.args(["ctl", "--control", CONTROL]).args(words))
}

/// Connects clients to the published ports until `end`.
fn clients(network: &Network<'_>, end: Instant) -> Result<()> {
    let address = |port| SocketAddr::new(network.host_address(Family::V4), port);
    let mut rounds = 0;
    while Instant::now() < end {
        network.server().enter(|| {
            expect(&tcp::command(address(8080), &["connects", "20"])?, "ok")?;
            expect(&tcp::command(address(8080), &["put", "0", "5", "4194304"])?, "ok")?;
            expect(&udp::command(&["peer", &address(8081).to_string()])?, "ok")
        })?;
        rounds += 1;
    }
    eprintln!("clients of published ports: {rounds} rounds");
    Ok(())
}

/// Memory and descriptors of all processes of the program at one time.
#[derive(Clone, Copy, Debug)]
struct ResourceSample {
    resident_kib: u64,
    descriptors: u64,
}

/// Until `end`, changes the rules each second, requests the counters, and samples the processes.
fn watch(context: &Context, end: Instant) -> Result<Vec<ResourceSample>> {
    let engine = context.program.engine()?;
    let mut samples = Vec::new();
    while Instant::now() < end {
        // Takes one sample each second.
        std::thread::sleep(Duration::from_secs(1));
        let (rules, _) = RULES[samples.len() % RULES.len()];
        ctl(context, &["policy", "--load", rules])?;
        ctl(context, &["stats", "--json"])?;
        let processes = context.program.processes().into_iter();
        samples.push(ResourceSample {
            resident_kib: context.program.resident_kib()?,
            descriptors: processes
                .map(|process| Ok(process.descriptors()? as u64))
                .sum::<Result<u64>>()?,
        });
        ensure!(context.program.engine()? == engine, "the engine crashed");
    }
    Ok(samples)
}

/// Checks that the samples of the last third are not larger than those of the first third.
fn flat(samples: &[ResourceSample]) -> Result<()> {
    let third = samples.len() / 3;
    let most = |samples: &[ResourceSample], of: fn(&ResourceSample) -> u64| samples.iter().map(of).max();
    let (first, last) = (&samples[..third], &samples[samples.len() - third..]);
    let of_thirds = |of| Some((most(first, of)?, most(last, of)?));
    let resident = of_thirds(|sample| sample.resident_kib).context("a third of the time has no sample")?;
    let descriptors = of_thirds(|sample| sample.descriptors).context("a third of the time has no sample")?;
    eprintln!(
        "{} s: resident {resident:?} KiB, descriptors {descriptors:?}",
        samples.len()
    );
    ensure!(
        resident.1 <= resident.0 + SETTLING_KIB,
        "resident memory went from {} to {} KiB",
        resident.0,
        resident.1
    );
    ensure!(
        descriptors.1 <= descriptors.0 + ENDPOINTS,
        "descriptors went from {} to {}",
        descriptors.0,
        descriptors.1
    );
    Ok(())
}
