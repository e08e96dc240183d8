//! Stacks whose guest is a namespace with a tap instead of a virtual machine. A virtio driver carries the tap's
//! frames to a vhost-user device, or they are sent over a socket. This carrier is part of what is measured,
//! and the same for every backend.
//!
//! With passt, measurements of TCP up must take seconds. passt advertises the server's receive window regardless of
//! the free space in its own socket buffer. It drops data that the socket does not accept, and sends one duplicate
//! acknowledgement; without SACK the guest then waits for its retransmission timeout. This happens early in most
//! runs, and would dominate a short one.

use std::ffi::OsString;
use std::path::Path;
use std::process::Child;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::backend::{self, Backend, BackendKind, BackendLink};
use super::{FoundStack, NetworkConfig, Selection, Stack, StackAddresses, StackProcesses};
use crate::host::{Host, TAP_GUEST};
use crate::tap_guest::GuestLink;

/// A backend, and the link by which a namespace with a tap uses it.
struct TapGuestStack {
    guest_link: GuestLink,
    backend: Backend,
}

pub(super) fn find(wanted: &Selection, kind: BackendKind, guest_link: GuestLink) -> Result<FoundStack> {
    let link = match guest_link {
        GuestLink::Driver | GuestLink::BareDriver => BackendLink::VhostUser,
        GuestLink::Stream | GuestLink::LossyStream => BackendLink::Stream,
        GuestLink::Packet => BackendLink::Packet,
        GuestLink::Tap => bail!("no backend takes the guest's tap"),
    };
    let backend = Backend::find(wanted, kind, link)?;
    Ok(FoundStack {
        version: backend.version.clone(),
        stack: Box::new(TapGuestStack { guest_link, backend }),
    })
}

/// Returns the command line of `pontoon-bench tap-guest` up to the socket and the command.
fn command_line(guest_link: GuestLink, config: &NetworkConfig) -> [String; 5] {
    let guest_link = guest_link
        .to_possible_value()
        .map(|guest_link| guest_link.get_name().to_owned())
        .unwrap_or_default();
    let mtu = backend::mtu(config).to_string();
    [
        TAP_GUEST.to_owned(),
        "--guest-link".to_owned(),
        guest_link,
        "--mtu".to_owned(),
        mtu,
    ]
}

impl Stack for TapGuestStack {
    fn addresses(&self) -> StackAddresses {
        backend::ADDRESSES
    }

    fn start(&self, host: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<StackProcesses> {
        let socket = host.sandbox_ns.world_writable_path("machine.sock")?;
        let helper = self.backend.serve(host, config, &socket)?;
        start(host, self.guest_link, config, &socket, program, helper)
    }

    fn command(&self) -> String {
        format!("{}; {}", self.backend.command(), self::command(self.guest_link))
    }
}

/// Starts a program in a namespace with a tap, behind the backend `helper` at `socket`.
///
/// # Errors
/// It cannot be started.
pub(super) fn start(
    host: &Host,
    guest_link: GuestLink,
    config: &NetworkConfig,
    socket: &Path,
    program: &[OsString],
    helper: Child,
) -> Result<StackProcesses> {
    let mut guest = super::unprivileged("unshare");
    guest
        .args(["--user", "--map-root-user", "--net", "--"])
        .arg(&host.client)
        .args(command_line(guest_link, config))
        .arg(socket)
        .arg("--")
        .args(program);
    Ok(StackProcesses {
        guest: super::spawn(&mut guest)?,
        helpers: vec![helper],
    })
}

/// Returns the command that starts the guest, for the report.
pub(super) fn command(guest_link: GuestLink) -> String {
    format!(
        "unshare --user --map-root-user --net -- pontoon-bench {} S -- CLIENT",
        command_line(guest_link, &NetworkConfig::default()).join(" ")
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Bench;

    #[test]
    fn command_line_is_accepted_by_the_program() {
        for guest_link in GuestLink::value_variants() {
            let arguments = command_line(*guest_link, &NetworkConfig::default());
            let line = ["bench".to_owned()].into_iter().chain(arguments);
            let line = line.chain(["S", "--", "true"].map(str::to_owned));
            assert!(Bench::try_parse_from(line).is_ok(), "{guest_link:?}");
        }
    }
}
