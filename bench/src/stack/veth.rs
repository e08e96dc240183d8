//! The stack `veth`, the kernel's own path: a veth pair between the host and a namespace.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result};

use super::{
    FoundStack, NetworkConfig, Selection, Stack, StackAddresses, StackFinder, StackKind, StackProcesses,
};
use crate::host::Host;
use crate::network::{BEST_MTU, VETH_GUEST, VETH_HOST};
use crate::schema::StackRole;

pub(super) const KIND: StackKind = StackKind {
    name: "veth",
    role: StackRole::Kernel,
    find: StackFinder::Namespace(find),
};

/// The stack of the kernel's veth pair.
struct Veth;

fn find(_: &Selection) -> Result<FoundStack> {
    Ok(FoundStack {
        version: super::version_of_kernel(),
        stack: Box::new(Veth),
    })
}

impl Stack for Veth {
    fn addresses(&self) -> StackAddresses {
        StackAddresses {
            server: VETH_HOST,
            resolver: VETH_HOST,
            published: VETH_GUEST,
        }
    }

    fn start(&self, host: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<StackProcesses> {
        host.network
            .set_veth_mtu(config.mtu.map_or(BEST_MTU, u32::from))?;
        let (program, arguments) = program.split_first().context("no program was given")?;
        let mut command = Command::new(program);
        command.args(arguments);
        host.network.run_in_guest(&mut command)?;
        StackProcesses::alone(&mut command)
    }

    fn command(&self) -> String {
        "nsenter --net=GUEST CLIENT".to_owned()
    }
}
