//! The host side of a measurement: its network, its servers, and the client's program.

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

/// Commands of `pontoon-bench` that the harness starts.
pub(crate) const SERVER: &str = "load-server";
pub(crate) const CLIENT: &str = "load-client";
pub(crate) const FIRST_BYTE: &str = "first-byte";
pub(crate) const TAP_GUEST: &str = "tap-guest";

/// Ports to publish: open to unprivileged users, and below the range of ephemeral ports.
const PUBLISHED: Range<u16> = 1024..FIRST_LOCAL_PORT;

pub(crate) struct Host {
    pub(crate) sandbox_ns: SandboxNs,
    pub(crate) network: Network,
    /// A copy of this program that every user may run.
    pub(crate) client: PathBuf,
    /// The reason why there is no resolver.
    pub(crate) no_resolver: Option<String>,
    /// The port that was published last.
    published: Cell<u16>,
    /// Servers by the congestion control of their listening sockets.
    servers: BTreeMap<String, ServerProcess>,
}

struct ServerProcess {
    child: Child,
    ports: ServerPorts,
}

impl Host {
    /// Builds the host. The calling process must be alone in new namespaces.
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

    /// Prepares the host for a measurement with a congestion control, or with the machine's default, and returns its
    /// name.
    ///
    /// # Errors
    /// The kernel lacks the congestion control, or this user may not use it.
    pub(crate) fn prepare(&self, congestion_control: Option<&str>) -> Result<String> {
        self.network.set_loopback_mtu(LOOPBACK_MTU)?;
        self.network.set_congestion_control(congestion_control)
    }

    /// Returns the ports of the servers whose sockets have the congestion control that the host was prepared with.
    ///
    /// # Errors
    /// A server does not start.
    pub(crate) fn ports(&mut self, congestion_control: &str) -> Result<ServerPorts> {
        if let Some(server) = self.servers.get(congestion_control) {
            return Ok(server.ports);
        }
        let server = ServerProcess::start()?;
        let ports = server.ports;
        self.servers.insert(congestion_control.to_owned(), server);
        Ok(ports)
    }

    /// Returns a port of the host that was not used for a minute: until then the last connections to it are in
    /// TIME-WAIT, and it cannot be bound.
    pub(crate) fn port_to_publish(&self) -> u16 {
        let next = self.published.get() + 1;
        self.published.set(if next < PUBLISHED.end {
            next
        } else {
            PUBLISHED.start
        });
        self.published.get()
    }

    /// Returns the ids of the processes that stay between measurements.
    pub(crate) fn persistent_processes(&self) -> Vec<u32> {
        self.servers.values().map(|server| server.child.id()).collect()
    }

    /// Kills the servers after a failure. New ones start when they are needed.
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
        BufReader::new(child.stdout.take().context("the pipe is missing")?).read_line(&mut line)?;
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
