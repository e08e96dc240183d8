//! A UDP client for [`crate::server::udp`] and [`crate::server::stun`].

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::print_line;
use crate::pattern::Pattern;
use crate::server::stun;
use crate::server::udp::{MAX_BYTES, SEED};
use crate::sys;

/// Time limit for a response to arrive.
const PATIENCE: Duration = Duration::from_secs(2);

/// Number of datagrams in one send of the command `segments`, as many of 1500 bytes as fit one frame.
pub(crate) const BATCH: usize = 40;

pub(crate) fn command(words: &[&str]) -> Result<String> {
    match words {
        ["sizes", server] => sizes(server.parse()?),
        ["sizes-df", server, path_mtu] => sizes_df(server.parse()?, path_mtu.parse()?),
        ["large", server] => large(server.parse()?),
        ["ports", server, count] => ports(server.parse()?, count.parse()?),
        ["segments", port, server, size, count, df] => segments(
            port.parse()?,
            server.parse()?,
            size.parse()?,
            count.parse()?,
            df.parse()?,
        ),
        ["refused", server] => refused(server.parse()?),
        ["peers", server, count] => peers(server.parse()?, count.parse()?),
        ["stun", one, other] => same_mapping(one.parse()?, other.parse()?),
        ["mappings", first, count] => mappings(first.parse()?, count.parse()?),
        ["fragmented", server, count] => fragmented(server.parse()?, count.parse()?),
        ["listen", stun] => listen(stun.parse()?),
        ["peer", server] => echo_of(server.parse()?),
        ["stream", server] => stream(server.parse()?),
        ["survive", server, count] => survive(server.parse()?, count.parse()?),
        _ => bail!("unknown UDP command {}", words.join(" ")),
    }
}

/// Returns a socket of the same address family as `like`.
pub(crate) fn socket(like: SocketAddr) -> Result<UdpSocket> {
    bound(like, 0)
}

fn bound(like: SocketAddr, port: u16) -> Result<UdpSocket> {
    let any: IpAddr = if like.is_ipv4() {
        [0; 4].into()
    } else {
        [0; 16].into()
    };
    let socket = UdpSocket::bind((any, port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Returns datagram lengths around every limit (MTU, GSO, protocol), and lengths at regular intervals between them.
fn interesting_sizes() -> impl Iterator<Item = usize> {
    let edges = [
        1, 2, 7, 8, 9, 511, 512, 1231, 1232, 1233, 1451, 1452, 1453, 1471, 1472, 1473, 2944, 2945,
    ];
    let large = [
        8192,
        32_768,
        65_471,
        65_472,
        65_473,
        65_491,
        65_492,
        65_493,
        MAX_BYTES - 1,
        MAX_BYTES,
    ];
    edges
        .into_iter()
        .chain((3001..MAX_BYTES).step_by(2999))
        .chain(large)
}

/// Exchanges datagrams of every length of [`interesting_sizes`] with the server, without DF.
fn sizes(server: SocketAddr) -> Result<String> {
    let socket = socket(server)?;
    set_df(&socket, server, false)?;
    interesting_sizes().try_for_each(|len| exchange(&socket, server, len))?;
    Ok("ok".to_string())
}

/// Exchanges datagrams with DF. Those that fit `path_mtu` must return; longer ones must fail with EMSGSIZE as soon as
/// the path MTU is known, and shorter ones must still pass afterwards.
fn sizes_df(server: SocketAddr, path_mtu: usize) -> Result<String> {
    let fits = path_mtu - if server.is_ipv4() { 28 } else { 48 };
    let socket = socket(server)?;
    set_df(&socket, server, true)?;
    socket.connect(server)?;
    for len in interesting_sizes() {
        if len <= fits {
            exchange(&socket, server, len).with_context(|| format!("{len} bytes with DF"))?;
            continue;
        }
        let start = Instant::now();
        loop {
            match send(&socket, Pattern::of(SEED).prefix(len), server) {
                Err(Errno::MSGSIZE) => break,
                Ok(()) => ensure!(
                    start.elapsed() < PATIENCE,
                    "a datagram of {len} bytes with DF was never refused"
                ),
                Err(error) => return Err(error).with_context(|| format!("{len} bytes with DF")),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // Reads an error that may still be pending from an earlier send.
    socket.take_error()?;
    exchange(&socket, server, fits).with_context(|| format!("{fits} bytes with DF, once more"))?;
    Ok("ok".to_string())
}

/// Makes `count` sends of [`BATCH`] datagrams of `size` bytes from one port. Sends may be refused.
fn segments(port: u16, server: SocketAddr, size: u16, count: usize, df: bool) -> Result<String> {
    let socket = bound(server, port)?;
    set_df(&socket, server, df)?;
    sys::segment_sends(&socket, size)?;
    let pattern = Pattern::of(SEED);
    let datagrams = pattern.prefix(BATCH * usize::from(size));
    for _ in 0..count {
        let _ = send(&socket, datagrams, server);
        // Sends at a constant rate, as the receiver's buffer has room for a few sends only.
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok("ok".to_string())
}

/// Sends datagrams of 9,000 bytes over a path with an MTU of 1,500: each that programs of the host could send must
/// arrive, including the first; a socket with `IP_PMTUDISC_PROBE` must receive an error.
fn large(server: SocketAddr) -> Result<String> {
    const LEN: usize = 9_000;
    let pattern = Pattern::of(SEED);
    for (mode, is_connected) in [("want", false), ("want", true), ("dont", true)] {
        let socket = socket(server)?;
        if mode == "dont" {
            set_df(&socket, server, false)?;
        }
        if is_connected {
            socket.connect(server)?;
        }
        let mut buffer = vec![0; 1 << 16];
        for nth in 0..20 {
            let which = || format!("{mode}, connected: {is_connected}, datagram {nth}");
            send(&socket, pattern.prefix(LEN), server).with_context(which)?;
            let len = socket.recv(&mut buffer).with_context(which)?;
            ensure!(buffer.get(..len) == Some(pattern.prefix(LEN)), "{}", which());
        }
    }
    let socket = socket(server)?;
    socket.connect(server)?;
    set_probe(&socket, server)?;
    let start = Instant::now();
    while send(&socket, pattern.prefix(LEN), server) != Err(Errno::MSGSIZE) {
        ensure!(
            start.elapsed() < 2 * PATIENCE,
            "a datagram with IP_PMTUDISC_PROBE was never refused"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok("ok".to_string())
}

/// Exchanges a datagram with the server from each of `count` source ports.
fn ports(server: SocketAddr, count: usize) -> Result<String> {
    for _ in 0..count {
        exchange(&socket(server)?, server, 10)?;
    }
    Ok("ok".to_string())
}

fn set_probe(socket: &UdpSocket, server: SocketAddr) -> Result<()> {
    use rustix::net::sockopt::{Ipv4PathMtuDiscovery as V4, Ipv6PathMtuDiscovery as V6};
    match server.is_ipv4() {
        true => sockopt::set_ip_mtu_discover(socket, V4::PROBE)?,
        false => sockopt::set_ipv6_mtu_discover(socket, V6::PROBE)?,
    }
    Ok(())
}

fn set_df(socket: &UdpSocket, server: SocketAddr, df: bool) -> Result<()> {
    use rustix::net::sockopt::{Ipv4PathMtuDiscovery as V4, Ipv6PathMtuDiscovery as V6};
    if server.is_ipv4() {
        sockopt::set_ip_mtu_discover(socket, if df { V4::DO } else { V4::DONT })?;
    } else {
        sockopt::set_ipv6_mtu_discover(socket, if df { V6::DO } else { V6::DONT })?;
    }
    Ok(())
}

fn send(socket: &UdpSocket, bytes: &[u8], to: SocketAddr) -> Result<(), Errno> {
    match socket.send_to(bytes, to) {
        Ok(_) => Ok(()),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Sends `len` bytes and receives them back. A datagram may be lost, so up to three are sent.
fn exchange(socket: &UdpSocket, server: SocketAddr, len: usize) -> Result<()> {
    let pattern = Pattern::of(SEED);
    let mut buffer = vec![0; 1 << 16];
    for _ in 0..3 {
        send(socket, pattern.prefix(len), server).with_context(|| format!("sending {len} bytes"))?;
        loop {
            match sys::uninterrupted(|| socket.recv_from(&mut buffer)) {
                Ok((got, from)) => {
                    ensure!(from == server, "answered by {from} instead of {server}");
                    pattern.check(0, &buffer[..got])?;
                    // A datagram of another length is a late response to an earlier one.
                    if got == len {
                        return Ok(());
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(error) => return Err(error).with_context(|| format!("waiting for {len} bytes")),
            }
        }
    }
    bail!("{len} bytes: no answer in three tries")
}

/// Returns the time in microseconds until a send is refused. The first send, which makes the host resolve its
/// neighbour's address, is not measured.
fn refused(server: SocketAddr) -> Result<String> {
    let socket = socket(server)?;
    socket.connect(server)?;
    socket.send(b"x")?;
    let _ = socket.recv(&mut [0]);
    let start = Instant::now();
    socket.send(b"x")?;
    match sys::uninterrupted(|| socket.recv(&mut [0])) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            Ok(start.elapsed().as_micros().to_string())
        }
        other => bail!("{other:?} instead of a refusal"),
    }
}

/// Exchanges datagrams with `count` ports of the server from one socket, with each port in turn, twice.
fn peers(server: SocketAddr, count: u16) -> Result<String> {
    let socket = socket(server)?;
    for round in 0..2 {
        for index in 0..count {
            let peer = SocketAddr::new(server.ip(), server.port() + index);
            exchange(&socket, peer, 10).with_context(|| format!("peer {index}, round {round}"))?;
        }
    }
    Ok("ok".to_string())
}

/// Checks that two servers see the same mapping (address and port) of one socket, and returns it.
fn same_mapping(one: SocketAddr, other: SocketAddr) -> Result<String> {
    let socket = socket(one)?;
    let first = stun::mapped(&socket, one)?;
    let second = stun::mapped(&socket, other)?;
    ensure!(first == second, "{one} sees {first}, {other} sees {second}");
    Ok(first.to_string())
}

/// Checks that `count` servers see the same mapping (address and port) of one socket, and returns it.
fn mappings(first: SocketAddr, count: u16) -> Result<String> {
    let socket = socket(first)?;
    let seen = stun::mapped(&socket, first)?;
    for index in 1..count {
        let server = SocketAddr::new(first.ip(), first.port() + index);
        let also = stun::mapped(&socket, server)?;
        ensure!(also == seen, "{first} sees {seen}, {server} sees {also}");
    }
    Ok(seen.to_string())
}

/// Exchanges three datagrams with the server on each of `count` sockets: a short one, one that must be fragmented,
/// and a short one.
fn fragmented(server: SocketAddr, count: usize) -> Result<String> {
    for index in 0..count {
        let socket = socket(server)?;
        set_df(&socket, server, false)?;
        for len in [10, 20_000, 11] {
            exchange(&socket, server, len).with_context(|| format!("flow {index}"))?;
        }
    }
    Ok("ok".to_string())
}

/// Prints the mapping that the server sees, and then each datagram that arrives, until one is `end`.
fn listen(server: SocketAddr) -> Result<String> {
    let socket = socket(server)?;
    print_line(&stun::mapped(&socket, server)?.to_string())?;
    let mut buffer = [0; 2048];
    loop {
        let (len, _) = sys::uninterrupted(|| socket.recv_from(&mut buffer))
            .context("the datagram `end` did not arrive")?;
        let text = String::from_utf8_lossy(&buffer[..len]);
        if text == "end" {
            return Ok("ended".to_string());
        }
        print_line(&text)?;
    }
}

/// Exchanges one datagram with the server from each of `count` source ports. Datagrams may be lost or refused, but
/// not corrupted.
fn survive(server: SocketAddr, count: usize) -> Result<String> {
    const WAIT: Duration = Duration::from_millis(100);
    let pattern = Pattern::of(SEED);
    let (mut whole, mut lost) = (0, 0);
    for len in (1..=count).map(|number| number * 20) {
        let socket = socket(server)?;
        socket.set_read_timeout(Some(WAIT))?;
        let mut buffer = vec![0; 1 << 16];
        let answer = send(&socket, pattern.prefix(len), server)
            .map(|()| sys::uninterrupted(|| socket.recv(&mut buffer)));
        let Ok(Ok(got)) = answer else {
            lost += 1;
            continue;
        };
        ensure!(got == len, "{got} bytes instead of {len}");
        pattern.check(0, &buffer[..got])?;
        whole += 1;
    }
    Ok(format!("whole {whole}, lost {lost}"))
}

/// Exchanges datagrams on one connected socket until an exchange fails.
fn stream(server: SocketAddr) -> Result<String> {
    let socket = socket(server)?;
    socket.connect(server)?;
    loop {
        exchange(&socket, server, 20)?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Exchanges one short datagram on a connected socket, to which only the queried address may respond.
fn echo_of(server: SocketAddr) -> Result<String> {
    let socket = socket(server)?;
    socket.connect(server)?;
    exchange(&socket, server, 20)?;
    Ok("ok".to_string())
}
