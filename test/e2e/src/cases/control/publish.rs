//! Cases about ports that are published and removed over the control socket while the guest runs.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Resource, Rlimit, Signal};

use super::{ControlScene, SOCKET};
use crate::case::{Caller, Case, Context};
use crate::cases::{expect, tmpfs, wanted};
use crate::guest::{tcp, udp};
use crate::http::HttpClient;
use crate::network::Network;
use crate::process::{self, QuietMachine};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("control.publish", 30, publish),
        Case::new("control.published-ports-after-engine-exit", 30, engine_killed),
        Case::new("control.publish-with-few-descriptors", 30, few_descriptors),
        Case::new("control.publish-beyond-the-engines-limit", 30, engine_is_full),
        Case::new("control.too-many-descriptors-in-flight", 30, too_many_in_flight)
            .caller(Caller::User("root may have any number of descriptors in flight"))
            .alone(),
        Case::new(
            "control.publish-under-load",
            60 + u64::from(changes()) / 100,
            under_load,
        ),
    ]
}

fn here(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn publish(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    for server in ["tcp:0.0.0.0:80", "udp:0.0.0.0:53"] {
        let line = scene.guest.ask(&format!("$E2E guest serve {server} &"))?;
        expect(&line, "listening")?;
    }
    tcp::command(here(8080), &["refused"])?;
    let added = scene.ctl(&["publish", "add", "127.0.0.1:8080:80", "127.0.0.1:5353:53/udp"])?;
    expect(&added, "added 127.0.0.1:8080:80/tcp\nadded 127.0.0.1:5353:53/udp")?;
    tcp::command(here(8080), &["peer"])?;
    expect(&udp::command(&["peer", "127.0.0.1:5353"])?, "ok")?;

    // Publishing a port again is not an error; a batch is applied completely or not at all.
    expect(&scene.ctl(&["publish", "add", "127.0.0.1:8080:80"])?, "")?;
    let _taken = TcpListener::bind(here(8081))?;
    for conflict in ["127.0.0.1:8081:80", "127.0.0.1:8080:81"] {
        ensure!(
            scene
                .ctl(&["publish", "add", "127.0.0.1:8082:80", conflict])
                .is_err(),
            "{conflict} was published"
        );
        tcp::command(here(8082), &["refused"])?;
    }
    expect(
        &scene.ctl(&["publish", "list"])?,
        "127.0.0.1:8080:80/tcp\n127.0.0.1:5353:53/udp",
    )?;

    // A connection stays open after its published port was removed.
    let mut stream = TcpStream::connect(here(8080))?;
    stream.write_all(b"echo\none")?;
    let mut got = [0; 3];
    stream.read_exact(&mut got)?;
    scene.ctl(&["publish", "remove", "127.0.0.1:8080:80", "127.0.0.1:5353:53/udp"])?;
    stream.write_all(b"two")?;
    stream.read_exact(&mut got)?;
    ensure!(&got == b"two", "got {got:?}");
    tcp::command(here(8080), &["refused"])?;
    expect(&scene.ctl(&["publish", "list"])?, "")
}

/// Tests that a restarted engine serves the ports that were published before, and not those that were removed.
fn engine_killed(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    for server in ["tcp:0.0.0.0:80", "udp:0.0.0.0:53"] {
        let line = scene.guest.ask(&format!("$E2E guest serve {server} &"))?;
        expect(&line, "listening")?;
    }
    let specs = ["127.0.0.1:8080:80", "127.0.0.1:8081:80", "127.0.0.1:5353:53/udp"];
    scene.ctl(&[&["publish", "add"], &specs[..]].concat())?;
    scene.ctl(&["publish", "remove", specs[0]])?;
    let engine = context.program.engine()?;
    engine.signal(Signal::KILL)?;
    process::wait_for_ends(&[engine])?;
    // This reply is from the restarted engine.
    scene.ctl(&["flows"])?;
    tcp::command(here(8080), &["refused"])?;
    tcp::command(here(8081), &["peer"])?;
    expect(&udp::command(&["peer", "127.0.0.1:5353"])?, "ok")?;
    scene.ctl(&["publish", "remove", specs[1]])?;
    tcp::command(here(8081), &["refused"])?;
    Ok(())
}

/// Tests the limit of descriptors: listed ports are open, also after a restart of the engine, further ports are
/// refused, and clients of the listed ports are served.
fn few_descriptors(context: &Context) -> Result<()> {
    let mut scene = {
        let limit = Some(400);
        let (current, maximum) = (limit, limit);
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
        ControlScene::new(context)?
    };
    let line = scene.guest.ask("$E2E guest serve tcp:0.0.0.0:5249 &")?;
    expect(&line, "listening")?;
    scene.ctl(&["publish", "add", "127.0.0.1:5000-5249:5000-5249"])?;
    let more = ["publish", "add", "127.0.0.1:6000-6249:6000-6249"];
    ensure!(
        scene.ctl(&more).is_err(),
        "500 ports were published despite the limit of descriptors"
    );
    let engine = context.program.engine()?;
    engine.signal(Signal::KILL)?;
    process::wait_for_ends(&[engine])?;
    scene.ctl(&["flows"])?;
    ensure!(scene.ctl(&["publish", "list"])?.lines().count() == 250);
    tcp::command(here(5249), &["peer"])?;
    Ok(())
}

/// Script of a guest that keeps as many descriptors in flight as its user may, until it is killed.
const IN_FLIGHT: &str = "\
import array, os, socket, time
file = os.open('/dev/null', os.O_RDONLY)
kept = []
while True:
    kept.append(socket.socketpair())
    try:
        for _ in range(3):
            kept[-1][0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [file] * 250))])
    except OSError:
        break
print('in flight', flush=True)
time.sleep(60)
";

/// Tests that only changes that pass a descriptor to the engine are refused while a guest has exhausted the limit of its user
/// on descriptors in flight, and that they succeed later.
fn too_many_in_flight(context: &Context) -> Result<()> {
    let mut scene = {
        let limit = Some(1024);
        let (current, maximum) = (limit, limit);
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
        ControlScene::with(context, &["--guest-forward", "8088"])?
    };
    let line = scene.guest.ask("$E2E guest serve tcp:0.0.0.0:80 &")?;
    expect(&line, "listening")?;
    scene.ctl(&["publish", "add", "127.0.0.1:8080:80"])?;
    std::fs::write("/run/in-flight.py", IN_FLIGHT)?;
    let line = scene
        .guest
        .ask("python3 /run/in-flight.py & echo $! >/run/in-flight")?;
    expect(&line, "in flight")?;

    let mut http = HttpClient::connect(SOCKET)?;
    let change = r#"{"add":["127.0.0.1:8081:80"],"remove":["127.0.0.1:8080:80"]}"#;
    let answer = http.post("/v1/publish", change)?;
    ensure!(answer.contains("too many in flight"), "{answer}");
    expect(&scene.ctl(&["publish", "list"])?, "127.0.0.1:8080:80/tcp")?;
    tcp::command(here(8080), &["peer"])?;
    let capture = scene.ctl(&["capture", "start", "/run/guest.pcapng"])?;
    ensure!(capture.contains("too many in flight"), "{capture}");
    let removed = scene.ctl(&["guest-forward", "remove", "8088"])?;
    ensure!(removed.starts_with("removed "), "{removed}");
    expect(&scene.ctl(&["guest-forward", "list"])?, "")?;

    expect(
        &scene.guest.ask("kill $(cat /run/in-flight); echo killed")?,
        "killed",
    )?;
    let begin = Instant::now();
    // The kernel closes the descriptors in flight of a process that has ended later.
    while !http.post("/v1/publish", change)?.starts_with(r#"{"added""#) {
        ensure!(
            begin.elapsed() < Duration::from_secs(10),
            "the port is not published"
        );
        thread::sleep(Duration::from_millis(50));
    }
    tcp::command(here(8081), &["peer"])?;
    expect(&scene.ctl(&["publish", "list"])?, "127.0.0.1:8081:80/tcp")
}

/// Tests that a port is not published if the engine lacks a descriptor for it, and that ports published before stay
/// open.
fn engine_is_full(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    let line = scene.guest.ask("$E2E guest serve tcp:0.0.0.0:80 &")?;
    expect(&line, "listening")?;
    scene.ctl(&["publish", "add", "127.0.0.1:8080:80"])?;
    let limit = |current| {
        let pid = Pid::from_raw(context.program.engine()?.id().cast_signed());
        let old = rustix::process::getrlimit(Resource::Nofile);
        let maximum = old.maximum;
        rustix::process::prlimit(pid, Resource::Nofile, Rlimit { current, maximum })?;
        anyhow::Ok(())
    };
    limit(Some(4))?;
    let batch = ["publish", "add", "127.0.0.1:7000-7059:7000-7059"];
    let error = scene.ctl(&batch).err().context("the engine accepted 60 ports")?;
    ensure!(
        format!("{error:#}").contains("the engine cannot take over 127.0.0.1:70"),
        "{error:#}"
    );
    limit(Some(1024))?;
    expect(&scene.ctl(&["publish", "list"])?, "127.0.0.1:8080:80/tcp")?;
    tcp::command(here(7059), &["refused"])?;
    tcp::command(here(8080), &["peer"])?;
    let added = scene.ctl(&batch)?;
    ensure!(added.lines().count() == 60, "{added}");

    // More host ports than can be published for one guest port.
    let hosts: Vec<String> = (1..=255)
        .map(|host| format!("127.0.9.{host}:5353:53/udp"))
        .collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    scene.ctl(&[&["publish", "add"], &hosts[..]].concat())?;
    ensure!(
        scene.ctl(&["publish", "add", "127.0.10.1:5353:53/udp"]).is_err(),
        "256 addresses lead to one port"
    );
    let listed = scene.ctl(&["publish", "list"])?;
    ensure!(
        !listed.contains("127.0.10.1") && listed.contains("127.0.9.255"),
        "{listed}"
    );
    Ok(())
}

/// Returns the number of changes in the case `under_load`: `PONTOON_CHANGES`, or a default. About five hundred
/// changes take a second.
fn changes() -> u32 {
    wanted("PONTOON_CHANGES", 1_000)
}

/// Tests that ports which are published and removed at a high rate do not disturb clients. Half of the ports are
/// other addresses of the port to which clients connect a thousand times a second; each client must get a response,
/// and another one before it closes.
fn under_load(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let _guest = network
        .run()
        .options(["--control", SOCKET, "--publish", "127.0.0.1:8080:80"])
        .guest(["serve", "tcp:0.0.0.0:80"])
        .spawn()?
        .listening()?;
    let machine = QuietMachine::begin()?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| load(&over))).collect();
        let changed = change(changes());
        over.store(true, Ordering::Relaxed);
        let mut answered = Vec::new();
        for client in clients {
            answered.extend(client.join().unwrap_or_else(|_| bail!("a client panicked"))?);
        }
        let took = changed?;
        answered.sort_unstable();
        let (count, slowest) = (answered.len(), answered.last().context("no connection was made")?);
        eprintln!(
            "{} changes in {took:?}; {count} connections meanwhile, answered in {:?} (median), {:?} (99 %), {slowest:?}",
            changes(),
            answered[count / 2],
            answered[count * 99 / 100],
        );
        // A connection that takes a second has lost a SYN, which is retransmitted after that time.
        machine.judge(
            *slowest < Duration::from_secs(1),
            &format!("a connection took {slowest:?}"),
        )?;
        let due = took.as_secs_f64() / PACE.as_secs_f64() * f64::from(CLIENTS);
        machine.judge(
            count as f64 > due / 4.0,
            &format!("{count} connections instead of {due:.0}"),
        )
    })
}

/// Number of clients that connect to the published port.
const CLIENTS: u32 = 4;
/// Interval between two connections of each client.
const PACE: Duration = Duration::from_millis(4);

/// Number of connections that each client keeps open while it opens others.
const STANDING: usize = 25;

/// Connects repeatedly until `over` is true. Returns the time of each connection from connect to the response.
fn load(over: &AtomicBool) -> Result<Vec<Duration>> {
    let mut answered = Vec::new();
    let mut standing = VecDeque::new();
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let nth = answered.len();
        let asked = Instant::now();
        let mut stream = TcpStream::connect(here(8080)).with_context(|| format!("connection {nth}"))?;
        echo(&mut stream, b"echo\n!").with_context(|| format!("connection {nth}, its first answer"))?;
        answered.push(asked.elapsed());
        standing.push_back(stream);
        if standing.len() > STANDING
            && let Some(mut oldest) = standing.pop_front()
        {
            echo(&mut oldest, b"!")
                .with_context(|| format!("connection {}, its last answer", nth - STANDING))?;
        }
        due += PACE;
        // Connects at a constant rate.
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(answered)
}

/// Sends `words` to the server and checks the reply.
fn echo(stream: &mut TcpStream, words: &[u8]) -> Result<()> {
    stream.write_all(words)?;
    let mut got = [0];
    stream.read_exact(&mut got)?;
    ensure!(&got == b"!", "got {got:?}");
    Ok(())
}

/// Interval between two changes, if the machine is fast enough.
const BETWEEN: Duration = Duration::from_millis(2);

fn change(count: u32) -> Result<Duration> {
    let mut http = HttpClient::connect(SOCKET)?;
    let start = Instant::now();
    for nth in 0..count / 2 {
        let spec = match nth % 2 {
            0 => format!("127.0.0.{}:8080:80", 2 + nth % 200),
            _ => format!("127.0.0.1:{}:80", 9000 + nth % 200),
        };
        for (place, what) in (0..).zip(["add", "remove"]) {
            let answer = http.post("/v1/publish", &format!(r#"{{"{what}": ["{spec}"]}}"#))?;
            ensure!(answer.contains(&spec), "{what} {spec}: {answer}");
            let due = BETWEEN * (2 * nth + place + 1);
            // Changes at a constant rate, so that connections are accepted between the changes.
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }
    Ok(start.elapsed())
}
