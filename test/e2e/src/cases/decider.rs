//! Cases about the decider: the Python program of docs/decider.md decides about the flows of a guest.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Signal;
use serde_json::Value;

use super::{OBEDIENT, expect, icmp, tcp_server, tmpfs};
use crate::case::{Case, Context, Family};
use crate::guest::tcp;
use crate::http::HttpClient;
use crate::network::Network;
use crate::process::{self, Process};
use crate::run::RunningProgram;
use crate::server;

/// The document that contains the decider.
const DOCUMENT: &str = include_str!("../../../../docs/decider.md");

const SOCKET: &str = "/run/decide";
const CONTROL: &str = "/run/control";
/// Port of the servers at the far end.
const PORT: u16 = 7000;

pub(super) fn cases() -> Vec<Case> {
    let both = [
        Case::both("decider.verdicts", 60, verdicts),
        Case::both("decider.clients", 60, clients),
    ];
    let others = [
        Case::new("decider.redirect-to-http-servers", 60, redirects),
        Case::new("decider.redirected-bytes-are-intact", 120, bytes),
        Case::new("decider.redirected-closes-and-resets", 60, closes),
        Case::new("decider.absent-hanging-or-killed", 60, absent),
        Case::new("decider.descriptor", 60, descriptor),
    ];
    both.into_iter()
        .flatten()
        .chain(others)
        .map(Case::pontoon_only)
        .collect()
}

/// The documented decider with another function `decide`, which runs until this value is dropped.
struct Decider(Child);

impl Decider {
    /// Returns the documented program with `body` as the body of its function `decide`.
    fn program(body: &str) -> Result<String> {
        let (_, code) = DOCUMENT
            .split_once("```python\n")
            .context("the document has no program")?;
        let (code, _) = code.split_once("```").context("the program does not end")?;
        let (before, rest) = code
            .split_once("def decide(flow):\n")
            .context("the program has no function decide")?;
        let (_, after) = rest
            .split_once("\n\n\n")
            .context("the function decide does not end")?;
        let body: String = body.lines().map(|line| format!("    {line}\n")).collect();
        Ok(format!(
            "import os, time\n{before}def decide(flow):\n{body}\n\n{after}"
        ))
    }

    /// Starts a decider, and waits until it is connected.
    fn start(body: &str) -> Result<Self> {
        std::fs::write("/run/decider.py", Self::program(body)?)?;
        let mut child = Command::new("python3")
            .args(["/run/decider.py", SOCKET])
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start python3")?;
        let mut line = String::new();
        let out = child.stdout.as_mut().context("standard output is not a pipe")?;
        BufReader::new(out).read_line(&mut line)?;
        ensure!(line == "connected\n", "the decider prints {line:?}");
        Ok(Self(child))
    }
}

impl Drop for Decider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A guest that runs the lines of its standard input, and servers at the far end of the network.
struct Scene<'a> {
    context: &'a Context,
    _network: Network<'a>,
    server: SocketAddr,
    guest: RunningProgram,
}

impl<'a> Scene<'a> {
    fn new(context: &'a Context, family: Family, options: &[&str]) -> Result<Self> {
        let network = Network::new(context)?;
        icmp::open_ping(context)?;
        tmpfs(Path::new("/run"))?;
        let server = SocketAddr::new(network.server_address(family), PORT);
        network.server().enter(|| {
            server::tcp::start(server)?;
            server::udp::start(server)
        })?;
        let guest = network
            .run()
            .options(["--control-decide", SOCKET, "--control", CONTROL])
            .options(options);
        let guest = guest.shell(OBEDIENT).spawn()?.listening()?;
        Ok(Self {
            context,
            _network: network,
            server,
            guest,
        })
    }

    /// Returns the protocols by which the guest reaches the server.
    fn reached(&mut self, family: Family) -> Result<Vec<String>> {
        let ip = self.server.ip();
        let line = format!(
            "$E2E guest raw reach {} {PORT} {ip} | tr '\\n' ';'; echo",
            family.suffix()
        );
        let text = self.guest.ask(&line)?;
        let protocols = text
            .split(';')
            .filter_map(|line| line.strip_prefix(&format!("{ip} ")));
        Ok(protocols.map(str::to_owned).collect())
    }

    /// Returns the time that a TCP connect of the guest took to succeed or to fail, and its result.
    fn connects(&mut self) -> Result<(bool, Duration)> {
        let begin = Instant::now();
        let line = format!(
            "$E2E guest tcp {} peer >/dev/null 2>&1 && echo reached || echo refused",
            self.server
        );
        let is_reached = self.guest.ask(&line)? == "reached";
        Ok((is_reached, begin.elapsed()))
    }

    fn counter(&self, name: &str) -> Result<u64> {
        let mut command = self.context.program.command()?;
        let text = process::output(command.args(["ctl", "--control", CONTROL, "--json", "stats"]))?;
        let stats: Value = serde_json::from_str(&text)?;
        stats["total"]["counters"][name]
            .as_u64()
            .with_context(|| format!("no counter {name}"))
    }
}

/// Tests each verdict for TCP, UDP and echo requests.
fn verdicts(context: &Context, family: Family) -> Result<()> {
    let mut scene = Scene::new(context, family, &[])?;
    // The guest uses the same ports and echo id each time, and what was allowed stays so.
    for (body, reached) in [
        ("return {'verdict': 'deny'}", vec![]),
        ("return {'verdict': 'deny', 'how': 'unreachable'}", vec![]),
        ("return {'verdict': 'deny', 'how': 'drop'}", vec![]),
        (
            "return {'verdict': 'allow' if flow['protocol'] == 'tcp' else 'deny'}",
            vec!["tcp"],
        ),
        (
            "return {'verdict': 'allow' if flow['protocol'] == 'udp' else 'deny'}",
            vec!["udp"],
        ),
        ("return {'verdict': 'allow'}", vec!["tcp", "udp", "icmp"]),
    ] {
        let _decider = Decider::start(body)?;
        let got = scene.reached(family)?;
        ensure!(
            got == reached,
            "{body}: the guest reaches {got:?} instead of {reached:?}"
        );
    }
    Ok(())
}

/// Tests clients of published ports: those that the decider denies do not reach the guest.
fn clients(context: &Context, family: Family) -> Result<()> {
    let loopback = super::host(family.loopback());
    let published = [format!("{loopback}:8080:80"), format!("{loopback}:8053:53/udp")];
    let mut scene = Scene::new(context, family, &["-p", &published[0], "-p", &published[1]])?;
    let any = super::host(family.unspecified());
    let serve = format!("$E2E guest serve tcp:{any}:80 udp:{any}:53 &");
    expect(&scene.guest.ask(&serve)?, "listening")?;
    let [tcp, udp] = [8080, 8053].map(|port| SocketAddr::new(family.loopback(), port));
    for (verdict, is_reached) in [("deny", false), ("allow", true)] {
        let _decider = Decider::start(&format!("return {{'verdict': '{verdict}'}}"))?;
        let reached = tcp::command(tcp, &["peer"]).is_ok_and(|seen| !seen.is_empty());
        ensure!(
            reached == is_reached,
            "{verdict}: a TCP client reaches the guest: {reached}"
        );
        let reached = answers(udp)?;
        ensure!(
            reached == is_reached,
            "{verdict}: a UDP client reaches the guest: {reached}"
        );
    }
    ensure!(
        scene.counter("decisions_denied")? >= 2,
        "not every client was denied"
    );
    Ok(())
}

/// Returns true if a datagram to the published port is answered.
fn answers(at: SocketAddr) -> Result<bool> {
    let socket = UdpSocket::bind(SocketAddr::new(at.ip(), 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.send_to(b"echo", at)?;
    Ok(socket.recv(&mut [0; 64]).is_ok())
}

/// The peers of redirected connections, and their clients in the guest.
const PEER: &str = include_str!("decider/peer.py");

/// Function of the decider that redirects port 7001 to TCP and port 7002 to a Unix socket, and denies nothing.
const REDIRECT: &str = "\
to = {'7001': '127.0.0.1:3128', '7002': 'unix:/run/proxy'}.get(flow['remote'].rsplit(':', 1)[1])
return {'verdict': 'redirect', 'to': to} if to else {'verdict': 'allow'}";

/// A guest whose ports 7001 and 7002 of the far end lead to servers on the host.
struct Redirected<'a> {
    scene: Scene<'a>,
    _decider: Decider,
    peers: Child,
}

impl<'a> Redirected<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        let scene = Scene::new(context, Family::V4, &[])?;
        std::fs::write("/run/peer.py", PEER)?;
        let mut peers = Command::new("python3")
            .args(["/run/peer.py", "serve", "3128", "/run/proxy", "/run/ends"])
            .stdout(Stdio::piped())
            .spawn()?;
        let out = peers.stdout.as_mut().context("standard output is not a pipe")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        ensure!(line == "listening\n", "the peers print {line:?}");
        Ok(Self {
            scene,
            _decider: Decider::start(REDIRECT)?,
            peers,
        })
    }

    /// Runs the client `mode` in the guest, to port `port` of the far end.
    fn client(&mut self, mode: &str, port: u16) -> Result<()> {
        let line = format!("python3 /run/peer.py {mode} {} {port}", self.scene.server.ip());
        let got = self.scene.guest.ask(&line)?;
        expect(&got, "ok").with_context(|| format!("{mode} to port {port}"))
    }

    /// Waits until a peer has noted how its connection ended.
    fn ended(&self, how: &[&str]) -> Result<()> {
        let noted = || std::fs::read_to_string("/run/ends").unwrap_or_default();
        let is_noted = || Ok(how.iter().any(|how| noted().contains(how)));
        process::wait_until(
            &format!("a peer notes {how:?}"),
            Duration::from_secs(10),
            is_noted,
        )?;
        Ok(())
    }
}

impl Drop for Redirected<'_> {
    fn drop(&mut self) {
        let _ = self.peers.kill();
        let _ = self.peers.wait();
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

fn bytes(context: &Context) -> Result<()> {
    let mut redirected = Redirected::new(context)?;
    for port in [7001, 7002] {
        redirected.client("swap", port)?;
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

/// Tests that new flows are denied: at once if there is no decider, at the deadline if it does not answer, and at once after
/// it was killed. Flows that were allowed before continue.
fn absent(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context, Family::V4, &["--decision-deadline", "3s"])?;
    let quick = Duration::from_secs(2);
    let (reached, took) = scene.connects()?;
    ensure!(
        !reached && took < quick,
        "without a decider: {reached} after {took:?}"
    );
    {
        let _decider = Decider::start("return {'verdict': 'allow'}")?;
        ensure!(scene.connects()?.0, "an allowed flow is refused");
        let hold = format!(
            "exec 9<>/dev/tcp/{}/{PORT}; echo echo >&9; echo held",
            scene.server.ip()
        );
        scene
            .guest
            .ask(&format!("export E2E; exec bash -c '{hold}; {OBEDIENT}'"))?;
        expect(&scene.guest.line()?, "listening")?;
    }
    {
        let decider = Decider::start("time.sleep(100)")?;
        let (reached, took) = scene.connects()?;
        let wanted = Duration::from_secs(3)..Duration::from_secs(6);
        ensure!(!reached && wanted.contains(&took), "{reached} after {took:?}");
        // The flow that was allowed before continues, and a program that does not decide receives 409.
        expect(&scene.guest.ask("echo line >&9; head -n 1 <&9")?, "line")?;
        let mut second = HttpClient::connect(SOCKET)?;
        ensure!(
            second.get("/v1/decisions").is_err(),
            "a second decider is accepted"
        );
        Process::of(decider.0.id()).signal(Signal::KILL)?;
    }
    let is_disconnected = || Ok(scene.counter("decisions_expired")? > 0);
    process::wait_until("the expiry is counted", quick, is_disconnected)?;
    let (reached, took) = scene.connects()?;
    ensure!(
        !reached && took < quick,
        "after its end: {reached} after {took:?}"
    );
    ensure!(
        scene.counter("decisions_unavailable")? >= 2,
        "denials are not counted"
    );
    let _decider = Decider::start("return {'verdict': 'allow'}")?;
    ensure!(scene.connects()?.0, "the next decider is not asked");
    Ok(())
}

/// Tests a decider at the other end of a descriptor, which is connected before the guest starts.
fn descriptor(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let flags = SocketFlags::empty();
    let (inherited, ours) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fcntl_setfd(&ours, FdFlags::CLOEXEC)?;
    let decider = std::thread::spawn(move || -> Result<usize> {
        let stream = UnixStream::from(ours);
        let mut count = 0;
        for line in BufReader::new(&stream).lines() {
            let flow: Value = serde_json::from_str(&line?)?;
            writeln!(&stream, "{{\"token\":{},\"verdict\":\"allow\"}}", flow["token"])?;
            count += 1;
        }
        Ok(count)
    });
    let number = inherited.as_raw_fd().to_string();
    let run = network.run().options(["--decider-fd", &number]);
    let run = run.guest(["tcp", &server.to_string(), "peer"]);
    let seen = run.text();
    drop(inherited);
    expect(&seen?, &network.host_address(Family::V4).to_string())?;
    let count = process::join(decider)?;
    ensure!(count == 1, "{count} requests");
    // A descriptor that is no socket ends the start with one line.
    let wrong = network
        .run()
        .options(["--decider-fd", "9"])
        .command(["true"])
        .output()?;
    ensure!(wrong.status.code() == Some(1), "{wrong:?}");
    Ok(())
}
