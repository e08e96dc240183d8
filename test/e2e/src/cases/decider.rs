//! Cases about the decider: the Python program of docs/decider.md decides about the flows of a guest.

mod redirected;
mod vm;

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
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
        Case::new("decider.absent-hanging-or-killed", 60, absent),
        Case::new("decider.engine-killed", 60, engine_killed),
        Case::new("decider.descriptor", 60, descriptor),
    ];
    both.into_iter()
        .flatten()
        .chain(others)
        .chain(redirected::cases())
        .chain(vm::cases())
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

/// Client of the socket that reads requests for decisions.
struct RequestStream(BufReader<UnixStream>);

impl RequestStream {
    /// Connects, and waits until the engine knows of this decider.
    fn connect() -> Result<Self> {
        let mut stream = UnixStream::connect(SOCKET)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(b"GET /v1/decisions HTTP/1.1\r\n\r\n")?;
        let mut stream = Self(BufReader::new(stream));
        while !stream.line()?.is_empty() {}
        expect(&stream.line()?, r#"{"connected":true}"#)?;
        Ok(stream)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(
            self.0.read_line(&mut line)? > 0,
            "the stream of requests has ended"
        );
        Ok(line.trim_end().to_owned())
    }

    /// Returns the next request about a flow in this direction.
    fn request(&mut self, direction: &str) -> Result<Value> {
        loop {
            let request: Value = serde_json::from_str(&self.line()?)?;
            if request["direction"] == direction {
                return Ok(request);
            }
        }
    }
}

/// Sends the verdict to allow a flow; returns the status.
fn allow(request: &Value) -> Result<String> {
    let url = format!("http://pontoon/v1/decisions/{}", request["token"]);
    let verdict = r#"{"verdict":"allow"}"#;
    let output = [
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "--unix-socket",
        SOCKET,
    ];
    process::output(Command::new("curl").args(output).args(["-d", verdict, &url]))
}

/// Tests a kill of the engine while decisions are pending: a client of a published port is disconnected, the connection of the
/// guest is asked about again when the guest repeats its SYN, and verdicts for the earlier requests are refused.
fn engine_killed(context: &Context) -> Result<()> {
    let options = ["--decision-deadline", "60s", "-p", "8080:80"];
    let mut scene = Scene::new(context, Family::V4, &options)?;
    let mut requests = RequestStream::connect()?;
    let connect = format!(
        "$E2E guest tcp {} peer >/dev/null 2>&1 && echo reached || echo refused",
        scene.server
    );
    scene.guest.send_line(&connect)?;
    let first = requests.request("out")?;
    let mut client = TcpStream::connect("127.0.0.1:8080")?;
    client.set_read_timeout(Some(Duration::from_secs(20)))?;
    let published = requests.request("in")?;

    context.program.kill_engine()?;
    let end = client.read(&mut [0]);
    let is_end = match &end {
        Ok(len) => *len == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    ensure!(is_end, "the client of the published port reads {end:?}");
    let second = requests.request("out")?;
    ensure!(
        second["token"] != first["token"],
        "{second} has the earlier token"
    );
    ensure!(second["guest"] == first["guest"], "{second} is another flow");
    for earlier in [&first, &published] {
        expect(&allow(earlier)?, "404")?;
    }
    expect(&allow(&second)?, "200")?;
    expect(&scene.guest.line()?, "reached")?;
    // The next flow is asked about, too.
    scene.guest.send_line(&connect)?;
    let third = requests.request("out")?;
    expect(&allow(&third)?, "200")?;
    expect(&scene.guest.line()?, "reached")
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
