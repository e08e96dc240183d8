//! Programs that serve a virtual machine's network on a UNIX socket: pontoon and passt.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{NetworkConfig, Selection, StackAddresses};
use crate::host::Host;
use crate::schema::StackRole;

/// Time limit for the backend to listen on its socket.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The largest MTU that both backends support, in bytes.
const BEST_MTU: u16 = 65520;

/// The guest's gateway, which both backends map to the host's loopback.
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));
/// Address of the guest's DNS forwarder.
const DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3));

/// The addresses with which both backends are configured; the guest's is 10.0.2.15/24.
pub(super) const ADDRESSES: StackAddresses = StackAddresses {
    server: GATEWAY,
    resolver: DNS,
    published: IpAddr::V4(Ipv4Addr::LOCALHOST),
};

const PONTOON: &[&str] = &[
    "vm",
    "--quiet",
    "--one-off",
    "--host-loopback",
    "--ipv4",
    "10.0.2.0/24",
    "--protocol",
];
const PASST: &[&str] = &[
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

/// The program that serves a machine's network.
#[derive(Clone, Copy)]
pub(super) enum BackendKind {
    Pontoon,
    Passt,
}

impl BackendKind {
    pub(super) const fn role(self) -> StackRole {
        match self {
            Self::Pontoon => StackRole::Pontoon,
            Self::Passt => StackRole::Peer,
        }
    }
}

/// The protocol between the virtual machine and the backend.
#[derive(Clone, Copy)]
pub(super) enum BackendLink {
    Stream,
    Packet,
    VhostUser,
}

/// An installed backend, pontoon or passt, which serves one machine.
pub(super) struct Backend {
    kind: BackendKind,
    name: String,
    link: BackendLink,
    program: PathBuf,
    flags: Vec<String>,
    pub(super) version: String,
}

impl Backend {
    /// Finds the program of a backend.
    ///
    /// # Errors
    /// The program is not installed.
    pub(super) fn find(wanted: &Selection, kind: BackendKind, link: BackendLink) -> Result<Self> {
        let (program, version) = match kind {
            BackendKind::Pontoon => super::pontoon_program(wanted)?,
            BackendKind::Passt if matches!(link, BackendLink::Packet) => bail!("passt has no packet socket"),
            BackendKind::Passt => super::passt_program(wanted, "passt")?,
        };
        Ok(Self {
            kind,
            name: wanted.name.clone(),
            link,
            program,
            flags: wanted.flags.clone(),
            version,
        })
    }

    /// Starts the program at the socket `path`, and waits until it listens.
    ///
    /// # Errors
    /// The program cannot be started, or does not listen in time.
    pub(super) fn serve(&self, host: &Host, config: &NetworkConfig, path: &Path) -> Result<Child> {
        let mut command = super::unprivileged(match self.kind {
            BackendKind::Pontoon => host.sandbox_ns.install_program(&self.program, &self.name)?,
            BackendKind::Passt => self.program.clone(),
        });
        command
            .args(self.command_line())
            .args(&self.flags)
            .args(["--mtu", &mtu(config).to_string(), "--socket"])
            .arg(path);
        if let Some(port) = config.publish {
            match self.kind {
                BackendKind::Pontoon => command.args(["--publish", &format!("127.0.0.1:{port}:{port}")]),
                BackendKind::Passt => command.args(["--tcp-ports", &format!("127.0.0.1/{port}")]),
            };
        }
        start(&mut command, path)
    }

    /// Returns the command that starts the backend, for the report.
    pub(super) fn command(&self) -> String {
        let name = match self.kind {
            BackendKind::Pontoon => "pontoon",
            BackendKind::Passt => "passt",
        };
        let flags: String = self.flags.iter().map(|flag| format!(" {flag}")).collect();
        format!(
            "{name} {}{flags} --mtu {BEST_MTU} --socket S",
            self.command_line().join(" ")
        )
    }

    fn command_line(&self) -> Vec<&'static str> {
        let (command_line, link) = match (self.kind, self.link) {
            (BackendKind::Pontoon, BackendLink::Stream) => (PONTOON, Some("stream")),
            (BackendKind::Pontoon, BackendLink::Packet) => (PONTOON, Some("packet")),
            (BackendKind::Pontoon, BackendLink::VhostUser) => (PONTOON, Some("vhost-user")),
            (BackendKind::Passt, BackendLink::Stream | BackendLink::Packet) => (PASST, None),
            (BackendKind::Passt, BackendLink::VhostUser) => (PASST, Some("--vhost-user")),
        };
        command_line.iter().copied().chain(link).collect()
    }
}

/// Starts a backend, and waits until it listens at `path`.
///
/// # Errors
/// The program cannot be started, or does not listen in time.
pub(super) fn start(command: &mut Command, path: &Path) -> Result<Child> {
    let mut helper = super::spawn(command)?;
    let begun = Instant::now();
    while !path.exists() {
        if helper.try_wait()?.is_some() || begun.elapsed() > TIMEOUT {
            let name = command.get_program().display();
            bail!("{name} does not listen: {}", super::kill_helper(helper));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(helper)
}

/// Returns the MTU of the machine's interface in bytes.
pub(super) fn mtu(config: &NetworkConfig) -> u16 {
    config.mtu.unwrap_or(BEST_MTU)
}
