//! Cases about redirected connections: their servers are on the host, behind a TCP port and a Unix socket.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Decider, Scene};
use crate::case::{Case, Context, Family};
use crate::cases::{expect, wanted};
use crate::process;

pub(super) fn cases() -> [Case; 4] {
    [
        Case::new("decider.redirect-to-http-servers", 60, redirects),
        Case::new("decider.redirected-bytes-are-intact", 120, bytes),
        Case::new("decider.redirected-closes-and-resets", 60, closes),
        Case::new("decider.redirected-server-is-killed", 60, killed),
    ]
}

/// The servers of redirected connections, and their clients in the guest.
const PEER: &str = include_str!("peer.py");

/// Function of the decider that redirects port 7001 to TCP and port 7002 to a Unix socket, and denies nothing.
pub(super) const REDIRECT: &str = "\
to = {'7001': '127.0.0.1:3128', '7002': 'unix:/run/proxy'}.get(flow['remote'].rsplit(':', 1)[1])
return {'verdict': 'redirect', 'to': to} if to else {'verdict': 'allow'}";

/// The ports that the decider redirects.
pub(super) const PORTS: [u16; 2] = [7001, 7002];

/// Number of MiB that a connection carries in each direction: `PONTOON_REDIRECT`, or less.
pub(super) fn mebibytes() -> u32 {
    wanted("PONTOON_REDIRECT", 128)
}

/// The servers to which connections are redirected, which run until this value is dropped.
pub(super) struct Servers(Child);

impl Servers {
    pub(super) fn start() -> Result<Self> {
        std::fs::write("/run/peer.py", PEER)?;
        let _ = std::fs::remove_file("/run/proxy");
        let mut child = Command::new("python3")
            .args(["/run/peer.py", "serve", "3128", "/run/proxy", "/run/ends"])
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.as_mut().context("a pipe")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        ensure!(line == "listening\n", "the servers print {line:?}");
        Ok(Self(child))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A guest whose ports 7001 and 7002 of the far end lead to servers on the host.
struct Redirected<'a> {
    scene: Scene<'a>,
    _decider: Decider,
    servers: Option<Servers>,
}

impl<'a> Redirected<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        let scene = Scene::new(context, Family::V4, &[])?;
        let servers = Some(Servers::start()?);
        Ok(Self {
            scene,
            _decider: Decider::start(REDIRECT)?,
            servers,
        })
    }

    /// Returns the line that runs the client `mode` in the guest, to port `port` of the far end.
    fn line(&self, mode: &str, port: u16) -> String {
        let ip = self.scene.server.ip();
        format!("python3 /run/peer.py {mode} {ip} {port} {}", mebibytes())
    }

    /// Runs the client `mode` in the guest.
    fn client(&mut self, mode: &str, port: u16) -> Result<()> {
        let line = self.line(mode, port);
        let got = self.scene.guest.ask(&line)?;
        expect(&got, "ok").with_context(|| format!("{mode} to port {port}"))
    }

    /// Waits until a server has noted how its connection ended.
    fn ended(&self, how: &[&str]) -> Result<()> {
        let noted = || std::fs::read_to_string("/run/ends").unwrap_or_default();
        let is_noted = || Ok(how.iter().any(|how| noted().contains(how)));
        process::wait_until(
            &format!("a server notes {how:?}"),
            Duration::from_secs(10),
            is_noted,
        )?;
        Ok(())
    }
}

fn redirects(context: &Context) -> Result<()> {
    let mut redirected = Redirected::new(context)?;
    let ip = redirected.scene.server.ip();
    for (port, body) in [(7001, "from 3128"), (7002, "from /run/proxy")] {
        let line = format!("curl -s -m 10 http://{ip}:{port}/; echo");
        expect(&redirected.scene.guest.ask(&line)?, body)?;
    }
    // Other flows are not redirected.
    ensure!(redirected.scene.connects()?.0, "the far end is not reached");
    Ok(())
}

/// Tests that both directions of a connection carry their bytes at the same time: the hashes of both ends are compared.
fn bytes(context: &Context) -> Result<()> {
    let mut redirected = Redirected::new(context)?;
    for port in PORTS {
        let begin = Instant::now();
        redirected.client("swap", port)?;
        let mebibytes = mebibytes();
        eprintln!("{mebibytes} MiB each way to port {port}: {:?}", begin.elapsed());
    }
    Ok(())
}

fn closes(context: &Context) -> Result<()> {
    let mut redirected = Redirected::new(context)?;
    // The close of a Unix socket with unread data is an error for its peer, too.
    let unix = ["/run/proxy: end", "/run/proxy: reset"];
    for (port, reset) in [(7001, &["3128: reset"][..]), (7002, &unix)] {
        redirected.client("half-theirs", port)?;
        redirected.client("reset-theirs", port)?;
        redirected.client("reset-ours", port)?;
        redirected.ended(reset)?;
    }
    redirected.ended(&["3128: after"])?;
    redirected.ended(&["/run/proxy: after"])
}

/// Tests servers that are killed during a connection: the guest gets the end of the connection, and later connections are
/// refused.
fn killed(context: &Context) -> Result<()> {
    let mut redirected = Redirected::new(context)?;
    for port in PORTS {
        let lines = redirected.line("held", port);
        expect(&redirected.scene.guest.ask(&format!("{lines} &"))?, "held")?;
    }
    redirected.servers = None;
    for _ in PORTS {
        expect(&redirected.scene.guest.line()?, "ended")?;
    }
    for port in PORTS {
        redirected.client("refused", port)?;
    }
    redirected.servers = Some(Servers::start()?);
    for port in PORTS {
        redirected.client("half-theirs", port)?;
    }
    Ok(())
}
