//! The relay `pontoon relay`.

use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::Result;

use super::{Selection, StackFinder, StackKind};
use crate::relay::{Hop, InstalledRelay, group, spawn};
use crate::schema::StackRole;

pub(super) const KIND: StackKind = StackKind {
    name: "pontoon",
    role: StackRole::Pontoon,
    find: StackFinder::Relay(find),
};

/// The installed pontoon, and its additional options as a relay.
struct PontoonRelay {
    program: PathBuf,
    flags: Vec<String>,
}

fn find(wanted: &Selection) -> Result<Box<dyn InstalledRelay>> {
    let (program, _) = super::pontoon_program(wanted)?;
    Ok(Box::new(PontoonRelay {
        program,
        flags: wanted.flags.clone(),
    }))
}

impl InstalledRelay for PontoonRelay {
    fn start(&self, hop: &Hop<'_>) -> Result<Vec<Child>> {
        let (from, to) = (group(hop.number), group(hop.number + 1));
        let outputs = (0..hop.outputs.len()).map(|output| format!("out{output} {to}"));
        let rule = format!("in {from} -> {}", outputs.collect::<Vec<_>>().join(", "));
        let mut command = Command::new(&self.program);
        command
            .args(["relay", "--quiet", "--rule", &rule])
            .args(&self.flags);
        Ok(vec![spawn(hop, &mut command)?])
    }
}
