//! `pontoon vm` with an upstream proxy.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;
use pontoon_vm_peer::tap_bridge::Faults;

use super::{Kind, MIB, RunningProxy, hash};
use crate::carrier::Framing;
use crate::case::{Case, Context, Family};
use crate::cases::{expect, vm};
use crate::machine::{RunningVm, TapGuest};
use crate::{process, server};

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("proxy.vm", 60, download)]
}

/// Tests a download of a virtual machine's guest through squid.
fn download(context: &Context) -> Result<()> {
    let network = vm::prepare(context)?;
    let proxy = RunningProxy::start_with(Kind::Squid, "")?;
    let address = SocketAddr::new(network.server_address(Family::V4), super::HTTP);
    network.server().enter(|| server::http::start(address, None))?;
    let running = RunningVm::start(&context.program, Framing::Stream, &proxy.option(Family::V4))?;
    let guest = TapGuest::of(&running, Faults::NONE)?;
    guest.dhcp4()?;
    let line = format!(
        "curl -sS --max-time 20 --fail http://{}/bytes/3/{MIB} | openssl dgst -sha256 -r",
        address.ip()
    );
    let text = guest
        .namespace
        .enter(|| process::output(Command::new("sh").args(["-c", &line])))?;
    expect(&text, &hash(3, MIB)?)?;
    proxy.logs("CONNECT")?;
    Ok(())
}
