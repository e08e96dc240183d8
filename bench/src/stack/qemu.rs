//! QEMU whose network interface is served by a backend on a UNIX socket.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::backend::{self, Backend, BackendKind, BackendLink};
use super::machine::{self, QemuMachine};
use super::{FoundStack, NetworkConfig, Selection, Stack, StackAddresses, StackProcesses};
use crate::host::Host;

/// QEMU, and the backend of its network interface.
struct Qemu {
    link: BackendLink,
    machine: QemuMachine,
    backend: Backend,
}

pub(super) fn find(wanted: &Selection, kind: BackendKind, link: BackendLink) -> Result<FoundStack> {
    let backend = Backend::find(wanted, kind, link)?;
    let machine = QemuMachine::find()?;
    Ok(FoundStack {
        version: format!("{}, {}", backend.version, machine.version()?),
        stack: Box::new(Qemu {
            link,
            machine,
            backend,
        }),
    })
}

impl Qemu {
    /// Returns QEMU's options for a network interface that the backend at `socket` serves.
    fn interface(&self, socket: &Path) -> Vec<String> {
        match self.link {
            BackendLink::Stream | BackendLink::Packet => pontoon_vm_peer::qemu::stream(socket),
            BackendLink::VhostUser => pontoon_vm_peer::qemu::vhost_user(socket, 1),
        }
    }
}

impl Stack for Qemu {
    fn addresses(&self) -> StackAddresses {
        backend::ADDRESSES
    }

    fn start(&self, host: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<StackProcesses> {
        let socket = host.sandbox_ns.world_writable_path("machine.sock")?;
        let helper = self.backend.serve(host, config, &socket)?;
        let interface = self.interface(&socket);
        self.machine
            .start(host, &interface, backend::mtu(config), program, vec![helper])
    }

    fn command(&self) -> String {
        let interface = self.interface(Path::new("S"));
        format!("{}; {}", self.backend.command(), machine::command(&interface))
    }

    fn boot(&self) -> Duration {
        machine::BOOT
    }
}
