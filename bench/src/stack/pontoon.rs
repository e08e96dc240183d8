//! The stack `pontoon run`.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::Result;

use super::{
    FoundStack, NetworkConfig, Selection, Stack, StackAddresses, StackFinder, StackKind, StackProcesses,
};
use crate::host::Host;
use crate::schema::StackRole;

pub(super) const KIND: StackKind = StackKind {
    name: "pontoon",
    role: StackRole::Pontoon,
    find: StackFinder::Namespace(find),
};

const COMMAND: &[&str] = &["run", "--quiet", "--host-loopback", "--ipv4", "10.0.2.0/24"];
/// The guest's gateway, which pontoon maps to the host's loopback.
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));
/// Address of the guest's DNS forwarder.
const DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3));

/// The installed pontoon, and its additional options.
struct Pontoon {
    name: String,
    program: PathBuf,
    flags: Vec<String>,
}

fn find(wanted: &Selection) -> Result<FoundStack> {
    let (program, version) = super::pontoon_program(wanted)?;
    Ok(FoundStack {
        version,
        stack: Box::new(Pontoon {
            name: wanted.name.clone(),
            program,
            flags: wanted.flags.clone(),
        }),
    })
}

impl Stack for Pontoon {
    fn addresses(&self) -> StackAddresses {
        StackAddresses {
            server: GATEWAY,
            resolver: DNS,
            published: Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn start(&self, host: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<StackProcesses> {
        let program_copy = host.sandbox_ns.install_program(&self.program, &self.name)?;
        let mut command = super::unprivileged(program_copy);
        command.args(COMMAND).args(&self.flags);
        if let Some(mtu) = config.mtu {
            command.args(["--mtu", &mtu.to_string()]);
        }
        if let Some(port) = config.publish {
            command.args(["--publish", &format!("127.0.0.1:{port}:{port}")]);
        }
        StackProcesses::alone(command.arg("--").args(program))
    }

    fn command(&self) -> String {
        super::command_line(&[&["pontoon"], COMMAND].concat(), &self.flags)
    }
}
