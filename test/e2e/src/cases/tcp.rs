//! Cases about the semantics of TCP between guest and server.

use anyhow::Result;

use super::{expect, tcp_server};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::process::QuietMachine;

/// Number of bytes of a transfer that no buffer on the path can hold.
const LARGE: &str = "268435456";

pub(super) fn cases() -> Vec<Case> {
    let successful: [(&str, &'static [&'static str]); 3] = [
        (
            "tcp.guest-closes-its-half-first",
            &["half-ours", "11", "33554432"],
        ),
        (
            "tcp.server-closes-its-half-first",
            &["half-theirs", "12", "33554432"],
        ),
        ("tcp.server-resets", &["reset-theirs"]),
    ];
    let stalls: [(&str, &'static [&'static str]); 2] = [
        ("tcp.server-stalls-60-s", &["put", "60", "13", LARGE]),
        ("tcp.guest-stalls-60-s", &["fetch", "60", "14", LARGE]),
    ];
    let case = |(name, words)| {
        Case::both(name, 100, move |context, family| {
            succeeds(context, family, words, "ok")
        })
    };
    let mut cases: Vec<Case> = successful.into_iter().flat_map(case).collect();
    cases.extend(stalls.into_iter().flat_map(case).map(Case::waiting));
    cases.extend(Case::both("tcp.guest-resets", 20, |context, family| {
        succeeds(context, family, &["reset-ours"], "reset")
    }));
    cases.extend(Case::both("tcp.urgent-data-is-in-line", 20, |context, family| {
        succeeds(context, family, &["urgent"], "abcdef")
    }));
    cases.extend(Case::both("tcp.refused-within-10-ms", 20, refused).map(Case::alone));
    cases
}

fn succeeds(context: &Context, family: Family, words: &[&str], wanted: &str) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, family)?.to_string();
    expect(
        &network.run().guest(["tcp", &server]).command(words).text()?,
        wanted,
    )
}

fn refused(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let closed = std::net::SocketAddr::new(network.server_address(family), 9).to_string();
    let machine = QuietMachine::begin()?;
    let micros: u64 = network
        .run()
        .guest(["tcp", &closed, "refused"])
        .text()?
        .trim_end()
        .parse()?;
    machine.judge(micros <= 10_000, &format!("refused after {micros} us"))
}
