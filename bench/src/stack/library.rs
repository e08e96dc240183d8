//! The library in a program of its own, with each kind of guests. As in [`super::tap_guest`], the guest is a namespace with a tap.

use std::ffi::OsString;
use std::process::Child;

use anyhow::Result;
use clap::ValueEnum;

use super::backend;
use super::{FoundStack, NetworkConfig, Stack, StackAddresses, StackProcesses, tap_guest};
use crate::host::{Host, LIBRARY};
use crate::library::LibraryGuest;
use crate::tap_guest::GuestLink;

struct Library(LibraryGuest);

pub(super) fn find(guest: LibraryGuest) -> FoundStack {
    FoundStack {
        version: concat!("pontoon-bench ", env!("CARGO_PKG_VERSION")).to_owned(),
        stack: Box::new(Library(guest)),
    }
}

impl Library {
    fn guest_link(&self) -> GuestLink {
        match self.0 {
            LibraryGuest::VhostUser => GuestLink::Driver,
            LibraryGuest::Stream => GuestLink::Stream,
            LibraryGuest::Packet => GuestLink::Packet,
            LibraryGuest::Tap | LibraryGuest::Device | LibraryGuest::Frames => GuestLink::Tap,
        }
    }

    /// Returns the command line of `pontoon-bench library` up to the published port and the socket.
    fn command_line(&self, config: &NetworkConfig) -> [String; 5] {
        let guest = self.0.to_possible_value();
        let guest = guest.map(|guest| guest.get_name().to_owned()).unwrap_or_default();
        let mtu = backend::mtu(config).to_string();
        [
            LIBRARY.to_owned(),
            "--guest".to_owned(),
            guest,
            "--mtu".to_owned(),
            mtu,
        ]
    }

    fn serve(&self, host: &Host, config: &NetworkConfig, path: &std::path::Path) -> Result<Child> {
        let mut command = super::unprivileged(&host.client);
        command.args(self.command_line(config));
        if let Some(port) = config.publish {
            command.args(["--publish", &port.to_string()]);
        }
        command.arg(path);
        backend::start(&mut command, path)
    }
}

impl Stack for Library {
    fn addresses(&self) -> StackAddresses {
        backend::ADDRESSES
    }

    fn start(&self, host: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<StackProcesses> {
        let socket = host.sandbox_ns.world_writable_path("machine.sock")?;
        let helper = self.serve(host, config, &socket)?;
        tap_guest::start(host, self.guest_link(), config, &socket, program, helper)
    }

    fn command(&self) -> String {
        format!(
            "pontoon-bench {} S; {}",
            self.command_line(&NetworkConfig::default()).join(" "),
            tap_guest::command(self.guest_link())
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Bench;

    #[test]
    fn command_line_is_accepted_by_the_program() {
        for guest in LibraryGuest::value_variants() {
            let arguments = Library(*guest).command_line(&NetworkConfig::default());
            let line = ["bench".to_owned()].into_iter().chain(arguments);
            assert!(
                Bench::try_parse_from(line.chain(["S".to_owned()])).is_ok(),
                "{guest:?}"
            );
        }
    }
}
