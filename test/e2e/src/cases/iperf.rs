//! Cases with iperf3 in both directions.

use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::case::{Case, Context, Family};
use crate::figures::megabits;
use crate::network::Network;
use crate::process::{self, QuietMachine};

pub(super) fn cases() -> Vec<Case> {
    let ways: [(&str, &str); 5] = [
        ("iperf.up", "-t 2"),
        ("iperf.down", "-t 2 -R"),
        ("iperf.both-ways", "-t 2 --bidir"),
        ("iperf.8-streams", "-t 2 -P 8"),
        ("iperf.udp", "-t 2 -u -b 200M -l 1400"),
    ];
    let case = |(name, options): (&'static str, &'static str)| {
        Case::both(name, 30, move |context, family| iperf(context, family, options)).map(Case::alone)
    };
    ways.into_iter().flat_map(case).collect()
}

/// Starts an iperf3 server at `address`, which is killed at the end of the case.
fn server(address: IpAddr) -> Result<Child> {
    let mut command = Command::new("iperf3");
    command
        .args(["-s", "-B", &address.to_string()])
        .stdout(Stdio::null());
    command.spawn().context("cannot run iperf3")
}

fn iperf(context: &Context, family: Family, options: &str) -> Result<()> {
    let network = Network::new(context)?;
    let address = network.server_address(family);
    let mut child = network.server().enter(|| server(address))?;
    network.server().enter(|| {
        process::wait_until("iperf3 listens", Duration::from_secs(5), || {
            Ok(process::output(Command::new("ss").args(["-ltnH", "sport = :5201"]))?.contains(":5201"))
        })
    })?;
    let machine = QuietMachine::begin()?;
    let line = format!("iperf3 {} -c {address} {options} -i 0 -f m", family.flag());
    let text = network.run().shell(&line).text();
    child.kill()?;
    child.wait()?;
    let text = text?;
    // The summary line of every receiver has a number of bytes.
    let received: Vec<f64> = text
        .lines()
        .filter(|line| line.ends_with("receiver"))
        .filter_map(megabits)
        .collect();
    eprintln!("{text}");
    ensure!(
        !received.is_empty() && received.iter().all(|rate| *rate > 0.0),
        "nothing was received:\n{text}"
    );
    let slowest = received.iter().copied().fold(f64::INFINITY, f64::min);
    machine.judge(slowest > 50.0, &format!("only {slowest} Mbit/s"))
}
