//! The stack `direct`: the client runs on the host and uses its loopback, without a namespace.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use anyhow::{Context, Result};

use super::{
    FoundStack, NetworkConfig, Selection, Stack, StackAddresses, StackFinder, StackKind, StackProcesses,
};
use crate::host::Host;
use crate::schema::StackRole;

pub(super) const KIND: StackKind = StackKind {
    name: "direct",
    role: StackRole::Kernel,
    find: StackFinder::Namespace(find),
};

/// The stack `direct`, which has no namespace.
struct Direct;

fn find(_: &Selection) -> Result<FoundStack> {
    Ok(FoundStack {
        version: super::version_of_kernel(),
        stack: Box::new(Direct),
    })
}

impl Stack for Direct {
    fn addresses(&self) -> StackAddresses {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        StackAddresses {
            server: loopback,
            resolver: loopback,
            published: loopback,
        }
    }

    fn start(&self, host: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<StackProcesses> {
        if let Some(mtu) = config.mtu {
            host.network.set_loopback_mtu(mtu.into())?;
        }
        let (program, arguments) = program.split_first().context("no program was given")?;
        StackProcesses::alone(Command::new(program).args(arguments))
    }

    fn command(&self) -> String {
        "CLIENT".to_owned()
    }
}
