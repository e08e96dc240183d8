//! A machine at tap_guest speed: a namespace whose tap we join to a vhost-user device's queues, or carry over a stream. What
//! does so is part of what is measured, the same for every backend.
//!
//! Runs of TCP upwards have to be of seconds with passt. It announces as its window that of the server, whatever room its
//! socket has. What its socket does not take it drops, and says so by one duplicate acknowledgement; without SACK the
//! guest waits for its retransmission timer then. This happens in most runs, early, and a short one sees nothing else.

use std::ffi::OsString;

use anyhow::Result;
use clap::ValueEnum;

use super::backend::{self, Backend, BackendKind, Link};
use super::{Addresses, Found, NetworkConfig, Selection, Stack, Started};
use crate::host::{Host, TAP_GUEST};
use crate::tap_guest::GuestLink;

struct Native {
    guest_link: GuestLink,
    backend: Backend,
}

pub(super) fn find(wanted: &Selection, kind: BackendKind, guest_link: GuestLink) -> Result<Found> {
    let link = match guest_link {
        GuestLink::Driver | GuestLink::BareDriver => Link::VhostUser,
        GuestLink::Stream | GuestLink::LossyStream => Link::Stream,
    };
    let backend = Backend::find(wanted, kind, link)?;
    Ok(Found {
        version: backend.version.clone(),
        stack: Box::new(Native { guest_link, backend }),
    })
}

impl Native {
    /// Arguments of our own program, but for the socket and what to run.
    fn command_line(&self, config: &NetworkConfig) -> [String; 5] {
        let guest_link = self.guest_link.to_possible_value();
        let guest_link = guest_link
            .map(|guest_link| guest_link.get_name().to_owned())
            .unwrap_or_default();
        let mtu = backend::mtu(config).to_string();
        [
            TAP_GUEST.to_owned(),
            "--guest_link".to_owned(),
            guest_link,
            "--mtu".to_owned(),
            mtu,
        ]
    }
}

impl Stack for Native {
    fn addresses(&self) -> Addresses {
        backend::ADDRESSES
    }

    fn start(&self, host: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<Started> {
        let socket = host.sandbox_ns.world_writable_path("machine.sock")?;
        let helper = self.backend.serve(host, config, &socket)?;
        let mut guest = super::unprivileged("unshare");
        guest
            .args(["--user", "--map-root-user", "--net", "--"])
            .arg(&host.client)
            .args(self.command_line(config))
            .arg(&socket)
            .arg("--")
            .args(program);
        Ok(Started {
            guest: super::spawn(&mut guest)?,
            helpers: vec![helper],
        })
    }

    fn command(&self) -> String {
        format!(
            "{}; unshare --user --map-root-user --net -- pontoon-bench {} S -- CLIENT",
            self.backend.command(),
            self.command_line(&NetworkConfig::default()).join(" ")
        )
    }
}
