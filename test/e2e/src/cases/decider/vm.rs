//! Cases about the decider of `pontoon vm`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::redirected::{PORTS, REDIRECT, Servers, mebibytes};
use super::{Decider, SOCKET};
use crate::carrier::Framing;
use crate::case::{Case, Context, Family};
use crate::cases::{expect, tcp_server, tmpfs, udp_server, vm};
use crate::guest::{tcp, udp};
use crate::machine::TapGuest;
use crate::process;
use pontoon_vm_peer::tap_bridge::Faults;

pub(super) fn cases() -> Vec<Case> {
    let one = Framing::ALL.map(|framing| (format!("decider.vm.{framing}"), framing, "1"));
    let two = ("decider.vm.two-workers".to_owned(), Framing::VhostUser(2), "2");
    one.into_iter()
        .chain([two])
        .map(|(name, framing, workers)| Case::new(&name, 120, move |context| run(context, framing, workers)))
        .collect()
}

/// Tests a decider that denies, that allows, that redirects, and that is absent.
fn run(context: &Context, framing: Framing, workers: &str) -> Result<()> {
    let options = ["--control-decide", SOCKET, "--workers", workers];
    tmpfs(Path::new("/run"))?;
    let (network, vm) = vm::start(context, framing, &options)?;
    let server = tcp_server(&network, Family::V4)?;
    let datagrams = udp_server(&network, Family::V4)?.to_string();
    let guest = TapGuest::of(&vm, Faults::NONE)?;
    guest.dhcp4()?;
    let connects = || guest.namespace.enter(|| tcp::command(server, &["peer"]));
    {
        let _decider = Decider::start("return {'verdict': 'deny'}")?;
        ensure!(connects().is_err(), "a denied flow is opened");
    }
    {
        let _decider = Decider::start("return {'verdict': 'allow'}")?;
        connects().context("an allowed flow is refused")?;
        let many = || tcp::command(server, &["connects", "200"]);
        expect(&guest.namespace.enter(many)?, "ok")?;
        let sizes = || udp::command(&["sizes", &datagrams]);
        expect(&guest.namespace.enter(sizes)?, "ok")?;
    }
    let begin = Instant::now();
    ensure!(connects().is_err(), "a flow is opened without a decider");
    let took = begin.elapsed();
    ensure!(took < Duration::from_secs(2), "a flow is denied after {took:?}");
    let _servers = Servers::start()?;
    let _decider = Decider::start(REDIRECT)?;
    for port in PORTS {
        let address = server.ip().to_string();
        let (port, mebibytes) = (port.to_string(), mebibytes().to_string());
        let words = ["/run/peer.py", "swap", &address, &port, &mebibytes];
        let swap = || process::output(Command::new("python3").args(words));
        expect(&guest.namespace.enter(swap)?, "ok")?;
    }
    Ok(())
}
