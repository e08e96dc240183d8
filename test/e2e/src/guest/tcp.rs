//! A TCP client for [`crate::server::tcp`].

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use rustix::net::sockopt::set_socket_oobinline;

use super::rest;
use crate::pattern::Pattern;
use crate::server::tcp::{receive, send};

/// Runs the client command `words` with the server, and returns its result.
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
        ["send-port", count] => send_port(server, count.parse()?),
        ["rr", rounds] => Ok(format!("{}", rr(server, rounds.parse()?)?.as_nanos())),
        ["rr-p99", rounds] => {
            let times = round_trips(server, rounds.parse()?)?;
            Ok(format!("{}", times[times.len() * 99 / 100].as_nanos()))
        }
        _ => bail!("unknown TCP command {}", words.join(" ")),
    }
}

/// Connects to the server, and sends the request `line`.
pub(crate) fn request(server: SocketAddr, line: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    Ok(stream)
}

/// Makes `count` connections, of which each sends its own port and some bytes, closes its direction, and reads to the end; a
/// connection may fail. Returns the number of those that have succeeded.
fn send_port(server: SocketAddr, count: usize) -> Result<String> {
    let one = |len: usize| -> Result<()> {
        let mut stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let port = stream.local_addr()?.port();
        stream.write_all(format!("{port}\n{}", "x".repeat(len)).as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        ensure!(stream.read_to_end(&mut Vec::new())? > 0, "no reply");
        Ok(())
    };
    Ok((0..count)
        .filter(|nth| one(nth % 5000).is_ok())
        .count()
        .to_string())
}

/// Receives `len` bytes, after a pause of `pause` seconds in which nothing is read.
fn fetch(server: SocketAddr, pause: u64, seed: u64, len: u64) -> Result<String> {
    let mut stream = request(server, &format!("source {seed} {len}"))?;
    // The receive window is closed during this time, which is what the case tests.
    std::thread::sleep(Duration::from_secs(pause));
    let got = receive(&mut stream, &Pattern::of(seed))?;
    ensure!(got == len, "{got} bytes instead of {len}");
    Ok("ok".to_string())
}

/// Sends `len` bytes. The server reads nothing in the first `pause` seconds.
fn put(server: SocketAddr, pause: u64, seed: u64, len: u64) -> Result<String> {
    let mut stream = request(server, &format!("sink {pause} {seed} {len}"))?;
    send(&mut stream, &Pattern::of(seed), len)?;
    stream.shutdown(Shutdown::Write)?;
    rest(stream)
}

/// Shuts down the sending direction, and checks that all bytes of the server still arrive.
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

/// Checks that all sent bytes arrive at a server that has shut down its sending direction first.
fn half_theirs(server: SocketAddr, seed: u64, len: u64) -> Result<String> {
    let name = name();
    let mut stream = request(server, &format!("half {name} {seed} {len}"))?;
    ensure!(stream.read(&mut [0])? == 0, "the server sent data after its end");
    // Leaves the connection half-closed for some time.
    std::thread::sleep(Duration::from_millis(100));
    send(&mut stream, &Pattern::of(seed), len)?;
    stream.shutdown(Shutdown::Write)?;
    report(server, name)
}

/// Resets the connection, and checks that the server has received a RST.
fn reset_ours(server: SocketAddr) -> Result<String> {
    let name = name();
    let mut stream = request(server, &format!("hold {name}"))?;
    // The server has accepted the connection, so that the RST does not make the connect fail.
    stream.read_exact(&mut [0; 5])?;
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    drop(stream);
    report(server, name)
}

/// Checks that urgent data is delivered in line, at its position.
fn urgent(server: SocketAddr) -> Result<String> {
    let mut stream = request(server, "urgent")?;
    // Without the program under test (plain veth) the data is urgent on this side as well.
    set_socket_oobinline(&stream, true)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut all = [0; 6];
    stream.read_exact(&mut all)?;
    Ok(String::from_utf8_lossy(&all).into_owned())
}

/// Checks that a reset by the server arrives as a RST.
fn reset_theirs(server: SocketAddr) -> Result<String> {
    let mut stream = request(server, "reset")?;
    match stream.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok("ok".to_string()),
        other => bail!("{other:?} instead of a reset"),
    }
}

/// Transfers `len` bytes to the server and back, on `count` connections one after the other. A connection may break,
/// but none may lose a byte without an error.
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
            Ok(got) => bail!("the stream ended after {got} of {len} bytes"),
            Err(error) if error.chain().any(|cause| cause.is::<std::io::Error>()) => broken += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(format!("whole {whole}, broken {broken}"))
}

/// Opens `count` connections, keeps them open and uses those that were established. Prints how many were established,
/// and how many refused.
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

/// Returns the time in milliseconds until a connect fails, with any error.
fn unreachable(server: SocketAddr) -> Result<String> {
    let start = Instant::now();
    match TcpStream::connect_timeout(&server, Duration::from_secs(5)) {
        Err(_) => Ok(start.elapsed().as_millis().to_string()),
        Ok(_) => bail!("the connect succeeded"),
    }
}

/// Prints `waiting`, waits for data that does not arrive, and then prints how the connection ended.
fn waits(server: SocketAddr) -> Result<String> {
    let mut stream = request(server, "late 600")?;
    // The server has accepted the connection.
    round(server)?;
    super::print_line("waiting")?;
    match stream.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok("reset".to_string()),
        other => bail!("{other:?} instead of a reset"),
    }
}

/// Returns a name for a connection, by which the server keeps its end: the server does not see the client's source
/// port.
fn name() -> u128 {
    std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_nanos())
}

fn report(server: SocketAddr, name: u128) -> Result<String> {
    rest(request(server, &format!("report {name}"))?)
}

/// Returns the time in microseconds until a connect is refused. The first connect, which makes the host resolve its
/// neighbour's address, is not measured.
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

/// Makes one transaction: connect, one byte to the server and back, close.
fn round(server: SocketAddr) -> Result<()> {
    let mut stream = request(server, "echo").context("cannot send the request")?;
    let from = stream.local_addr()?;
    stream
        .write_all(b"x")
        .with_context(|| format!("sending from {from}"))?;
    stream
        .read_exact(&mut [0])
        .with_context(|| format!("receiving at {from}"))
}

/// Returns the median time of a round trip of one byte.
pub(crate) fn rr(server: SocketAddr, rounds: usize) -> Result<Duration> {
    Ok(round_trips(server, rounds)?[rounds / 2])
}

/// Returns the times of round trips of one byte, in ascending order.
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
