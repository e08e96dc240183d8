//! The stack pasta, of the passt project, with the options of container engines.

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
    name: "pasta",
    role: StackRole::Peer,
    find: StackFinder::Namespace(find),
};

const COMMAND: &[&str] = &[
    "--config-net",
    "--quiet",
    "--dns-forward",
    "198.51.100.53",
    "-u",
    "none",
    "-T",
    "none",
    "-U",
    "none",
];
/// The host's gateway. pasta copies its address into the guest and maps it to the host's loopback.
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2));
/// Address of the guest's DNS forwarder (pasta's option `--dns-forward`).
const DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 53));

/// The installed pasta, and its additional options.
struct Pasta {
    program: PathBuf,
    flags: Vec<String>,
}

fn find(wanted: &Selection) -> Result<FoundStack> {
    let (program, version) = super::passt_program(wanted, "pasta")?;
    Ok(FoundStack {
        version,
        stack: Box::new(Pasta {
            program,
            flags: wanted.flags.clone(),
        }),
    })
}

impl Stack for Pasta {
    fn addresses(&self) -> StackAddresses {
        StackAddresses {
            server: GATEWAY,
            resolver: DNS,
            published: Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn start(&self, _: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<StackProcesses> {
        let mut command = super::unprivileged(&self.program);
        command.args(COMMAND).args(&self.flags);
        let published = config.publish.map(|port| format!("127.0.0.1/{port}"));
        command.args(["-t", published.as_deref().unwrap_or("none")]);
        if let Some(mtu) = config.mtu {
            command.args(["--mtu", &mtu.to_string()]);
        }
        StackProcesses::alone(command.arg("--").args(program))
    }

    fn command(&self) -> String {
        super::command_line(&[&["pasta"], COMMAND, &["-t", "none"]].concat(), &self.flags)
    }
}
