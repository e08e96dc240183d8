//! Ports that are published while the guest runs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::{SOCKET, Scene};
use crate::case::{Case, Context};
use crate::cases::{expect, tmpfs};
use crate::guest::{tcp, udp};
use crate::network::Network;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("control.publish", 30, publish),
        Case::new("control.publish-under-load", 60, under_load),
    ]
}

fn here(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn publish(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context)?;
    for server in ["tcp:0.0.0.0:80", "udp:0.0.0.0:53"] {
        let line = scene.guest.ask(&format!("$E2E guest serve {server} &"))?;
        expect(&line, "listening")?;
    }
    tcp::command(here(8080), &["refused"])?;
    let added = scene.ctl(&["publish", "add", "127.0.0.1:8080:80", "127.0.0.1:5353:53/udp"])?;
    expect(&added, "added 127.0.0.1:8080:80/tcp\nadded 127.0.0.1:5353:53/udp")?;
    tcp::command(here(8080), &["peer"])?;
    expect(&udp::command(&["peer", "127.0.0.1:5353"])?, "ok")?;

    // Once more is not wrong; all of a batch, or nothing.
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

    // A connection outlives its port.
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

/// Changes of the case; a thousand of them take a second.
const CHANGES: usize = 2_000;

/// Ports come and go, half of them other addresses of the very port that is asked a thousand times a second: every client
/// is answered.
fn under_load(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let _guest = network
        .run()
        .options(["--control", SOCKET, "--publish", "127.0.0.1:8080:80"])
        .guest(["serve", "tcp:0.0.0.0:80"])
        .spawn()?
        .listening()?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| load(&over));
        let changed = change(CHANGES);
        over.store(true, Ordering::Relaxed);
        let answered = load.join().unwrap_or_else(|_| bail!("the load panicked"))?;
        let took = changed?;
        eprintln!("{CHANGES} changes in {took:?}, {answered} connections meanwhile");
        ensure!(answered > 0, "no connection was made");
        Ok(())
    })
}

/// Asks until it is over; how often.
fn load(over: &AtomicBool) -> Result<usize> {
    let mut answered = 0;
    let start = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(here(8080)).with_context(|| format!("connection {answered}"))?;
        stream.write_all(b"echo\n!")?;
        let mut got = [0];
        stream
            .read_exact(&mut got)
            .with_context(|| format!("answer {answered}"))?;
        answered += 1;
        let due = Duration::from_millis(answered as u64);
        thread::sleep(due.saturating_sub(start.elapsed()));
    }
    Ok(answered)
}

fn change(count: usize) -> Result<Duration> {
    let mut talk = Talk::new()?;
    let start = Instant::now();
    for nth in 0..count / 2 {
        let spec = match nth % 2 {
            0 => format!("127.0.0.{}:8080:80", 2 + nth % 200),
            _ => format!("127.0.0.1:{}:80", 9000 + nth % 200),
        };
        for what in ["add", "remove"] {
            let answer = talk.post(&format!(r#"{{"{what}": ["{spec}"]}}"#))?;
            ensure!(answer.contains(&spec), "{what} {spec}: {answer}");
        }
    }
    Ok(start.elapsed())
}

/// One connection for many requests.
struct Talk(BufReader<UnixStream>);

impl Talk {
    fn new() -> Result<Self> {
        Ok(Self(BufReader::new(UnixStream::connect(SOCKET)?)))
    }

    fn post(&mut self, body: &str) -> Result<String> {
        let head = format!(
            "POST /v1/publish HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.0.get_mut().write_all(format!("{head}{body}").as_bytes())?;
        let mut len = 0;
        loop {
            let mut line = String::new();
            ensure!(self.0.read_line(&mut line)? > 0, "the connection ended");
            match line.trim_end().split_once(": ") {
                Some(("Content-Length", value)) => len = value.parse()?,
                None if line == "\r\n" => break,
                _ => {}
            }
        }
        let mut body = vec![0; len];
        self.0.read_exact(&mut body)?;
        Ok(String::from_utf8(body)?)
    }
}
