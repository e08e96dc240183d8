//! The host side of a measurement: its network, the load servers, and the program of the load client.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::job::ServerPorts;
use crate::network::{FIRST_LOCAL_PORT, LOOPBACK_MTU, Network, resolver};
use crate::sandbox_ns::SandboxNs;

/// Subcommand of `pontoon-bench` that the harness runs as the server of all measurements.
pub(crate) const SERVER: &str = "load-server";
/// Subcommand of `pontoon-bench` that the harness runs inside of a stack, as the client of all measurements.
pub(crate) const CLIENT: &str = "load-client";
pub(crate) const FIRST_BYTE: &str = "first-byte";
pub(crate) const TAP_GUEST: &str = "tap-guest";
pub(crate) const LIBRARY: &str = "library";

/// TCP ports of the guest that measurements publish: above the privileged ports, and below the range of
/// ephemeral ports.
const PUBLISHED: Range<u16> = 1024..FIRST_LOCAL_PORT;

/// The host of a run: its network, the DNS resolver, and the load servers.
pub(crate) struct Host {
    pub(crate) sandbox_ns: SandboxNs,
    pub(crate) network: Network,
    /// Path of a copy of this program that every user may execute, as stacks run unprivileged.
    pub(crate) client: PathBuf,
    /// Error of starting the DNS resolver on port 53, or `None` if it runs.
    pub(crate) no_resolver: Option<String>,
    /// TCP port that was published most recently.
    published: Cell<u16>,
    /// Load servers by the congestion control of their listening sockets.
    servers: BTreeMap<String, ServerProcess>,
}

/// A running `load-server` and its ports. It is killed on drop.
struct ServerProcess {
    child: Child,
    ports: ServerPorts,
}

impl Host {
    /// Builds the host. The calling process must be the only one in new namespaces.
    ///
    /// # Errors
    /// A program or a kernel feature is missing.
    pub(crate) fn new(sandbox_ns: SandboxNs) -> Result<Self> {
        let network = Network::new()?;
        let resolver = sandbox_ns
            .replace_resolv_conf("nameserver 127.0.0.1\n")
            .and_then(|()| resolver::start());
        let this = std::env::current_exe().context("cannot find the path of this program")?;
        Ok(Self {
            client: sandbox_ns.install_program(&this, "bench")?,
            sandbox_ns,
            network,
            no_resolver: resolver.err().map(|error| format!("{error:#}")),
            published: Cell::new(PUBLISHED.start),
            servers: BTreeMap::new(),
        })
    }

    /// Sets the TCP congestion control for the next measurement; `None` selects the machine's default.
    /// Returns its name.
    ///
    /// # Errors
    /// The kernel lacks the congestion control, or this user may not use it.
    pub(crate) fn prepare(&self, congestion_control: Option<&str>) -> Result<String> {
        self.network.set_loopback_mtu(LOOPBACK_MTU)?;
        self.network.set_congestion_control(congestion_control)
    }

    /// Returns the ports of the load server whose listening sockets have this congestion control, and starts
    /// it if necessary.
    ///
    /// # Errors
    /// The server does not start.
    pub(crate) fn ports(&mut self, congestion_control: &str) -> Result<ServerPorts> {
        if let Some(server) = self.servers.get(congestion_control) {
            return Ok(server.ports);
        }
        let server = ServerProcess::start()?;
        let ports = server.ports;
        self.servers.insert(congestion_control.to_owned(), server);
        Ok(ports)
    }

    /// Returns a TCP port that was not published for a minute. Until then the last connections to a port are
    /// in TIME-WAIT, and it cannot be bound.
    pub(crate) fn port_to_publish(&self) -> u16 {
        let next = self.published.get() + 1;
        self.published.set(if next < PUBLISHED.end {
            next
        } else {
            PUBLISHED.start
        });
        self.published.get()
    }

    /// Returns the ids of the processes that run during all measurements, and so are not part of a stack.
    pub(crate) fn persistent_processes(&self) -> Vec<u32> {
        self.servers.values().map(|server| server.child.id()).collect()
    }

    /// Kills the load servers after a failed measurement. The next measurement starts new ones.
    pub(crate) fn restart_servers(&mut self) {
        self.servers.clear();
    }
}

impl ServerProcess {
    fn start() -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([SERVER, "0.0.0.0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("the child process has no pipe")?).read_line(&mut line)?;
        let ports = serde_json::from_str(&line).context("the server did not write its ports")?;
        Ok(Self { child, ports })
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
