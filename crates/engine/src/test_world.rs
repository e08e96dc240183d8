//! A scripted host, a recording link and a virtual clock, for transcripts of the datagram protocols.
//!
//! What the engine asks of the host, and the frames that it hands to the guest, are kept as lines of text: one test
//! line says what happened, and nothing else did.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};

use pontoon_wire::frame::{self, Body, Transport};
use pontoon_wire::vnet::{Offload, Segmentation};
use pontoon_wire::{checksum, emit};
use vm_memory::VolatileSlice;

use crate::ctx::{Ctx, Net};
use crate::host::{Accepted, Connect, DatagramMeta, PingReply, Problem, Received};
use crate::link::{Refused, Room};
use crate::local::fake;
use crate::{Counters, Failure, FlowId, Frame, Host, Instant, Limits, Transmit};

/// Everything around the protocol under test.
pub(crate) struct World {
    pub(crate) host: FakeHost,
    pub(crate) link: FakeLink,
    pub(crate) net: Net,
    pub(crate) now: Instant,
    before: Counters,
}

impl World {
    pub(crate) fn new() -> Self {
        let net = fake::net();
        Self {
            host: FakeHost::default(),
            link: FakeLink::new(),
            before: net.counters,
            net,
            now: Instant(1_000_000_000_000),
        }
    }

    pub(crate) fn ctx(&mut self) -> Ctx<'_, FakeHost, FakeLink> {
        Ctx {
            host: &mut self.host,
            link: &mut self.link,
            net: &mut self.net,
            now: self.now,
        }
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// What the host was asked since the last look.
    pub(crate) fn calls(&mut self) -> Vec<String> {
        core::mem::take(&mut self.host.calls)
    }

    /// What the guest was sent since the last look.
    pub(crate) fn down(&mut self) -> Vec<String> {
        core::mem::take(&mut self.link.frames)
            .iter()
            .map(|(offload, bytes)| describe(*offload, bytes))
            .collect()
    }

    /// The counters that moved since the last look, by how much.
    pub(crate) fn moved(&mut self) -> Vec<(&'static str, u64)> {
        let moved = fake::moved(&self.net, &self.before);
        self.before = self.net.counters;
        moved
    }

    /// Flows whose timers are due now.
    pub(crate) fn expired(&mut self) -> Vec<FlowId> {
        core::iter::from_fn(|| self.net.timers.expired(self.now)).collect()
    }
}

pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A packet as the guest sends it.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dont_fragment: bool,
    pub(crate) payload: Vec<u8>,
    pub(crate) segmentation: Segmentation,
}

impl Sent {
    pub(crate) fn new(from: &str, to: &str, payload: &[u8]) -> Self {
        Self {
            from: addr(from),
            to: addr(to),
            hop_limit: 64,
            traffic_class: 0,
            dont_fragment: true,
            payload: payload.to_vec(),
            segmentation: Segmentation::Whole,
        }
    }

    pub(crate) fn ip(&self) -> emit::Ip {
        emit::Ip {
            source: self.from.ip(),
            destination: self.to.ip(),
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            dont_fragment: self.dont_fragment,
            ident: 1,
        }
    }

    pub(crate) fn udp(&self) -> Vec<u8> {
        let head = emit::udp(
            ether(),
            self.ip(),
            self.from.port(),
            self.to.port(),
            self.payload.len(),
        );
        let mut bytes = head.bytes().to_vec();
        checksum::complete(&mut bytes, head.checksum, [&self.payload[..]]).unwrap();
        bytes.extend(&self.payload);
        bytes
    }
}

pub(crate) fn ether() -> emit::Ether {
    emit::Ether {
        source: fake::GUEST_MAC,
        destination: fake::OUR_MAC,
    }
}

/// Calls `with` with the frame, in link memory cut into slices of `piece` bytes, and what its headers say.
pub(crate) fn with_frames<R>(
    packets: &[(Vec<u8>, Segmentation)],
    piece: usize,
    with: impl FnOnce(&[(Frame<'_>, frame::Frame)]) -> R,
) -> R {
    let mut memory: Vec<Vec<u8>> = packets.iter().map(|(bytes, _)| bytes.clone()).collect();
    let parts: Vec<Vec<VolatileSlice<'_>>> = memory
        .iter_mut()
        .map(|bytes| bytes.chunks_mut(piece).map(VolatileSlice::from).collect())
        .collect();
    let frames: Vec<_> = packets
        .iter()
        .zip(&parts)
        .map(|((bytes, segmentation), parts)| {
            let head = &bytes[..bytes.len().min(frame::HEAD)];
            let offload = Offload {
                segmentation: *segmentation,
                ..Offload::NONE
            };
            let parsed = frame::parse(head, bytes.len()).unwrap();
            let frame = Frame {
                offload,
                head,
                parts,
                len: bytes.len(),
            };
            (frame, parsed)
        })
        .collect();
    with(&frames)
}

/// One line about a frame to the guest.
fn describe(offload: Offload, bytes: &[u8]) -> String {
    let parsed = frame::parse(&bytes[..bytes.len().min(frame::HEAD)], bytes.len()).unwrap();
    let Body::Ip(ip, transport) = parsed.body else {
        panic!("not IP: {parsed:?}");
    };
    match transport {
        Transport::Udp(udp) => {
            let from = SocketAddr::new(ip.source, udp.source_port);
            let to = SocketAddr::new(ip.destination, udp.destination_port);
            let len = udp.payload_len;
            let form = match offload.segmentation {
                Segmentation::Udp { len: each } => format!("{len} by {each}"),
                Segmentation::Whole => format!("{len}"),
                Segmentation::Tcp4 { .. } | Segmentation::Tcp6 { .. } => panic!("{offload:?}"),
            };
            format!("udp {from} > {to} hop {} {form}", ip.hop_limit)
        }
        Transport::Icmp(icmp) if is_echo(icmp.kind) => format!(
            "echo {} > {} id {} seq {} hop {} {}",
            ip.source, ip.destination, icmp.ident, icmp.seq, ip.hop_limit, icmp.payload_len
        ),
        Transport::Icmp(icmp) => {
            let rest = u32::from(icmp.ident) << 16 | u32::from(icmp.seq);
            let quote = &bytes[icmp.payload_offset..];
            format!(
                "icmp {} > {} {}/{} {rest} about {}",
                ip.source,
                ip.destination,
                icmp.kind,
                icmp.code,
                describe_quote(quote)
            )
        }
        Transport::Fragment => {
            let place = ip.fragment.unwrap();
            let more = if place.more { "+" } else { "" };
            format!("fragment {}..{}{more}", place.offset, ip.payload_len)
        }
        Transport::Tcp(_) | Transport::Other => panic!("unexpected {transport:?}"),
    }
}

fn is_echo(kind: u8) -> bool {
    matches!(kind, 0 | 8 | 128 | 129)
}

/// Addresses and first upper-layer fields of a packet of which only the beginning may be there.
fn describe_quote(quote: &[u8]) -> String {
    let (source, destination, upper): (IpAddr, IpAddr, _) = match quote[0] >> 4 {
        4 => (
            <[u8; 4]>::try_from(&quote[12..16]).unwrap().into(),
            <[u8; 4]>::try_from(&quote[16..20]).unwrap().into(),
            (quote[9], &quote[20..]),
        ),
        _ => (
            <[u8; 16]>::try_from(&quote[8..24]).unwrap().into(),
            <[u8; 16]>::try_from(&quote[24..40]).unwrap().into(),
            (quote[6], &quote[40..]),
        ),
    };
    let word = |at: usize| u16::from_be_bytes([upper.1[at], upper.1[at + 1]]);
    match upper.0 {
        17 => format!(
            "{} > {}",
            SocketAddr::new(source, word(0)),
            SocketAddr::new(destination, word(2))
        ),
        _ => format!("{source} > {destination} id {} seq {}", word(4), word(6)),
    }
}

/// Room for an IP packet of the largest size, behind a header.
pub(crate) struct FakeLink {
    pub(crate) frames: Vec<(Offload, Vec<u8>)>,
    pub(crate) limits: Limits,
    /// Frames that there is room for.
    pub(crate) room: usize,
    memory: Vec<u8>,
}

impl FakeLink {
    fn new() -> Self {
        Self {
            frames: Vec::new(),
            limits: Limits {
                mtu: 1_500,
                max_gso: 65_535,
                tso4: true,
                tso6: true,
                uso: true,
            },
            room: usize::MAX,
            memory: vec![0; 65_536],
        }
    }
}

impl Transmit for FakeLink {
    type Room<'a> = FakeRoom<'a>;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), Refused> {
        let len = head.len() + payload.len();
        assert!(len <= self.limits.mtu + 14, "a frame larger than the MTU");
        self.room = self.room.checked_sub(1).ok_or(Refused::Full)?;
        self.frames.push((offload, [head, payload].concat()));
        Ok(())
    }

    fn reserve(&mut self, _: usize, payload: usize) -> Option<FakeRoom<'_>> {
        let slice = VolatileSlice::from(&mut self.memory[..payload]);
        (self.room > 0).then_some(FakeRoom {
            frames: &mut self.frames,
            limits: self.limits,
            room: &mut self.room,
            slices: [slice],
        })
    }

    fn flush(&mut self) {}
}

pub(crate) struct FakeRoom<'a> {
    frames: &'a mut Vec<(Offload, Vec<u8>)>,
    limits: Limits,
    room: &'a mut usize,
    slices: [VolatileSlice<'a>; 1],
}

impl Room for FakeRoom<'_> {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        &self.slices
    }

    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), Refused> {
        let most = match offload.segmentation {
            Segmentation::Whole => self.limits.mtu,
            _ => self.limits.max_gso,
        };
        assert!(
            head.len() + len <= most + 14,
            "a frame larger than the link's limit"
        );
        *self.room -= 1;
        let mut frame = head.to_vec();
        frame.resize(head.len() + len, 0);
        self.slices[0].copy_to(&mut frame[head.len()..]);
        self.frames.push((offload, frame));
        Ok(())
    }
}

/// Sockets are numbers, in the order of opening.
#[derive(Default)]
pub(crate) struct FakeHost {
    calls: Vec<String>,
    sockets: HashMap<usize, Queues>,
    opened: usize,
    /// Outcomes of the next sends; then they succeed.
    pub(crate) sends: VecDeque<Result<(), Failure>>,
    /// Outcomes of the next opens; then they succeed.
    pub(crate) opens: VecDeque<Failure>,
}

#[derive(Default)]
struct Queues {
    received: VecDeque<Result<(Received, Vec<u8>), Failure>>,
    replies: VecDeque<(PingReply, Vec<u8>)>,
    problems: VecDeque<(Problem, Vec<u8>)>,
    flow: Option<FlowId>,
}

impl FakeHost {
    pub(crate) fn open_sockets(&self) -> usize {
        self.sockets.len()
    }

    pub(crate) fn flow(&self, socket: usize) -> FlowId {
        self.sockets[&socket].flow.unwrap()
    }

    /// Puts datagrams of `stride` bytes, received at once, into a socket's queue.
    pub(crate) fn queue(
        &mut self,
        socket: usize,
        from: &str,
        to: Option<&str>,
        payload: &[u8],
        stride: usize,
    ) {
        let received = Received {
            len: payload.len(),
            stride,
            from: addr(from),
            to: to.map(|to| to.parse().unwrap()),
            meta: META,
        };
        let queues = self.sockets.get_mut(&socket).unwrap();
        queues.received.push_back(Ok((received, payload.to_vec())));
    }

    pub(crate) fn queue_reply(&mut self, socket: usize, from: &str, seq: u16, data: &[u8]) {
        let reply = PingReply {
            from: from.parse().unwrap(),
            seq,
            len: data.len(),
            meta: META,
        };
        let queues = self.sockets.get_mut(&socket).unwrap();
        queues.replies.push_back((reply, data.to_vec()));
    }

    pub(crate) fn queue_failure(&mut self, socket: usize, failure: Failure) {
        let queues = self.sockets.get_mut(&socket).unwrap();
        queues.received.push_back(Err(failure));
    }

    pub(crate) fn queue_problem(&mut self, socket: usize, problem: Problem, payload: &[u8]) {
        let queues = self.sockets.get_mut(&socket).unwrap();
        let problem = Problem {
            payload_len: payload.len(),
            ..problem
        };
        queues.problems.push_back((problem, payload.to_vec()));
    }

    fn open(&mut self, flow: FlowId, call: String) -> Result<usize, Failure> {
        if let Some(failure) = self.opens.pop_front() {
            return Err(failure);
        }
        let socket = self.opened;
        self.opened += 1;
        let queues = Queues {
            flow: Some(flow),
            ..Queues::default()
        };
        self.sockets.insert(socket, queues);
        self.calls.push(format!("{socket}: {call}"));
        Ok(socket)
    }
}

/// What received datagrams say.
const META: DatagramMeta = DatagramMeta {
    hop_limit: 57,
    traffic_class: 0,
    dont_fragment: true,
};

impl Host for FakeHost {
    type Socket = usize;

    fn close(&mut self, socket: usize) {
        self.sockets.remove(&socket).expect("closed once");
        self.calls.push(format!("{socket}: close"));
    }

    fn udp_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<usize, Failure> {
        self.open(flow, format!("udp v{}", if family_of.is_ipv4() { 4 } else { 6 }))
    }

    fn udp_published(&mut self, index: u32, flow: FlowId) -> Result<usize, Failure> {
        self.open(flow, format!("published {index}"))
    }

    fn udp_connect(&mut self, socket: &mut usize, to: Option<SocketAddr>) -> Result<(), Failure> {
        self.calls.push(match to {
            Some(to) => format!("{socket}: connect {to}"),
            None => format!("{socket}: disconnect"),
        });
        Ok(())
    }

    fn udp_send(
        &mut self,
        socket: &mut usize,
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
        meta: DatagramMeta,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
    ) -> Result<(), Failure> {
        let len: usize = parts.iter().map(VolatileSlice::len).sum();
        let to = to.map_or("peer".to_owned(), |to| to.to_string());
        let from = from.map_or(String::new(), |from| format!("from {from} "));
        let segment = segment.map_or(String::new(), |segment| format!(" by {segment}"));
        let hop = meta.hop_limit;
        let outcome = self.sends.pop_front().unwrap_or(Ok(()));
        let said = outcome.map_or_else(|failure| format!(" {failure:?}"), |()| String::new());
        self.calls
            .push(format!("{socket}: {from}> {to} hop {hop} {len}{segment}{said}"));
        outcome
    }

    fn udp_receive(&mut self, socket: &mut usize, into: &[VolatileSlice<'_>]) -> Result<Received, Failure> {
        let queues = self.sockets.get_mut(socket).unwrap();
        let (received, payload) = queues.received.pop_front().unwrap_or(Err(Failure::WouldBlock))?;
        assert!(payload.len() <= into[0].len(), "room for the longest datagram");
        into[0].copy_from(&payload);
        Ok(received)
    }

    fn ping_open(&mut self, flow: FlowId, family_of: IpAddr) -> Result<usize, Failure> {
        self.open(flow, format!("ping v{}", if family_of.is_ipv4() { 4 } else { 6 }))
    }

    fn ping_send(
        &mut self,
        socket: &mut usize,
        to: IpAddr,
        meta: DatagramMeta,
        seq: u16,
        data: &[u8],
    ) -> Result<(), Failure> {
        let outcome = self.sends.pop_front().unwrap_or(Ok(()));
        let said = outcome.map_or_else(|failure| format!(" {failure:?}"), |()| String::new());
        let (hop, len) = (meta.hop_limit, data.len());
        self.calls
            .push(format!("{socket}: ping {to} seq {seq} hop {hop} {len}{said}"));
        outcome
    }

    fn ping_receive(&mut self, socket: &mut usize, into: &mut [u8]) -> Result<PingReply, Failure> {
        let queues = self.sockets.get_mut(socket).unwrap();
        let (reply, data) = queues.replies.pop_front().ok_or(Failure::WouldBlock)?;
        into[..data.len()].copy_from_slice(&data);
        Ok(reply)
    }

    fn problem(&mut self, socket: &mut usize, into: &mut [u8]) -> Option<Problem> {
        let (problem, payload) = self.sockets.get_mut(socket)?.problems.pop_front()?;
        let len = payload.len().min(into.len());
        into[..len].copy_from_slice(&payload[..len]);
        Some(problem)
    }

    fn tcp_connect(&mut self, _: FlowId, _: SocketAddr) -> Result<(usize, Connect), Failure> {
        unreachable!("no TCP here")
    }
    fn tcp_connected(&mut self, _: &mut usize) -> Result<(), Failure> {
        unreachable!("no TCP here")
    }
    fn tcp_accept(&mut self, _: u32, _: FlowId) -> Result<Accepted<usize>, Failure> {
        unreachable!("no TCP here")
    }
    fn peeks_at_offset(&self, _: IpAddr) -> bool {
        unreachable!("no TCP here")
    }
    fn tcp_peek(&mut self, _: &mut usize, _: u32, _: &[VolatileSlice<'_>]) -> Result<usize, Failure> {
        unreachable!("no TCP here")
    }
    fn tcp_discard(&mut self, _: &mut usize, _: u32) -> Result<(), Failure> {
        unreachable!("no TCP here")
    }
    fn tcp_send(&mut self, _: &mut usize, _: &[VolatileSlice<'_>]) -> Result<usize, Failure> {
        unreachable!("no TCP here")
    }
    fn tcp_send_room(&mut self, _: &mut usize) -> u32 {
        unreachable!("no TCP here")
    }
    fn tcp_watch_room(&mut self, _: FlowId, _: &mut usize) {
        unreachable!()
    }

    fn tcp_shutdown(&mut self, _: &mut usize) -> Result<(), Failure> {
        unreachable!("no TCP here")
    }
    fn tcp_error(&mut self, _: &mut usize) -> Option<Failure> {
        unreachable!("no TCP here")
    }
    fn tcp_keepalive(&mut self, _: &mut usize) {
        unreachable!("no TCP here")
    }
    fn abort(&mut self, _: usize) {
        unreachable!("no TCP here")
    }
}
