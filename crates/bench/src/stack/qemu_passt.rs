//! passt serving QEMU.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::machine::{self, Link, Machine};
use super::{Found, Kind, Place, Stack, Started, Wanted, Wish};
use crate::host::Host;
use crate::schema::Role;

pub(super) const STREAM: Kind = kind("qemu-passt", stream);
pub(super) const VHOST_USER: Kind = kind("qemu-vhost-user-passt", vhost_user);

const fn kind(name: &'static str, find: fn(&Wanted) -> Result<Found>) -> Kind {
    Kind {
        name,
        role: Role::Peer,
        usual: false,
        find,
    }
}

/// The gateway stands for the host's loopback where nothing else is said.
const COMMAND: &[&str] = &[
    "--foreground",
    "--quiet",
    "--one-off",
    "--address",
    "10.0.2.15",
    "--netmask",
    "24",
    "--gateway",
    "10.0.2.2",
    "--dns-forward",
    "10.0.2.3",
    "-u",
    "none",
];

struct QemuPasst {
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
    let (program, version) = super::passts(wanted, "passt")?;
    let machine = Machine::find()?;
    Ok(Found {
        version: format!("{version}, {}", machine.version()?),
        stack: Box::new(QemuPasst {
            link,
            machine,
            program,
            flags: wanted.flags.clone(),
        }),
    })
}

impl QemuPasst {
    fn option(&self) -> Option<&'static str> {
        match self.link {
            Link::Stream => None,
            Link::VhostUser => Some("--vhost-user"),
        }
    }
}

impl Stack for QemuPasst {
    fn place(&self) -> Place {
        machine::PLACE
    }

    fn start(&self, host: &Host, wish: &Wish, program: &[OsString]) -> Result<Started> {
        let socket = host.enclosure.open_place("passt.sock")?;
        let mtu = wish.mtu.unwrap_or(machine::BEST_MTU);
        let mut command = super::unprivileged(&self.program);
        command.args(COMMAND).args(self.option()).args(&self.flags);
        command.args(["--mtu", &mtu.to_string(), "--socket"]).arg(&socket);
        let published = wish.publish.map(|port| format!("127.0.0.1/{port}"));
        command.args(["-t", published.as_deref().unwrap_or("none")]);
        let helper = machine::serve(&mut command, &socket)?;
        self.machine
            .start(host, &self.link.interface(&socket), mtu, program, vec![helper])
    }

    fn command(&self) -> String {
        let interface = self.link.interface(Path::new("SOCKET"));
        let option: String = self
            .option()
            .map(|option| format!(" {option}"))
            .unwrap_or_default();
        let flags: String = self.flags.iter().map(|flag| format!(" {flag}")).collect();
        format!(
            "passt {}{option}{flags} --mtu {} --socket SOCKET -t none; {}",
            COMMAND.join(" "),
            machine::BEST_MTU,
            machine::command(&interface)
        )
    }

    fn boot(&self) -> Duration {
        machine::BOOT
    }
}
