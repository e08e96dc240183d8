//! A machine at native speed behind a vhost-user device: a namespace whose tap our own virtio driver joins to the
//! device's queues. The driver is part of what is measured, the same for every device.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Found, Kind, Place, Stack, Started, Wanted, Wish};
use crate::host::{Host, MACHINE};
use crate::schema::Role;

pub(super) const PONTOON: Kind = kind("driver-pontoon", Role::Pontoon, pontoon);
pub(super) const PASST: Kind = kind("driver-passt", Role::Peer, passt);
/// The same without checksum and segmentation offload.
pub(super) const BARE_PONTOON: Kind = kind("bare-driver-pontoon", Role::Pontoon, bare_pontoon);
pub(super) const BARE_PASST: Kind = kind("bare-driver-passt", Role::Peer, bare_passt);

/// Has nothing to do with those that `run` would meet, so it takes part by its name only.
const fn kind(name: &'static str, role: Role, find: fn(&Wanted) -> Result<Found>) -> Kind {
    Kind {
        name,
        role,
        usual: false,
        find,
    }
}

/// The gateway, which stands for the host's loopback.
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));
const DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3));

/// What guests of vhost-user devices are given where nobody says otherwise, but for pontoon's 1500.
const BEST_MTU: u16 = 65520;

const PONTOON_COMMAND: &[&str] = &[
    "vm",
    "--quiet",
    "--protocol",
    "vhost-user",
    "--one-off",
    "--host-loopback",
    "--ipv4",
    "10.0.2.0/24",
];
const PASST_COMMAND: &[&str] = &[
    "--vhost-user",
    "--foreground",
    "--quiet",
    "--one-off",
    "--ipv4-only",
    "--address",
    "10.0.2.15",
    "--netmask",
    "24",
    "--gateway",
    "10.0.2.2",
    "--map-host-loopback",
    "10.0.2.2",
    "--dns-forward",
    "10.0.2.3",
];

struct Driver {
    name: String,
    device: Device,
    program: PathBuf,
    bare: bool,
    flags: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Device {
    Pontoon,
    Passt,
}

fn pontoon(wanted: &Wanted) -> Result<Found> {
    find(wanted, Device::Pontoon, false)
}

fn passt(wanted: &Wanted) -> Result<Found> {
    find(wanted, Device::Passt, false)
}

fn bare_pontoon(wanted: &Wanted) -> Result<Found> {
    find(wanted, Device::Pontoon, true)
}

fn bare_passt(wanted: &Wanted) -> Result<Found> {
    find(wanted, Device::Passt, true)
}

fn find(wanted: &Wanted, device: Device, bare: bool) -> Result<Found> {
    let program = match (device, &wanted.program) {
        (Device::Pontoon, None) => std::env::current_exe().context("cannot find this program")?,
        (Device::Pontoon, Some(given)) => super::existing(given)?,
        (Device::Passt, _) => super::program(wanted, "passt", "passt")?,
    };
    let mut version = super::version(&program)?;
    if wanted.program.is_some() {
        version = format!("{version} ({})", program.display());
    }
    Ok(Found {
        version,
        stack: Box::new(Driver {
            name: wanted.name.clone(),
            device,
            program,
            bare,
            flags: wanted.flags.clone(),
        }),
    })
}

impl Driver {
    /// The device's program, listening on `socket`.
    fn device(&self, host: &Host, wish: &Wish, socket: &Path) -> Result<Command> {
        let program = match self.device {
            Device::Pontoon => host.enclosure.publish(&self.program, &self.name)?,
            Device::Passt => self.program.clone(),
        };
        let mut command = super::unprivileged(program);
        command
            .args(self.words())
            .args(&self.flags)
            .arg("--socket")
            .arg(socket)
            .args(["--mtu", &mtu(wish).to_string()]);
        if let Some(port) = wish.publish {
            match self.device {
                Device::Pontoon => command.args(["--publish", &format!("127.0.0.1:{port}:{port}")]),
                Device::Passt => command.args(["--tcp-ports", &format!("127.0.0.1/{port}")]),
            };
        }
        Ok(command)
    }

    fn words(&self) -> &'static [&'static str] {
        match self.device {
            Device::Pontoon => PONTOON_COMMAND,
            Device::Passt => PASST_COMMAND,
        }
    }
}

impl Stack for Driver {
    fn place(&self) -> Place {
        Place {
            server: GATEWAY,
            resolver: DNS,
            published: Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn start(&self, host: &Host, wish: &Wish, program: &[OsString]) -> Result<Started> {
        let socket = host.enclosure.open_place("vhost-user.sock")?;
        let helper = super::spawn(&mut self.device(host, wish, &socket)?)?;
        let mut guest = super::unprivileged("unshare");
        guest
            .args(["--user", "--map-root-user", "--net", "--"])
            .arg(&host.client)
            .arg(MACHINE)
            .args(["--mtu", &mtu(wish).to_string()])
            .args(self.bare.then_some("--bare"))
            .arg(&socket)
            .arg("--")
            .args(program);
        Ok(Started {
            guest: super::spawn(&mut guest)?,
            helpers: vec![helper],
        })
    }

    fn command(&self) -> String {
        let name = match self.device {
            Device::Pontoon => "pontoon",
            Device::Passt => "passt",
        };
        let flags: String = self.flags.iter().map(|flag| format!(" {flag}")).collect();
        let bare = if self.bare { " --bare" } else { "" };
        format!(
            "{name} {}{flags} --mtu {BEST_MTU} --socket S; \
             unshare --user --map-root-user --net -- pontoon {MACHINE} --mtu {BEST_MTU}{bare} S -- CLIENT",
            self.words().join(" ")
        )
    }
}

fn mtu(wish: &Wish) -> u16 {
    wish.mtu.unwrap_or(BEST_MTU)
}
