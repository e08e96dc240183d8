//! The relay socat: one process for each output.

use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::Result;

use super::{Selection, StackFinder, StackKind};
use crate::relay::{Hop, InstalledRelay, group, spawn};
use crate::schema::StackRole;

pub(super) const KIND: StackKind = StackKind {
    name: "socat",
    role: StackRole::Peer,
    find: StackFinder::Relay(find),
};

/// The path of the installed socat.
struct Socat(PathBuf);

fn find(wanted: &Selection) -> Result<Box<dyn InstalledRelay>> {
    Ok(Box::new(Socat(super::program(wanted, "socat", "socat")?)))
}

impl InstalledRelay for Socat {
    fn start(&self, hop: &Hop<'_>) -> Result<Vec<Child>> {
        let (from, to) = (group(hop.number), group(hop.number + 1));
        let start = |address| {
            let mut command = Command::new(&self.0);
            command.arg("-u").args([
                format!(
                    "UDP4-RECV:{},bind={ip},reuseaddr,rcvbuf=4194304,ip-add-membership={ip}:in",
                    from.port(),
                    ip = from.ip()
                ),
                format!("UDP4-DATAGRAM:{to},ip-multicast-if={address},ip-multicast-ttl=8"),
            ]);
            spawn(hop, &mut command)
        };
        hop.outputs.iter().map(start).collect()
    }
}
