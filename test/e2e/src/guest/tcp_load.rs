//! A TCP client with many simultaneous flows.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::{print_line, rest, tcp};
use crate::pattern::Pattern;
use crate::server::tcp::{receive, send};

/// Size of the send buffer of each of many flows, in bytes.
const SMALL_BYTES: usize = 16 * 1024;

/// Time without a sent byte after which the flows count as stalled. Their retransmission timers are long then.
const QUIET: Duration = Duration::from_secs(20);

/// Number of round trips in a measurement.
const ROUNDS: usize = 4000;

/// Least number of measurements of the round-trip time.
const LEAST_TRIES: usize = 7;
/// Largest number of measurements of the round-trip time, which are repeated until the median of the ratios is close
/// to 1. The placement of three processes on two CPUs by the scheduler makes a round trip take 9 us or 22 us, and
/// lasts for some time.
const MOST_TRIES: usize = 40;

/// Ratio of two round-trip times up to which they count as equal.
const CLOSE: f64 = 1.05;

pub(crate) fn command(words: &[&str]) -> Result<()> {
    match words {
        ["pending", server, nowhere, count] => pending(server.parse()?, nowhere.parse()?, count.parse()?),
        ["stalled", one, other, count, seconds, len] => stalled(
            [one.parse()?, other.parse()?],
            count.parse()?,
            seconds.parse()?,
            len.parse()?,
        ),
        ["both-ways", server, count, len] => both_ways(server.parse()?, count.parse()?, len.parse()?),
        ["ports", server, count] => ports(server.parse()?, count.parse()?),
        ["idle", server, count, seconds] => {
            idle(server.parse()?, count.parse()?, seconds.parse()?)?;
            print_line("ok")
        }
        _ => bail!("unknown load {}", words.join(" ")),
    }
}

/// Measures round trips without and with `count` pending connects to `nowhere`, in alternating pairs. Prints the pair
/// of times in nanoseconds whose ratio is the median. See [`MOST_TRIES`].
fn pending(server: SocketAddr, nowhere: SocketAddr, count: usize) -> Result<()> {
    let ratio = |(without, with): &(Duration, Duration)| with.as_secs_f64() / without.as_secs_f64();
    let mut pairs: Vec<(Duration, Duration)> = Vec::new();
    loop {
        // The first round trips after a pause are a tenth faster than all others.
        tcp::rr(server, ROUNDS)?;
        let without = tcp::rr(server, ROUNDS)?;
        let connects = (0..count)
            .map(|_| begin_connect(nowhere))
            .collect::<Result<Vec<OwnedFd>>>()?;
        pairs.push((without, tcp::rr(server, ROUNDS)?));
        drop(connects);
        // Waits until the engine has closed these connections, which the guest cannot observe.
        std::thread::sleep(Duration::from_millis(200));
        pairs.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
        let median = pairs[pairs.len() / 2];
        let enough = pairs.len() >= LEAST_TRIES && ratio(&median) <= CLOSE;
        if enough || pairs.len() >= MOST_TRIES {
            return print_line(&format!("{} {}", median.0.as_nanos(), median.1.as_nanos()));
        }
    }
}

fn begin_connect(to: SocketAddr) -> Result<OwnedFd> {
    let family = if to.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    match connect(&socket, &to) {
        Err(Errno::INPROGRESS) => Ok(socket),
        other => bail!("the connect to {to} is not pending: {other:?}"),
    }
}

/// Opens `count` flows, alternately to two servers that read nothing for `seconds`. Sends as fast as possible on all
/// flows until none makes progress, and prints `stalled` with the round-trip times of another flow before and now.
/// Then sends the remaining bytes of `len` on each flow, and checks the servers' results.
fn stalled(servers: [SocketAddr; 2], count: usize, seconds: u64, len: u64) -> Result<()> {
    let server = servers[0];
    let pattern = Pattern::of(1);
    let round_trip = |enough: Duration| -> Result<Duration> {
        let mut best = Duration::MAX;
        for round in 1..=MOST_TRIES {
            // Other load is less likely to affect all measurements if there is a pause between them.
            std::thread::sleep(Duration::from_millis(300));
            best = best.min(tcp::rr(server, ROUNDS)?);
            if round >= LEAST_TRIES && best <= enough {
                break;
            }
        }
        Ok(best)
    };
    let before = round_trip(Duration::MAX)?;
    let open = |index: usize| -> Result<(TcpStream, u64)> {
        let stream = tcp::request(servers[index % 2], &format!("sink {seconds} 1 {len}"))?;
        // Small buffers, so that ten thousand full ones do not exhaust the kernel's memory.
        set_socket_send_buffer_size(&stream, SMALL_BYTES)?;
        stream.set_nonblocking(true)?;
        Ok((stream, 0))
    };
    let mut flows = (0..count).map(open).collect::<Result<Vec<_>>>()?;
    let mut moved = Instant::now();
    let mut is_printed = false;
    while flows.iter().any(|(_, sent)| *sent < len) {
        for (stream, sent) in &mut flows {
            moved = if push(stream, sent, &pattern, len)? {
                Instant::now()
            } else {
                moved
            };
        }
        if !is_printed && moved.elapsed() > QUIET {
            let now = round_trip(before.mul_f64(CLOSE))?;
            print_line(&format!("stalled {} {}", before.as_nanos(), now.as_nanos()))?;
            is_printed = true;
        }
        // A check of all flows takes some milliseconds, so idle flows are checked less often.
        std::thread::sleep(if moved.elapsed() > Duration::from_millis(100) {
            Duration::from_millis(50)
        } else {
            Duration::from_millis(1)
        });
    }
    ensure!(is_printed, "the flows never stalled");
    for (index, (stream, _)) in flows.into_iter().enumerate() {
        stream.set_nonblocking(false)?;
        stream.shutdown(Shutdown::Write)?;
        let verdict = rest(stream)?;
        ensure!(verdict == "ok\n", "flow {index}: {verdict:?}");
    }
    print_line("ok")
}

/// Opens `count` flows, leaves them idle for `seconds`, and then uses each, with the first byte from the client or
/// from the server; none may be broken.
pub(crate) fn idle(server: SocketAddr, count: usize, seconds: u64) -> Result<()> {
    let late = format!("late {seconds}");
    let open = |index: usize| -> Result<TcpStream> {
        let request = if index.is_multiple_of(2) { "echo" } else { &late };
        let stream = tcp::request(server, request).with_context(|| format!("opening flow {index}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(stream)
    };
    let mut flows = (0..count).map(open).collect::<Result<Vec<_>>>()?;
    // The flows are idle during this time, which is what the case tests.
    std::thread::sleep(Duration::from_secs(seconds));
    for (index, stream) in flows.iter_mut().enumerate().step_by(2) {
        stream
            .write_all(b"used")
            .with_context(|| format!("writing to flow {index}"))?;
    }
    for (index, stream) in flows.into_iter().enumerate() {
        use_up(stream, index.is_multiple_of(2)).with_context(|| format!("flow {index}"))?;
    }
    Ok(())
}

/// Opens at most `count` connections, prints their number and the error of the first connect that failed, and keeps
/// them open until standard input is closed.
fn ports(server: SocketAddr, count: usize) -> Result<()> {
    let mut streams = Vec::new();
    let mut refused = None;
    while streams.len() < count && refused.is_none() {
        match TcpStream::connect(server) {
            Ok(stream) => streams.push(stream),
            Err(error) => refused = Some(error.kind()),
        }
    }
    print_line(&format!("{} {refused:?}", streams.len()))?;
    rest(std::io::stdin()).map(drop)
}

/// Sends a few bytes, unless they `were_sent` before, receives them back, and receives the end of the stream.
fn use_up(mut stream: TcpStream, were_sent: bool) -> Result<()> {
    if !were_sent {
        let mut word = [0; 5];
        stream.read_exact(&mut word)?;
        ensure!(&word == b"late\n", "{word:?} instead of `late`");
        stream.write_all(b"used")?;
    }
    stream.shutdown(Shutdown::Write)?;
    let text = rest(stream)?;
    ensure!(text == "used", "{text:?} came back");
    Ok(())
}

/// Sends as many bytes as the socket accepts. Returns true if it accepted any.
fn push(stream: &mut TcpStream, sent: &mut u64, pattern: &Pattern, len: u64) -> Result<bool> {
    let before = *sent;
    while *sent < len {
        let bytes = pattern.at(*sent, len - *sent);
        match stream.write(&bytes[..bytes.len().min(64 * 1024)]) {
            Ok(some) => *sent += some as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error).context("a stalled flow has failed"),
        }
    }
    Ok(*sent > before)
}

/// Opens `count` flows at once, each of which transfers `len` bytes in both directions. On every second flow the
/// server shuts down first.
fn both_ways(server: SocketAddr, count: usize, len: u64) -> Result<()> {
    let pattern = Pattern::of(2);
    let open = |index| -> Result<TcpStream> {
        tcp::request(
            server,
            if index % 2 == 0 {
                "echo".into()
            } else {
                format!("swap 2 {len}")
            }
            .as_str(),
        )
        .with_context(|| format!("flow {index}"))
    };
    let flows = (0..count).map(open).collect::<Result<Vec<_>>>()?;
    print_line("open")?;
    // The case counts the open flows, and then writes a line.
    std::io::stdin().read_line(&mut String::new())?;
    for (index, stream) in flows.into_iter().enumerate() {
        let first = if index % 2 == 0 {
            FirstShutdown::Guest
        } else {
            FirstShutdown::Server
        };
        there_and_back(stream, &pattern, len, first).with_context(|| format!("flow {index}"))?;
    }
    print_line("ok")
}

/// The side that shuts down its direction first.
#[derive(PartialEq, Eq)]
enum FirstShutdown {
    Guest,
    Server,
}

fn there_and_back(mut stream: TcpStream, pattern: &Pattern, len: u64, first: FirstShutdown) -> Result<()> {
    send(&mut stream, pattern, len)?;
    if first == FirstShutdown::Guest {
        stream.shutdown(Shutdown::Write)?;
    }
    let got = receive(&mut stream, pattern)?;
    ensure!(got == len, "{got} bytes instead of {len}");
    Ok(())
}
