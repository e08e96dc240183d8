//! A guest that floods its link, and measures the round trips of another flow of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use rustix::thread::set_current_timer_slack;

use super::raw::GuestLinkSocket;
use super::raw::packet::{ProbePacket, Transport};
use super::{print_line, tcp};
use crate::case::Family;

/// Duration of a flood of frames by the guest.
const TIME: Duration = Duration::from_secs(3);

/// Time after the end of the flood after which round trips must be as fast as before it.
const SETTLED: Duration = Duration::from_secs(1);

/// Number of round trips in a measurement without a flood.
const ROUNDS: usize = 4000;

/// Difference of round-trip times in microseconds that is ignored, as machines with two cores vary by that much.
const NOISE: u128 = 1000;

/// Largest number of measurements. Other load disturbs some of them; the effect of a flood on a flow is visible in
/// each.
const TRIES: u32 = 3;

/// Kinds of frames of a flood, built from a frame number.
#[derive(Clone, Copy)]
enum FloodKind {
    /// SYNs to closed ports, which the engine answers by resets.
    Refused,
    /// SYNs to a host that does not answer, so that connects are pending.
    Pending,
    /// Datagrams from one port to every port of a host.
    Sweep,
    /// UDP datagrams from every source port.
    Sources,
    /// First IP fragments whose other fragments are never sent.
    Fragments,
    /// Requests for the gateway's Ethernet address, by ARP or NDP.
    Neighbours,
    /// DNS queries, each with its own source port and id.
    Queries,
}

impl FloodKind {
    fn parse(word: &str) -> Result<Self> {
        Ok(match word {
            "refused" => Self::Refused,
            "pending" => Self::Pending,
            "sweep" => Self::Sweep,
            "sources" => Self::Sources,
            "fragments" => Self::Fragments,
            "arp" | "solicitations" => Self::Neighbours,
            "queries" => Self::Queries,
            _ => bail!("unknown kind of flood: {word}"),
        })
    }
}

/// A flood: its kind, destinations and link.
struct Flood {
    wire: GuestLinkSocket,
    kind: FloodKind,
    server: IpAddr,
    nowhere: IpAddr,
    /// IP address of the guest's DNS resolver.
    dns: IpAddr,
}

/// Runs `flood KIND SERVER NOWHERE`, and prints `limit P99 quiet P99 flat P99 settled P99 tenth P99 sent FRAMES taken
/// FRAMES`: 99th percentiles of the round-trip time in microseconds, and frames of the flood at the highest rate.
/// `settled` and `tenth` are above the limit only if each of their measurements was. Round trips of one connection
/// continue during the flood, and their bytes must return unchanged.
pub(crate) fn command(words: &[&str]) -> Result<()> {
    let [kind, server, nowhere] = words else {
        bail!("usage: flood KIND SERVER NOWHERE");
    };
    let server: SocketAddr = server.parse()?;
    let family = if server.is_ipv4() { Family::V4 } else { Family::V6 };
    let flood = Flood {
        wire: GuestLinkSocket::open(family)?,
        kind: FloodKind::parse(kind)?,
        server: server.ip(),
        nowhere: nowhere.parse()?,
        dns: resolver(family)?,
    };
    let mut flow = RoundTripFlow::open(server)?;
    flow.rounds(ROUNDS)?;
    let quiet = p99(flow.rounds(ROUNDS)?);
    let limit = 2 * quiet + NOISE;
    let before = taken()?;
    let (flat, sent) = flow.beside(&flood, None)?;
    let taken = taken()? - before;
    // Round trips continue, as before the first measurement: a worker that has slept is slower at first.
    let end = Instant::now();
    while end.elapsed() < SETTLED {
        flow.rounds(100)?;
    }
    let settled = least(limit, || Ok(p99(flow.rounds(ROUNDS)?)))?;
    let rate = (taken / TIME.as_secs() / 10).max(1);
    let tenth = least(limit, || Ok(p99(flow.beside(&flood, Some(rate))?.0)))?;
    print_line(&format!(
        "limit {limit} quiet {quiet} flat {} settled {settled} tenth {tenth} sent {sent} taken {taken}",
        p99(flat),
    ))
}

/// Returns the first measurement that is within the limit, or the least of [`TRIES`] measurements.
fn least(limit: u128, mut measure: impl FnMut() -> Result<u128>) -> Result<u128> {
    let mut least = measure()?;
    for _ in 1..TRIES {
        if least > limit {
            least = least.min(measure()?);
        }
    }
    Ok(least)
}

/// Returns the number of frames that the link has accepted from the guest's interfaces so far. Other frames of a
/// flood are dropped by the guest's kernel.
fn taken() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/net/dev")?;
    let mut sum = 0;
    for (name, counts) in text.lines().filter_map(|line| line.split_once(':')) {
        let sent = counts
            .split_whitespace()
            .nth(9)
            .context("/proc/net/dev has no number of sent packets")?;
        if name.trim() != "lo" {
            sum += sent.parse::<u64>()?;
        }
    }
    Ok(sum)
}

/// A TCP connection for round trips of one byte, of which each has another value than the previous one.
struct RoundTripFlow {
    stream: std::net::TcpStream,
    next: u8,
}

impl RoundTripFlow {
    fn open(server: SocketAddr) -> Result<Self> {
        let stream = tcp::request(server, "echo")?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Self { stream, next: 0 })
    }

    fn round(&mut self) -> Result<Duration> {
        let start = Instant::now();
        self.stream.write_all(&[self.next])?;
        let mut got = [0];
        self.stream
            .read_exact(&mut got)
            .context("the round trips failed")?;
        ensure!(got[0] == self.next, "{} came back as {}", self.next, got[0]);
        self.next = self.next.wrapping_add(1);
        Ok(start.elapsed())
    }

    fn rounds(&mut self, count: usize) -> Result<Vec<Duration>> {
        (0..count).map(|_| self.round()).collect()
    }

    /// Measures round trips while the flood runs. Returns their times and the number of the flood's frames.
    fn beside(&mut self, flood: &Flood, rate: Option<u64>) -> Result<(Vec<Duration>, u64)> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flooding = scope.spawn(|| {
                let sent = flood.run(rate);
                over.store(true, Ordering::Relaxed);
                sent
            });
            let mut times = Vec::new();
            while !over.load(Ordering::Relaxed) {
                times.push(self.round()?);
            }
            let sent = flooding.join().unwrap_or_else(|_| bail!("the flood panicked"))?;
            Ok((times, sent))
        })
    }
}

/// Returns the 99th percentile in microseconds.
fn p99(mut times: Vec<Duration>) -> u128 {
    times.sort_unstable();
    let place = (times.len() * 99 / 100).min(times.len().saturating_sub(1));
    times.get(place).map_or(0, Duration::as_micros)
}

impl Flood {
    /// Sends the flood for [`TIME`], with `rate` frames per second or as fast as the link accepts them. Returns the
    /// number of frames.
    fn run(&self, rate: Option<u64>) -> Result<u64> {
        // With the default timer slack of 50 us a constant rate would become bursts.
        set_current_timer_slack(NonZeroU64::new(1))?;
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < TIME {
            let due = rate.map_or(sent + 64, |rate| {
                rate * start.elapsed().as_micros() as u64 / 1_000_000
            });
            while sent < due {
                match self.wire.write(&self.frame(sent)?) {
                    Ok(()) => sent += 1,
                    // The queue of the guest's interface is full, which a flood causes intentionally.
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Other) => break,
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => break,
                    Err(error) => return Err(error).context("cannot send a frame of the flood"),
                }
            }
            if rate.is_some() {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        Ok(sent)
    }

    /// Returns the frame with this number.
    fn frame(&self, number: u64) -> Result<Vec<u8>> {
        // Source ports that the guest's kernel does not use itself (`ip_local_port_range` begins at 32768).
        let source = 1024 + (number % 30_000) as u16;
        let port = 1024 + (number % 60_000) as u16;
        let tcp = |to, port| ProbePacket::new(self.wire.source, to, Transport::Tcp, source, port).build();
        let udp = |to, source, port, payload: &[u8]| {
            let packet = ProbePacket::new(self.wire.source, to, Transport::Udp, source, port);
            packet.payload(payload).build()
        };
        Ok(match self.kind {
            FloodKind::Refused => self.wire.frame(&tcp(self.server, port.max(8000))),
            FloodKind::Pending => self.wire.frame(&tcp(self.nowhere, 80)),
            FloodKind::Sweep => self.wire.frame(&udp(self.server, 1024, port.max(8000), b"sweep")),
            FloodKind::Sources => self.wire.frame(&udp(self.server, source, 8000, b"sources")),
            FloodKind::Fragments => {
                let packet = ProbePacket::new(self.wire.source, self.server, Transport::Udp, source, 8000);
                let fragments = packet.payload(&[0x5a; 2000]).fragments(1000);
                self.wire.frame(&fragments[0])
            }
            FloodKind::Neighbours => self.wire.solicitation()?,
            FloodKind::Queries => self.wire.frame(&udp(self.dns, source, 53, &query(number))),
        })
    }
}

/// Returns the resolver of this family in the guest's resolv.conf.
fn resolver(family: Family) -> Result<IpAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf")?;
    let mut servers = text
        .lines()
        .filter_map(|line| line.strip_prefix("nameserver ")?.parse().ok());
    servers
        .find(|server: &IpAddr| server.is_ipv4() == (family == Family::V4))
        .context("resolv.conf has no resolver of this family")
}

/// Returns a DNS query for a name that depends on `number`.
fn query(number: u64) -> Vec<u8> {
    let name = format!("n{number}");
    let mut query = vec![(number >> 8) as u8, number as u8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    query.push(name.len() as u8);
    query.extend(name.as_bytes());
    query.extend([4, b't', b'e', b's', b't', 0, 0, 1, 0, 1]);
    query
}
