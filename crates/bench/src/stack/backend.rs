//! Who serves a machine at a socket, QEMU's or ours: pontoon, or passt.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Place, Wanted, Wish};
use crate::host::Host;
use crate::schema::Role;

/// How long it may take until somebody listens.
const PATIENCE: Duration = Duration::from_secs(5);

/// The largest MTU that both take.
const BEST_MTU: u16 = 65520;

/// The gateway, which stands for the host's loopback.
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));
const DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3));

/// Addresses as both are told; the guest's is 10.0.2.15/24.
pub(super) const PLACE: Place = Place {
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

#[derive(Clone, Copy)]
pub(super) enum Who {
    Pontoon,
    Passt,
}

impl Who {
    pub(super) const fn role(self) -> Role {
        match self {
            Self::Pontoon => Role::Pontoon,
            Self::Passt => Role::Peer,
        }
    }
}

/// How the machine's frames go there.
#[derive(Clone, Copy)]
pub(super) enum Link {
    Stream,
    VhostUser,
}

/// A program that serves one machine.
pub(super) struct Backend {
    who: Who,
    name: String,
    link: Link,
    program: PathBuf,
    flags: Vec<String>,
    pub(super) version: String,
}

impl Backend {
    /// # Errors
    /// It is not here.
    pub(super) fn find(wanted: &Wanted, who: Who, link: Link) -> Result<Self> {
        let (program, version) = match who {
            Who::Pontoon => super::ours(wanted)?,
            Who::Passt => super::passts(wanted, "passt")?,
        };
        Ok(Self {
            who,
            name: wanted.name.clone(),
            link,
            program,
            flags: wanted.flags.clone(),
            version,
        })
    }

    /// Starts it at the socket `path`, and waits until it listens.
    ///
    /// # Errors
    /// It cannot be started, or does not listen.
    pub(super) fn serve(&self, host: &Host, wish: &Wish, path: &Path) -> Result<Child> {
        let mut command = super::unprivileged(match self.who {
            Who::Pontoon => host.enclosure.publish(&self.program, &self.name)?,
            Who::Passt => self.program.clone(),
        });
        command
            .args(self.words())
            .args(&self.flags)
            .args(["--mtu", &mtu(wish).to_string(), "--socket"])
            .arg(path);
        if let Some(port) = wish.publish {
            match self.who {
                Who::Pontoon => command.args(["--publish", &format!("127.0.0.1:{port}:{port}")]),
                Who::Passt => command.args(["--tcp-ports", &format!("127.0.0.1/{port}")]),
            };
        }
        let mut helper = super::spawn(&mut command)?;
        let begun = Instant::now();
        while !path.exists() {
            if helper.try_wait()?.is_some() || begun.elapsed() > PATIENCE {
                let name = command.get_program().display();
                anyhow::bail!("{name} does not listen: {}", super::give_up(helper));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(helper)
    }

    /// How it is started, for people.
    pub(super) fn command(&self) -> String {
        let name = match self.who {
            Who::Pontoon => "pontoon",
            Who::Passt => "passt",
        };
        let flags: String = self.flags.iter().map(|flag| format!(" {flag}")).collect();
        format!(
            "{name} {}{flags} --mtu {BEST_MTU} --socket S",
            self.words().join(" ")
        )
    }

    fn words(&self) -> Vec<&'static str> {
        let (words, link) = match (self.who, self.link) {
            (Who::Pontoon, Link::Stream) => (PONTOON, Some("stream")),
            (Who::Pontoon, Link::VhostUser) => (PONTOON, Some("vhost-user")),
            (Who::Passt, Link::Stream) => (PASST, None),
            (Who::Passt, Link::VhostUser) => (PASST, Some("--vhost-user")),
        };
        words.iter().copied().chain(link).collect()
    }
}

/// Of the machine's interface.
pub(super) fn mtu(wish: &Wish) -> u16 {
    wish.mtu.unwrap_or(BEST_MTU)
}
