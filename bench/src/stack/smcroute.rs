//! The relay smcroute: configures the kernel's multicast routes, which forward without changing the group.

use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::Result;

use super::{Selection, StackFinder, StackKind};
use crate::relay::{Hop, InstalledRelay, SCRATCH, group, sender_address, spawn};
use crate::schema::StackRole;

pub(super) const KIND: StackKind = StackKind {
    name: "smcroute",
    role: StackRole::Peer,
    find: StackFinder::Relay(find),
};

/// The path of the installed daemon.
struct Smcroute(PathBuf);

fn find(wanted: &Selection) -> Result<Box<dyn InstalledRelay>> {
    Ok(Box::new(Smcroute(super::program(
        wanted,
        "smcrouted",
        "smcroute",
    )?)))
}

impl InstalledRelay for Smcroute {
    fn rewrites_group(&self) -> bool {
        false
    }

    fn start(&self, hop: &Hop<'_>) -> Result<Vec<Child>> {
        let (group, sender) = (*group(0).ip(), sender_address());
        let outputs = (0..hop.outputs.len()).map(|output| format!("out{output}"));
        let outputs = outputs.collect::<Vec<_>>().join(" ");
        let path = format!("{SCRATCH}/smcroute.{}.{}", std::process::id(), hop.number);
        let configuration = format!("{path}.conf");
        std::fs::write(
            &configuration,
            format!(
                "mgroup from in group {group}\nmroute from in source {sender} group {group} to {outputs}\n"
            ),
        )?;
        let mut command = Command::new(&self.0);
        command.args(["-n", "-f", &configuration, "-i", &format!("bench{}", hop.number)]);
        command.args(["-u", &format!("{path}.sock"), "-P", &format!("{path}.pid")]);
        Ok(vec![spawn(hop, &mut command)?])
    }
}
