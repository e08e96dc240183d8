//! Pontoon: this program, or another build of it.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::Result;

use super::{Find, Found, Kind, Place, Stack, Started, Wanted, Wish};
use crate::host::Host;
use crate::schema::Role;

pub(super) const KIND: Kind = Kind {
    name: "pontoon",
    role: Role::Pontoon,
    find: Find::Namespace(find),
};

const COMMAND: &[&str] = &["run", "--quiet", "--host-loopback", "--ipv4", "10.0.2.0/24"];
/// The gateway, which stands for the host's loopback.
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));
const DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3));

struct Pontoon {
    name: String,
    program: PathBuf,
    flags: Vec<String>,
}

fn find(wanted: &Wanted) -> Result<Found> {
    let (program, version) = super::ours(wanted)?;
    Ok(Found {
        version,
        stack: Box::new(Pontoon {
            name: wanted.name.clone(),
            program,
            flags: wanted.flags.clone(),
        }),
    })
}

impl Stack for Pontoon {
    fn place(&self) -> Place {
        Place {
            server: GATEWAY,
            resolver: DNS,
            published: Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn start(&self, host: &Host, wish: &Wish, program: &[OsString]) -> Result<Started> {
        let ours = host.enclosure.publish(&self.program, &self.name)?;
        let mut command = super::unprivileged(ours);
        command.args(COMMAND).args(&self.flags);
        if let Some(mtu) = wish.mtu {
            command.args(["--mtu", &mtu.to_string()]);
        }
        if let Some(port) = wish.publish {
            command.args(["--publish", &format!("127.0.0.1:{port}:{port}")]);
        }
        Started::alone(command.arg("--").args(program))
    }

    fn command(&self) -> String {
        super::words(&[&["pontoon"], COMMAND].concat(), &self.flags)
    }
}
