//! Pontoon serving QEMU.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::machine::{self, Machine};
use super::{Found, Kind, Place, Stack, Started, Wanted, Wish};
use crate::host::Host;
use crate::schema::Role;

pub(super) const KIND: Kind = Kind {
    name: "qemu-pontoon",
    role: Role::Pontoon,
    usual: false,
    find,
};

const COMMAND: &[&str] = &[
    "vm",
    "--quiet",
    "--host-loopback",
    "--ipv4",
    "10.0.2.0/24",
    "--protocol",
    "stream",
];

struct QemuPontoon {
    name: String,
    machine: Machine,
    program: PathBuf,
    flags: Vec<String>,
}

fn find(wanted: &Wanted) -> Result<Found> {
    let (program, version) = super::ours(wanted)?;
    let machine = Machine::find()?;
    Ok(Found {
        version: format!("{version}, {}", machine.version()?),
        stack: Box::new(QemuPontoon {
            name: wanted.name.clone(),
            machine,
            program,
            flags: wanted.flags.clone(),
        }),
    })
}

impl Stack for QemuPontoon {
    fn place(&self) -> Place {
        machine::PLACE
    }

    fn start(&self, host: &Host, wish: &Wish, program: &[OsString]) -> Result<Started> {
        let ours = host.enclosure.publish(&self.program, &self.name)?;
        let socket = host.enclosure.open_place("pontoon.sock")?;
        let mtu = wish.mtu.unwrap_or(machine::BEST_MTU);
        let mut command = super::unprivileged(ours);
        command.args(COMMAND).args(&self.flags);
        command.args(["--mtu", &mtu.to_string(), "--socket"]).arg(&socket);
        if let Some(port) = wish.publish {
            command.args(["--publish", &format!("127.0.0.1:{port}:{port}")]);
        }
        let helper = machine::serve(&mut command, &socket)?;
        self.machine
            .start(host, &pontoon_qemu::stream(&socket), mtu, program, vec![helper])
    }

    fn command(&self) -> String {
        let interface = pontoon_qemu::stream(Path::new("SOCKET"));
        let flags: String = self.flags.iter().map(|flag| format!(" {flag}")).collect();
        format!(
            "pontoon {}{flags} --mtu {} --socket SOCKET; {}",
            COMMAND.join(" "),
            machine::BEST_MTU,
            machine::command(&interface)
        )
    }

    fn boot(&self) -> Duration {
        machine::BOOT
    }
}
