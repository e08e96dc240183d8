//! A machine at native speed: a namespace whose tap we join to a vhost-user device's queues, or carry over a stream. What
//! does so is part of what is measured, the same for every backend.
//!
//! Runs of TCP upwards have to be of seconds with passt. It announces as its window that of the server, whatever room its
//! socket has. What its socket does not take it drops, and says so by one duplicate acknowledgement; without SACK the
//! guest waits for its retransmission timer then. This happens in most runs, early, and a short one sees nothing else.

use std::ffi::OsString;

use anyhow::Result;
use clap::ValueEnum;

use super::backend::{self, Backend, Link, Who};
use super::{Found, Place, Stack, Started, Wanted, Wish};
use crate::host::{Host, MACHINE};
use crate::native::Joint;

struct Native {
    joint: Joint,
    backend: Backend,
}

pub(super) fn find(wanted: &Wanted, who: Who, joint: Joint) -> Result<Found> {
    let link = match joint {
        Joint::Driver | Joint::BareDriver => Link::VhostUser,
        Joint::Stream | Joint::LossyStream => Link::Stream,
    };
    let backend = Backend::find(wanted, who, link)?;
    Ok(Found {
        version: backend.version.clone(),
        stack: Box::new(Native { joint, backend }),
    })
}

impl Native {
    /// Arguments of our own program, but for the socket and what to run.
    fn words(&self, wish: &Wish) -> [String; 5] {
        let joint = self.joint.to_possible_value();
        let joint = joint.map(|joint| joint.get_name().to_owned()).unwrap_or_default();
        let mtu = backend::mtu(wish).to_string();
        [
            MACHINE.to_owned(),
            "--joint".to_owned(),
            joint,
            "--mtu".to_owned(),
            mtu,
        ]
    }
}

impl Stack for Native {
    fn place(&self) -> Place {
        backend::PLACE
    }

    fn start(&self, host: &Host, wish: &Wish, program: &[OsString]) -> Result<Started> {
        let socket = host.enclosure.open_place("machine.sock")?;
        let helper = self.backend.serve(host, wish, &socket)?;
        let mut guest = super::unprivileged("unshare");
        guest
            .args(["--user", "--map-root-user", "--net", "--"])
            .arg(&host.client)
            .args(self.words(wish))
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
            self.words(&Wish::default()).join(" ")
        )
    }
}
