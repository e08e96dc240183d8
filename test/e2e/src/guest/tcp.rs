//! A TCP client for [`crate::server::tcp`].

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use rustix::net::sockopt::set_socket_oobinline;

use super::rest;
use crate::pattern::Pattern;
use crate::server::tcp::{receive, send};

/// Runs the command `words` with the server; returns the result.
pub(crate) fn command(server: SocketAddr, words: &[&str]) -> Result<String> {
    match words {
        ["fetch", pause, seed, len] => fetch(server, pause.parse()?, seed.parse()?, len.parse()?),
        ["put", pause, seed, len] => put(server, pause.parse()?, seed.parse()?, len.parse()?),
        ["half-ours", seed, len] => half_ours(server, seed.parse()?, len.parse()?),
        ["half-theirs", seed, len] => half_theirs(server, seed.parse()?, len.parse()?),
        ["reset-ours"] => reset_ours(server),
        ["reset-theirs"] => reset_theirs(server),
        ["urgent"] => urgent(server),
        ["waits"] => waits(server),
        ["survive", count, len] => survive(server, count.parse()?, len.parse()?),
        ["crowd", count] => crowd(server, count.parse()?),
        ["unreachable"] => unreachable(server),
        ["refused"] => refused(server),
        ["peer"] => rest(request(server, "peer")?),
        ["connects", count] => {
            (0..count.parse()?).try_for_each(|_: u32| round(server))?;
            Ok("ok".to_string())
        }
        ["rr", rounds] => Ok(format!("{}", rr(server, rounds.parse()?)?.as_nanos())),
        ["rr-p99", rounds] => {
            let times = round_trips(server, rounds.parse()?)?;
            Ok(format!("{}", times[times.len() * 99 / 100].as_nanos()))
        }
        _ => bail!("unknown TCP command {}", words.join(" ")),
    }
}

/// Connects and asks.
pub(crate) fn request(server: SocketAddr, line: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    Ok(stream)
}

/// Receives `len` bytes; reads nothing for `pause` seconds first.
fn fetch(server: SocketAddr, pause: u64, seed: u64, len: u64) -> Result<String> {
    let mut stream = request(server, &format!("source {seed} {len}"))?;
    // The time for which the window is closed is the subject.
    std::thread::sleep(Duration::from_secs(pause));
    let got = receive(&mut stream, &Pattern::of(seed))?;
    ensure!(got == len, "{got} bytes instead of {len}");
    Ok("ok".to_string())
}

/// Sends `len` bytes; the server reads nothing for `pause` seconds first.
fn put(server: SocketAddr, pause: u64, seed: u64, len: u64) -> Result<String> {
    let mut stream = request(server, &format!("sink {pause} {seed} {len}"))?;
    send(&mut stream, &Pattern::of(seed), len)?;
    stream.shutdown(Shutdown::Write)?;
    rest(stream)
}

/// Closes our half, and still gets everything.
fn half_ours(server: SocketAddr, seed: u64, len: u64) -> Result<String> {
    let pattern = Pattern::of(seed);
    let mut stream = request(server, "echo")?;
    let mut sender = stream.try_clone()?;
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| {
            send(&mut sender, &pattern, len)?;
            Ok::<_, anyhow::Error>(sender.shutdown(Shutdown::Write)?)
        });
        let got = receive(&mut stream, &pattern)?;
        ensure!(got == len, "{got} bytes instead of {len}");
        sent.join().unwrap_or_else(|_| bail!("the sender panicked"))?;
        Ok("ok".to_string())
    })
}

/// The server closes its half first; everything we then send arrives.
fn half_theirs(server: SocketAddr, seed: u64, len: u64) -> Result<String> {
    let name = name();
    let mut stream = request(server, &format!("half {name} {seed} {len}"))?;
    ensure!(stream.read(&mut [0])? == 0, "data instead of the end");
    // The connection is half closed for this time, rather than for an instant.
    std::thread::sleep(Duration::from_millis(100));
    send(&mut stream, &Pattern::of(seed), len)?;
    stream.shutdown(Shutdown::Write)?;
    report(server, name)
}

/// Our RST arrives as a RST.
fn reset_ours(server: SocketAddr) -> Result<String> {
    let name = name();
    let mut stream = request(server, &format!("hold {name}"))?;
    // The server has it, so it is the RST that ends it and not a failed open.
    stream.read_exact(&mut [0; 5])?;
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    drop(stream);
    report(server, name)
}

/// Urgent data is data, in its place.
fn urgent(server: SocketAddr) -> Result<String> {
    let mut stream = request(server, "urgent")?;
    // Behind a plain wire it is urgent here, too.
    set_socket_oobinline(&stream, true)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut all = [0; 6];
    stream.read_exact(&mut all)?;
    Ok(String::from_utf8_lossy(&all).into_owned())
}

/// The server's RST arrives as a RST.
fn reset_theirs(server: SocketAddr) -> Result<String> {
    let mut stream = request(server, "reset")?;
    match stream.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok("ok".to_string()),
        other => bail!("{other:?} instead of a reset"),
    }
}

/// Has `len` bytes go there and back on one connection after the other. A connection may break; none may lose a byte
/// without an error.
fn survive(server: SocketAddr, count: u32, len: u64) -> Result<String> {
    let pattern = Pattern::of(2);
    let there_and_back = || -> Result<u64> {
        let mut stream = request(server, &format!("swap 2 {len}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        send(&mut stream, &pattern, len)?;
        stream.shutdown(Shutdown::Write)?;
        receive(&mut stream, &pattern)
    };
    let (mut whole, mut broken) = (0, 0);
    for _ in 0..count {
        match there_and_back() {
            Ok(got) if got == len => whole += 1,
            Ok(got) => bail!("{got} bytes of {len}, and then the end"),
            Err(error) if error.chain().any(|cause| cause.is::<std::io::Error>()) => broken += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(format!("whole {whole}, broken {broken}"))
}

/// Opens `count` connections and keeps them; those that stand are used. Prints how many are established, and how many were refused.
fn crowd(server: SocketAddr, count: u32) -> Result<String> {
    let mut standing = Vec::new();
    let mut refused = 0;
    for _ in 0..count {
        match TcpStream::connect_timeout(&server, Duration::from_secs(5)) {
            Ok(stream) => standing.push(stream),
            Err(_) => refused += 1,
        }
    }
    for stream in &mut standing {
        stream.write_all(b"echo\nx")?;
        stream.read_exact(&mut [0])?;
    }
    Ok(format!("{} {refused}", standing.len()))
}

/// Milliseconds until a connect fails, for whatever reason.
fn unreachable(server: SocketAddr) -> Result<String> {
    let start = Instant::now();
    match TcpStream::connect_timeout(&server, Duration::from_secs(5)) {
        Err(_) => Ok(start.elapsed().as_millis().to_string()),
        Ok(_) => bail!("connected"),
    }
}

/// Prints `waiting`, waits for data that does not arrive, and then prints how the connection ended.
fn waits(server: SocketAddr) -> Result<String> {
    let mut stream = request(server, "late 600")?;
    // The server has it.
    round(server)?;
    super::print_line("waiting")?;
    match stream.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok("reset".to_string()),
        other => bail!("{other:?} instead of a reset"),
    }
}

/// A name for one connection: the server does not see the port that we see.
fn name() -> u128 {
    std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_nanos())
}

fn report(server: SocketAddr, name: u128) -> Result<String> {
    rest(request(server, &format!("report {name}"))?)
}

/// Microseconds until the refusal. The first one teaches the host its neighbour, and is not measured.
fn refused(server: SocketAddr) -> Result<String> {
    let _ = TcpStream::connect(server);
    let start = Instant::now();
    match TcpStream::connect(server) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            Ok(start.elapsed().as_micros().to_string())
        }
        other => bail!("{other:?} instead of a refusal"),
    }
}

/// Connect, one byte there and back, close.
fn round(server: SocketAddr) -> Result<()> {
    let mut stream = request(server, "echo").context("asking")?;
    let from = stream.local_addr()?;
    stream
        .write_all(b"x")
        .with_context(|| format!("sending from {from}"))?;
    stream
        .read_exact(&mut [0])
        .with_context(|| format!("receiving at {from}"))
}

/// Median time of a byte there and back.
pub(crate) fn rr(server: SocketAddr, rounds: usize) -> Result<Duration> {
    Ok(round_trips(server, rounds)?[rounds / 2])
}

/// Times of a byte there and back, the shortest first.
fn round_trips(server: SocketAddr, rounds: usize) -> Result<Vec<Duration>> {
    let mut stream = request(server, "echo")?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}
