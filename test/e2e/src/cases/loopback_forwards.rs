//! Cases about guest forwards at a loopback address of the guest, whose connections do not use the guest's interface.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};

use super::{expect, talk};
use crate::case::{Case, Context, Family};
use crate::counters::{self, Counters};
use crate::network::Network;
use crate::run::{PontoonRun, RunningProgram};
use crate::server;

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        Case::both("loopback-forwards.joined", 60, joined),
        Case::both("loopback-forwards.policy", 30, policy),
    ]
    .into_iter()
    .flatten()
    .collect();
    cases.extend([
        Case::new("loopback-forwards.engine-killed", 60, engine_killed),
        Case::new("loopback-forwards.removed", 30, removed),
        Case::new("loopback-forwards.refused", 30, refused),
    ]);
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// Returns an address in the form of a port specification.
fn bracketed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Returns a guest whose shell executes the lines of its standard input, with port `inside` of its loopback address forwarded to
/// port 6000 of the host's.
fn guest<'a>(network: &'a Network<'_>, family: Family, inside: u16) -> PontoonRun<'a> {
    let forward = format!("{}:{inside}:6000", bracketed(family.loopback()));
    let run = network.run().options(["--guest-forward", &forward]);
    run.shell("echo listening; while read -r line; do [ \"$line\" = end ] && exit; eval \"$line\"; done")
}

fn end(mut guest: RunningProgram) -> Result<()> {
    guest.send_line("end")?;
    guest.finish().map(|_| ())
}

/// Tests data, ends and resets, at a port that only root may open outside, and the address that the service sees.
fn joined(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    server::tcp::start(SocketAddr::new(family.loopback(), 6000))?;
    let talk = talk()?;
    let run = guest(&network, family, 80).options([counters::LOGGED]);
    let mut guest = run.talk_to(&talk).spawn()?.listening()?;
    let at = SocketAddr::new(family.loopback(), 80);
    for (words, result) in [
        ("peer", &*family.loopback().to_string()),
        ("put 0 21 67108864", "ok"),
        ("fetch 0 22 67108864", "ok"),
        ("half-ours 24 8388608", "ok"),
        ("reset-theirs", "ok"),
        ("urgent", "abcdef"),
        ("connects 100", "ok"),
    ] {
        let answer = guest.ask(&format!("$E2E guest tcp {at} {words}"));
        expect(&answer.with_context(|| words.to_owned())?, result)?;
    }
    end(guest)?;
    let counters = Counters::read(&talk)?;
    counters.expect("tcp_joined", 106)?;
    counters.expect("tcp_opened", 106)?;
    counters.expect("tcp_accepted", 0)?;
    counters.expect("sandbox_refused", 0)
}

/// Tests that rules about the address in the guest apply, and that no other port of the host's loopback is reached.
fn policy(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    for port in [6000, 6001] {
        server::tcp::start(SocketAddr::new(family.loopback(), port))?;
    }
    for (denied, port, result) in [
        ("192.0.2.1", 80, "ok"),
        ("", 80, "none"),
        ("192.0.2.1", 6001, "none"),
    ] {
        let at = SocketAddr::new(family.loopback(), port);
        let rule = match denied {
            "" => format!("{}:80", bracketed(family.loopback())),
            other => other.to_owned(),
        };
        let run = guest(&network, family, 80).options(["--deny", &rule]);
        let mut guest = run.spawn()?.listening()?;
        let line = format!("$E2E guest tcp {at} connects 1 2>/dev/null || echo none");
        expect(&guest.ask(&line)?, result)?;
        end(guest)?;
    }
    Ok(())
}

/// Tests that connections are reset with the engine, and that the next engine accepts new ones.
fn engine_killed(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    server::tcp::start(SocketAddr::new(Family::V4.loopback(), 6000))?;
    let mut guest = guest(&network, Family::V4, 5000).spawn()?.listening()?;
    let ask = |guest: &mut RunningProgram| guest.ask("$E2E guest tcp 127.0.0.1:5000 connects 10");
    expect(&ask(&mut guest)?, "ok")?;
    context.program.kill_engine()?;
    expect(&ask(&mut guest)?, "ok")?;
    end(guest)
}

/// Tests that the control socket lists such a forward, removes it, and adds none.
fn removed(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    server::tcp::start(SocketAddr::new(Family::V4.loopback(), 6000))?;
    let socket = talk()?.with_extension("control");
    let run = guest(&network, Family::V4, 5000).options(["--control", &socket.display().to_string()]);
    let mut guest = run.spawn()?.listening()?;
    let connect = "$E2E guest tcp 127.0.0.1:5000 connects 1 2>/dev/null || echo none";
    expect(&guest.ask(connect)?, "ok")?;
    let ctl = |words: &[&str]| -> Result<(bool, String)> {
        let mut command = context.program.command()?;
        command.arg("ctl").arg("--control").arg(&socket);
        let output = command.arg("guest-forward").args(words).output()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).trim_end().to_owned();
        Ok((output.status.success(), text))
    };
    let spec = "127.0.0.1:5000:6000/tcp";
    expect(&ctl(&["list"])?.1, spec)?;
    let (is_added, why) = ctl(&["add", "127.0.0.1:5001"])?;
    ensure!(!is_added && why.contains("at the start only"), "{why}");
    expect(&ctl(&["remove", spec])?.1, &format!("removed {spec}"))?;
    expect(&guest.ask(connect)?, "none")?;
    end(guest)
}

/// Tests the errors of values that are not possible.
fn refused(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    for (value, why) in [
        ("127.0.0.1:5000/udp", "TCP only"),
        ("127.0.0.1:auto", "'auto' excludes"),
        ("127.0.0.1:5000:192.0.2.1:80", "one of the host only"),
        ("127.0.0.1:1-1000", "more than 512 ports"),
    ] {
        let output = network
            .run()
            .options(["--guest-forward", value])
            .command(["true"])
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && text.contains(why), "{value}: {text}");
    }
    Ok(())
}
