//! Pontoon serving QEMU.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::machine::{self, Link, Machine};
use super::{Found, Kind, Place, Stack, Started, Wanted, Wish};
use crate::host::Host;
use crate::schema::Role;

pub(super) const STREAM: Kind = kind("qemu-pontoon", stream);
pub(super) const VHOST_USER: Kind = kind("qemu-vhost-user-pontoon", vhost_user);

const fn kind(name: &'static str, find: fn(&Wanted) -> Result<Found>) -> Kind {
    Kind {
        name,
        role: Role::Pontoon,
        usual: false,
        find,
    }
}

const COMMAND: &[&str] = &[
    "vm",
    "--quiet",
    "--host-loopback",
    "--ipv4",
    "10.0.2.0/24",
    "--protocol",
];

struct QemuPontoon {
    name: String,
    link: Link,
    machine: Machine,
    program: PathBuf,
    flags: Vec<String>,
}

fn stream(wanted: &Wanted) -> Result<Found> {
    find(wanted, Link::Stream)
}

fn vhost_user(wanted: &Wanted) -> Result<Found> {
    find(wanted, Link::VhostUser)
}

fn find(wanted: &Wanted, link: Link) -> Result<Found> {
    let (program, version) = super::ours(wanted)?;
    let machine = Machine::find()?;
    Ok(Found {
        version: format!("{version}, {}", machine.version()?),
        stack: Box::new(QemuPontoon {
            name: wanted.name.clone(),
            link,
            machine,
            program,
            flags: wanted.flags.clone(),
        }),
    })
}

impl QemuPontoon {
    fn protocol(&self) -> &'static str {
        match self.link {
            Link::Stream => "stream",
            Link::VhostUser => "vhost-user",
        }
    }
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
        command.args(COMMAND).arg(self.protocol()).args(&self.flags);
        command.args(["--mtu", &mtu.to_string(), "--socket"]).arg(&socket);
        if let Some(port) = wish.publish {
            command.args(["--publish", &format!("127.0.0.1:{port}:{port}")]);
        }
        let helper = machine::serve(&mut command, &socket)?;
        self.machine
            .start(host, &self.link.interface(&socket), mtu, program, vec![helper])
    }

    fn command(&self) -> String {
        let interface = self.link.interface(Path::new("SOCKET"));
        let flags: String = self.flags.iter().map(|flag| format!(" {flag}")).collect();
        format!(
            "pontoon {} {}{flags} --mtu {} --socket SOCKET; {}",
            COMMAND.join(" "),
            self.protocol(),
            machine::BEST_MTU,
            machine::command(&interface)
        )
    }

    fn boot(&self) -> Duration {
        machine::BOOT
    }
}
