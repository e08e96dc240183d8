//! The stack libslirp, which is QEMU's `-netdev user`.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::backend;
use super::machine::{self, QemuMachine};
use super::{
    FoundStack, NetworkConfig, Selection, Stack, StackAddresses, StackFinder, StackKind, StackProcesses,
};
use crate::host::Host;
use crate::schema::StackRole;

pub(super) const KIND: StackKind = StackKind {
    name: "qemu-libslirp",
    role: StackRole::Peer,
    find: StackFinder::Machine(find),
};

const NETDEV: &str = "user,id=net";

/// MTU of QEMU's guests with libslirp in bytes; no option changes it.
const MTU: u16 = 1500;

/// The stack libslirp, with the installed QEMU.
struct QemuLibslirp {
    machine: QemuMachine,
}

fn find(wanted: &Selection) -> Result<FoundStack> {
    ensure!(
        wanted.program.is_none(),
        "libslirp is part of QEMU and takes no program (try: --against qemu-libslirp)"
    );
    let machine = QemuMachine::find()?;
    Ok(FoundStack {
        version: machine.version()?,
        stack: Box::new(QemuLibslirp { machine }),
    })
}

impl Stack for QemuLibslirp {
    fn addresses(&self) -> StackAddresses {
        backend::ADDRESSES
    }

    fn start(&self, host: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<StackProcesses> {
        let published = config
            .publish
            .map(|port| format!(",hostfwd=tcp:127.0.0.1:{port}-:{port}"));
        let netdev = format!("{NETDEV}{}", published.unwrap_or_default());
        self.machine.start(
            host,
            &pontoon_vm_peer::qemu::interface(&netdev),
            config.mtu.unwrap_or(MTU),
            program,
            Vec::new(),
        )
    }

    fn command(&self) -> String {
        machine::command(&pontoon_vm_peer::qemu::interface(NETDEV))
    }

    fn boot(&self) -> Duration {
        machine::BOOT
    }
}
