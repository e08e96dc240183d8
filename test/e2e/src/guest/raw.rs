//! A guest that builds its frames itself, and sends them on a packet socket.

pub(crate) mod packet;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use self::packet::{Extension, ProbePacket, ProbeResponse, Transport};
use super::{print_line, routes};
use crate::case::Family;
use crate::pattern::Pattern;
use crate::sys;

/// Source port (or echo id) of the first probe.
const PORTS: u16 = 20_000;

pub(crate) fn command(words: &[&str]) -> Result<()> {
    match words {
        ["reach", family, port, targets @ ..] => reach(self::family(family)?, port.parse()?, targets),
        ["pending", nowhere, count] => pending(nowhere.parse()?, count.parse()?),
        ["fragments", server, port] => fragments(server.parse()?, port.parse()?),
        ["broken", server, port] => broken(server.parse()?, port.parse()?),
        ["malformed", server, port] => malformed(server.parse()?, port.parse()?),
        _ => bail!("unknown raw command {}", words.join(" ")),
    }
}

fn family(word: &str) -> Result<Family> {
    match word {
        "v4" => Ok(Family::V4),
        "v6" => Ok(Family::V6),
        _ => bail!("{word} is not an address family (try: v4 or v6)"),
    }
}

/// A packet socket on the guest's interface.
pub(crate) struct GuestLinkSocket {
    socket: OwnedFd,
    /// Ethernet header of sent frames: destination, source, EtherType.
    header: [u8; 14],
    pub(crate) source: IpAddr,
    gateway: IpAddr,
}

impl GuestLinkSocket {
    pub(crate) fn open(family: Family) -> Result<Self> {
        let route = routes::default(family)?;
        let any = std::net::UdpSocket::bind("0.0.0.0:0")?;
        let index = rustix::net::netdevice::name_to_index(&any, &route.interface)?;
        let socket = sys::packet_socket(index).context("cannot open a packet socket")?;
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(50)))?;
        let mut header = [0; 14];
        header[..6].copy_from_slice(&routes::neighbour(route.gateway)?);
        header[6..12].copy_from_slice(&routes::mac(&route.interface)?);
        header[12..].copy_from_slice(if family == Family::V4 {
            &[0x08, 0x00]
        } else {
            &[0x86, 0xdd]
        });
        Ok(Self {
            socket,
            header,
            source: routes::address(family, &route.interface)?,
            gateway: route.gateway,
        })
    }

    fn send(&self, packet: &[u8]) -> Result<()> {
        Ok(self.write(&self.frame(packet))?)
    }

    /// Returns a packet with the Ethernet header in front.
    pub(crate) fn frame(&self, packet: &[u8]) -> Vec<u8> {
        [&self.header, packet].concat()
    }

    /// Returns an ARP request or neighbour solicitation for the gateway's Ethernet address.
    pub(crate) fn solicitation(&self) -> Result<Vec<u8>> {
        match (self.source, self.gateway) {
            (IpAddr::V4(source), IpAddr::V4(gateway)) => Ok(self.arp(source, gateway)),
            (IpAddr::V6(source), IpAddr::V6(gateway)) => {
                let own = &self.header[6..12];
                Ok(self.frame(&packet::solicitation(source, gateway, own)))
            }
            (source, gateway) => bail!("{source} and {gateway} are of different families"),
        }
    }

    /// Returns an ARP request for `gateway` (RFC 826).
    fn arp(&self, source: Ipv4Addr, gateway: Ipv4Addr) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend(&self.header[6..12]);
        frame.extend([0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, 1]);
        frame.extend(&self.header[6..12]);
        frame.extend(source.octets());
        frame.extend([0; 6]);
        frame.extend(gateway.octets());
        frame
    }

    /// Sends an Ethernet frame unchanged.
    pub(crate) fn write(&self, frame: &[u8]) -> std::io::Result<()> {
        rustix::io::write(&self.socket, frame)?;
        Ok(())
    }

    /// Waits until the engine has read all frames that were sent before, by an echo request that it answers.
    fn flush(&self) -> Result<()> {
        let request = ProbePacket::new(self.source, self.gateway, Transport::Icmp, PORTS - 1, 0);
        let request = request.payload(b"flush").build();
        for _ in 0..50 {
            self.send(&request)?;
            if self
                .answers(Duration::from_millis(100))
                .contains_key(&(PORTS - 1))
            {
                return Ok(());
            }
        }
        bail!("the gateway does not answer echo requests")
    }

    /// Receives frames for `time`, and passes each to `take`.
    fn collect(&self, time: Duration, mut take: impl FnMut(&[u8])) {
        let start = Instant::now();
        let mut buffer = vec![0; 1 << 17];
        while start.elapsed() < time {
            if let Ok(len) = rustix::io::read(&self.socket, &mut buffer)
                && len > 14
                && buffer[6..12] == self.header[..6]
            {
                take(&buffer[14..len]);
            }
        }
    }

    /// Returns the responses to probes that arrive within `time`, by the probe's source port or echo id.
    fn answers(&self, time: Duration) -> BTreeMap<u16, ProbeResponse> {
        let mut answers = BTreeMap::new();
        self.collect(time, |packet| answers.extend(ProbeResponse::parse(packet)));
        answers
    }
}

/// Sends a TCP, UDP and ICMP probe to every target, and prints `TARGET PROTOCOL` for each response that shows an open
/// port or a reachable host.
fn reach(family: Family, port: u16, targets: &[&str]) -> Result<()> {
    let wire = GuestLinkSocket::open(family)?;
    let mut names = Vec::new();
    for target in targets {
        let to: IpAddr = if *target == "gateway" {
            wire.gateway
        } else {
            target.parse()?
        };
        for (protocol, transport) in Transport::ALL {
            let id = PORTS + names.len() as u16;
            names.push(format!("{target} {protocol}"));
            wire.send(
                &ProbePacket::new(wire.source, to, transport, id, port)
                    .payload(b"reach")
                    .build(),
            )?;
        }
    }
    let answers = wire.answers(Duration::from_secs(2));
    for (name, id) in names.iter().zip(PORTS..) {
        if answers.get(&id).is_some_and(|answer| answer.open) {
            print_line(name)?;
        }
    }
    print_line("end")
}

/// Sends `count` SYNs to a host that does not answer. The guest's kernel does not know these connections, so it
/// retransmits no SYN.
fn pending(nowhere: IpAddr, count: u16) -> Result<()> {
    let family = if nowhere.is_ipv4() { Family::V4 } else { Family::V6 };
    let wire = GuestLinkSocket::open(family)?;
    for id in PORTS..PORTS + count {
        wire.send(&ProbePacket::new(wire.source, nowhere, Transport::Tcp, id, 80).build())?;
        // Sends at a constant rate, as the queue of the link has room for a few hundred frames.
        if id % 100 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    wire.flush()?;
    print_line("ok")
}

/// Sends datagrams in fragments and with extension headers. The server must answer each, except those in overlapping
/// fragments.
fn fragments(server: IpAddr, port: u16) -> Result<()> {
    let family = if server.is_ipv4() { Family::V4 } else { Family::V6 };
    let wire = GuestLinkSocket::open(family)?;
    let pattern = Pattern::of(7);
    let payload = pattern.prefix(3000);
    let probe = |id: u16| ProbePacket::new(wire.source, server, Transport::Udp, id, port).payload(payload);
    let send_all = |fragments: &[Vec<u8>]| fragments.iter().try_for_each(|fragment| wire.send(fragment));
    let mut expected = vec![
        ("in order", true),
        ("backwards", true),
        ("doubled", true),
        ("overlapping", false),
    ];
    send_all(&probe(PORTS).fragments(1000))?;
    let backwards: Vec<_> = probe(PORTS + 1).fragments(1000).into_iter().rev().collect();
    send_all(&backwards)?;
    let one = probe(PORTS + 2).fragments(1000);
    send_all(&[
        one[0].clone(),
        one[1].clone(),
        one[1].clone(),
        one[2].clone(),
        one[3].clone(),
    ])?;
    send_all(&probe(PORTS + 3).overlapping(1000))?;
    if family == Family::V6 {
        let cases: [(&str, &[Extension]); 4] = [
            ("hop-by-hop", &[Extension::HopByHop]),
            ("destination options", &[Extension::Destination]),
            ("both", &[Extension::HopByHop, Extension::Destination]),
            ("atomic fragment", &[Extension::AtomicFragment]),
        ];
        for (name, extensions) in cases {
            let id = PORTS + expected.len() as u16;
            expected.push((name, true));
            let packet =
                ProbePacket::new(wire.source, server, Transport::Udp, id, port).payload(b"extension");
            wire.send(&packet.extensions(extensions).build())?;
        }
    }
    let answers = wire.answers(Duration::from_secs(2));
    for ((name, wanted), id) in expected.into_iter().zip(PORTS..) {
        let answered = answers.get(&id).is_some_and(|answer| answer.open);
        ensure!(
            answered == wanted,
            "{name}: answered is {answered} instead of {wanted}"
        );
    }
    print_line("ok")
}

/// Sends a frame for each kind of malformed header, and then a valid one, whose response shows that all frames were
/// processed. Prints the number of malformed frames.
fn broken(server: IpAddr, port: u16) -> Result<()> {
    let family = if server.is_ipv4() { Family::V4 } else { Family::V6 };
    let wire = GuestLinkSocket::open(family)?;
    let good = ProbePacket::new(wire.source, server, Transport::Udp, PORTS, port)
        .payload(b"good")
        .build();
    let udp = if family == Family::V4 { 20 } else { 40 };
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = good.clone();
        change(&mut packet);
        packet
    };
    let wrong = [
        changed(&|packet| packet.truncate(10)),
        changed(&|packet| packet.truncate(udp + 4)),
        changed(&|packet| packet.truncate(good.len() - 1)),
        changed(&|packet| packet[0] = 0x25),
        changed(&|packet| packet[udp + 4..udp + 6].copy_from_slice(&[0, 7])),
        changed(&|packet| packet[udp + 4..udp + 6].copy_from_slice(&[0, 13])),
    ];
    wrong.iter().try_for_each(|packet| wire.send(packet))?;
    wire.send(&good)?;
    let answers = wire.answers(Duration::from_secs(1));
    ensure!(answers.contains_key(&PORTS), "the valid frame was not answered");
    print_line(&wrong.len().to_string())
}

/// Sends frames with random errors in their headers, and checks between them and at the end that a valid frame is
/// answered.
fn malformed(server: IpAddr, port: u16) -> Result<()> {
    let family = if server.is_ipv4() { Family::V4 } else { Family::V6 };
    let wire = GuestLinkSocket::open(family)?;
    let noise = Pattern::of(99);
    let good = ProbePacket::new(wire.source, server, Transport::Udp, PORTS, port)
        .payload(&[0x55; 400])
        .build();
    for index in 0..20_000_u64 {
        let random = noise.at(index * 17, 600);
        let mut packet = good.clone();
        match index % 4 {
            // Changes one byte of the headers.
            0 => packet[usize::from(random[0]) % 64] ^= random[1] | 1,
            // Truncates the frame at a random length.
            1 => packet.truncate(1 + usize::from(u16::from_be_bytes([random[0], random[1]])) % packet.len()),
            // Sends headers of another transport before random bytes.
            2 => {
                let at = if family == Family::V4 { 9 } else { 6 };
                packet[at] = random[0];
                packet[40..].copy_from_slice(&random[..good.len() - 40]);
            }
            _ => packet = random.to_vec(),
        }
        wire.send(&packet)?;
        if index % 2000 == 1999 {
            let id = PORTS + 1 + (index / 2000) as u16;
            let good = ProbePacket::new(wire.source, server, Transport::Udp, id, port)
                .payload(b"good")
                .build();
            // The queue of the guest's interface may be full of malformed frames, and drops the valid one, so several
            // are sent.
            let answered = (0..10).try_fold(false, |answered, _| -> Result<bool> {
                if !answered {
                    wire.send(&good)?;
                }
                Ok(answered || wire.answers(Duration::from_millis(300)).contains_key(&id))
            })?;
            ensure!(answered, "no answer after {index} malformed frames");
        }
    }
    print_line("ok")
}
