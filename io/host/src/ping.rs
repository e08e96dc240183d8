//! Sockets for ICMP echo requests: one ping socket for each echo id, or one raw socket for all echo ids of an address
//! family.
//!
//! A raw socket receives every echo reply that reaches the host. Each flow's requests have an identifier that this
//! module chooses, and replies and errors are assigned to flows by it: [`RawSocket::take`] receives one packet and
//! returns its flow, whose next receive returns the packet.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::OwnedFd;

use pontoon_engine::host::{DatagramMeta, PingReply, Problem};
use pontoon_engine::{FlowId, Readiness};
use pontoon_event::{Edge, Epoll};
use pontoon_sys::message::{self, RecvMode};
use pontoon_sys::{Family, icmp, udp};
use pontoon_wire::checksum::Sum;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, bind, sendmsg_addr};
use rustix::rand::{GetRandomFlags, getrandom};
use vm_memory::VolatileSlice;

use super::properties::{self, DatagramOptions};
use super::{KernelHost, index, problem};

/// Size of the header of an ICMP echo message in bytes (RFC 792, RFC 4443 section 4.1).
const HEADER: usize = 8;

/// Size of the largest IP packet in bytes.
const MAX_PACKET: usize = 65_535;

/// The host side of an ICMP echo id of the guest.
#[derive(Debug)]
pub struct Ping {
    family: Family,
    way: PingSocket,
}

/// Socket that sends the echo requests of an echo id.
#[derive(Debug)]
enum PingSocket {
    /// A ping socket of the echo id's own, and the options that are set on it.
    Own(OwnedFd, DatagramOptions),
    /// The raw socket of the address family, with this identifier.
    Shared(u16),
}

/// A raw ICMP or ICMPv6 socket that all echo ids of its address family share.
#[derive(Debug)]
pub struct RawSocket {
    fd: OwnedFd,
    family: Family,
    properties: DatagramOptions,
    flows: HashMap<u16, FlowId>,
    /// Identifier and content of the packet that [`Self::take`] has received, until its flow reads it.
    packet: Option<(u16, RawPacket)>,
    /// Bytes of the packet that was received last.
    buffer: Vec<u8>,
}

/// Type of the packet in [`RawSocket::buffer`].
#[derive(Debug)]
enum RawPacket {
    /// An echo reply, whose data begin at offset `at` of the buffer.
    Reply { reply: PingReply, at: usize },
    /// An ICMP error, or an error of the host's stack, for an echo request.
    Problem(Problem),
}

/// Result of [`RawSocket::take`]: the flow to which the received packet belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenPacket {
    /// A packet for this flow was received: an echo reply (readable) or an error.
    Flow(FlowId, Readiness),
    /// A packet that belongs to no flow of this process was received and dropped.
    Unmatched,
    /// The socket is empty; epoll reports the next packet.
    Drained,
}

impl RawSocket {
    /// Registers a raw socket with epoll and sets its options.
    ///
    /// # Errors
    /// The socket is not a raw ICMP socket of `family`.
    pub fn new(fd: OwnedFd, family: Family, epoll: &Epoll) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        icmp::only_echo_replies(&fd, family)?;
        udp::enable_recv_info(&fd, family)?;
        let edge = match family {
            Family::V4 => Edge::Icmp,
            Family::V6 => Edge::Icmpv6,
        };
        epoll.add(&fd, edge.token())?;
        Ok(Self {
            fd,
            family,
            properties: DatagramOptions::default(),
            flows: HashMap::new(),
            packet: None,
            buffer: vec![0; MAX_PACKET],
        })
    }

    /// Receives the next packet, and returns the flow to which it belongs.
    pub fn take(&mut self) -> TakenPacket {
        self.packet = None;
        if let Some(problem) = problem::next(&self.fd, &mut self.buffer) {
            let sent = self.buffer.get(..problem.payload_len).unwrap_or_default();
            let ident = word(sent, 4);
            return self.deliver(ident, RawPacket::Problem(problem));
        }
        match self.reply() {
            Ok(Some((ident, packet))) => self.deliver(Some(ident), packet),
            Ok(None) => TakenPacket::Unmatched,
            Err(Errno::AGAIN) => TakenPacket::Drained,
            // The error queue has reported this error already.
            Err(_) => TakenPacket::Unmatched,
        }
    }

    fn deliver(&mut self, ident: Option<u16>, packet: RawPacket) -> TakenPacket {
        let Some((ident, flow)) = ident.and_then(|ident| Some((ident, *self.flows.get(&ident)?))) else {
            return TakenPacket::Unmatched;
        };
        let error = matches!(packet, RawPacket::Problem(_));
        self.packet = Some((ident, packet));
        TakenPacket::Flow(
            flow,
            Readiness {
                readable: !error,
                error,
                ..Readiness::default()
            },
        )
    }

    /// Receives a packet and returns identifier and content of the echo reply in it; `None` if it is not an echo reply.
    fn reply(&mut self) -> Result<Option<(u16, RawPacket)>, Errno> {
        let mut control = [0; udp::CONTROL];
        let into = [VolatileSlice::from(&mut self.buffer[..])];
        let received = message::receive(&self.fd, &into, &mut control, RecvMode::Next)?;
        let beside = udp::Ancillary::decode(control.get(..received.control_len).unwrap_or_default());
        let packet = self.buffer.get(..received.len).unwrap_or_default();
        let (Some(echo), Some(from)) = (echo_reply(packet, self.family), received.address) else {
            return Ok(None);
        };
        let reply = PingReply {
            from: from.ip(),
            seq: echo.seq,
            len: echo.data.len(),
            meta: properties::received(&beside),
        };
        Ok(Some((
            echo.ident,
            RawPacket::Reply {
                reply,
                at: echo.data.start,
            },
        )))
    }
}

/// Identifier, sequence number and data of an echo reply that a raw socket has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EchoReply {
    ident: u16,
    seq: u16,
    /// Range of the reply's data within the packet.
    pub data: Range<usize>,
}

/// Parses the echo reply in a packet from a raw socket. An IPv4 packet begins with its IP header (raw(7)).
pub fn echo_reply(packet: &[u8], family: Family) -> Option<EchoReply> {
    let header = match family {
        Family::V4 => usize::from(packet.first()? & 0xf) * 4,
        Family::V6 => 0,
    };
    let message = packet.get(header..)?;
    Some(EchoReply {
        ident: word(message, 4)?,
        seq: word(message, 6)?,
        data: header + HEADER..packet.len(),
    })
}

impl RawSocket {
    fn take_reply(&mut self, of: u16, into: &mut [u8]) -> Result<PingReply, Errno> {
        match self.packet.take() {
            Some((ident, RawPacket::Reply { reply, at })) if ident == of => {
                let len = copy(self.buffer.get(at..at + reply.len).unwrap_or_default(), into);
                Ok(PingReply { len, ..reply })
            }
            other => {
                self.packet = other;
                Err(Errno::AGAIN)
            }
        }
    }

    /// Receives the MTU of the path from the error queue, after a send has failed with EMSGSIZE. That entry contains no
    /// packet; it belongs to the request with `ident`.
    fn take_unsent(&mut self, ident: u16) {
        while let Some(problem) = problem::next(&self.fd, &mut self.buffer) {
            if problem.offender.is_none() && problem.mtu.is_some() {
                self.packet = Some((ident, RawPacket::Problem(problem)));
            }
        }
    }

    fn take_problem(&mut self, of: u16, into: &mut [u8]) -> Option<Problem> {
        match self.packet.take() {
            Some((ident, RawPacket::Problem(problem))) if ident == of => {
                let payload_len = copy(self.buffer.get(..problem.payload_len).unwrap_or_default(), into);
                Some(Problem {
                    payload_len,
                    ..problem
                })
            }
            other => {
                self.packet = other;
                None
            }
        }
    }
}

impl KernelHost {
    /// Binds a socket for echo requests to `towards` as `--outbound` requires.
    pub(super) fn bind_ping(&self, fd: &OwnedFd, towards: IpAddr) -> Result<(), Errno> {
        self.bind_outbound(fd, towards)?;
        match self.source(towards) {
            Some(source) => bind(fd, &SocketAddr::from((source, 0))),
            None => Ok(()),
        }
    }

    pub(super) fn open_ping(&mut self, flow: FlowId, family_of: IpAddr) -> Result<Ping, Errno> {
        let family = Family::of(family_of);
        match icmp::open_ping(family) {
            Ok(fd) => {
                self.bind_ping(&fd, family_of)?;
                udp::enable_recv_info(&fd, family)?;
                self.epoll.add(&fd, flow.into())?;
                Ok(Ping {
                    family,
                    way: PingSocket::Own(fd, DatagramOptions::default()),
                })
            }
            Err(error @ (Errno::ACCESS | Errno::PERM)) => {
                let shared = self.raw[index(family)].as_mut().ok_or(error)?;
                let ident = free(&shared.flows)?;
                shared.flows.insert(ident, flow);
                Ok(Ping {
                    family,
                    way: PingSocket::Shared(ident),
                })
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn close_ping(&mut self, ping: Ping) {
        if let (PingSocket::Shared(ident), Some(shared)) = (ping.way, &mut self.raw[index(ping.family)]) {
            shared.flows.remove(&ident);
        }
    }

    pub(super) fn send_ping(
        &mut self,
        ping: &mut Ping,
        to: IpAddr,
        meta: DatagramMeta,
        seq: u16,
        data: &[u8],
    ) -> Result<(), Errno> {
        let family = ping.family;
        if Family::of(to) != family {
            return Err(Errno::AFNOSUPPORT);
        }
        let (fd, properties, ident) = match &mut ping.way {
            PingSocket::Own(fd, properties) => (&*fd, properties, None),
            PingSocket::Shared(ident) => {
                let shared = self.raw[index(family)].as_mut().ok_or(Errno::INVAL)?;
                (&shared.fd, &mut shared.properties, Some(*ident))
            }
        };
        properties.apply(fd, family, meta)?;
        let header = request(family, ident.unwrap_or(0), seq, data);
        let parts = [IoSlice::new(&header), IoSlice::new(data)];
        let to = SocketAddr::from((to, 0));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let send = || sendmsg_addr(fd, &to, &parts, &mut SendAncillaryBuffer::default(), flags);
        let sent = match send() {
            // The error may belong to an earlier request of any identifier: the kernel reports such an error by failing
            // the next call of any kind, and then clears it (ip(7)). Only the error of the second attempt is that of
            // this request.
            Err(_) if ident.is_some() => send(),
            sent => sent,
        };
        if let (Err(Errno::MSGSIZE), Some(ident)) = (sent, ident)
            && let Some(shared) = &mut self.raw[index(family)]
        {
            shared.take_unsent(ident);
        }
        sent.map(drop)
    }

    pub(super) fn receive_ping(&mut self, ping: &Ping, into: &mut [u8]) -> Result<PingReply, Errno> {
        match &ping.way {
            PingSocket::Own(fd, _) => receive_own(fd, into),
            PingSocket::Shared(ident) => {
                let shared = self.raw[index(ping.family)].as_mut().ok_or(Errno::INVAL)?;
                shared.take_reply(*ident, into)
            }
        }
    }

    pub(super) fn ping_problem(&mut self, ping: &Ping, into: &mut [u8]) -> Option<Problem> {
        match &ping.way {
            PingSocket::Own(fd, _) => problem::next(fd, into),
            PingSocket::Shared(ident) => self.raw[index(ping.family)].as_mut()?.take_problem(*ident, into),
        }
    }
}

/// Receives from a ping socket an echo reply, which begins with its ICMP header.
fn receive_own(fd: &OwnedFd, into: &mut [u8]) -> Result<PingReply, Errno> {
    let mut header = [0; HEADER];
    let mut control = [0; udp::CONTROL];
    let parts = [VolatileSlice::from(&mut header[..]), VolatileSlice::from(into)];
    let received = message::receive(fd, &parts, &mut control, RecvMode::Next)?;
    let beside = udp::Ancillary::decode(control.get(..received.control_len).unwrap_or_default());
    Ok(PingReply {
        from: received.address.ok_or(Errno::INVAL)?.ip(),
        seq: word(&header, 6).unwrap_or(0),
        len: received.len.saturating_sub(HEADER),
        meta: properties::received(&beside),
    })
}

/// Returns the header of an echo request. The kernel computes the checksum of ICMPv6 and of ping sockets; on a raw ICMP
/// socket it is computed here.
fn request(family: Family, ident: u16, seq: u16, data: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = match family {
        Family::V4 => 8,
        Family::V6 => 128,
    };
    header[4..6].copy_from_slice(&ident.to_be_bytes());
    header[6..8].copy_from_slice(&seq.to_be_bytes());
    let sum = Sum::new().add(&header).add(data).finish();
    header[2..4].copy_from_slice(&sum.to_be_bytes());
    header
}

/// Returns an identifier that no flow uses, chosen at random.
fn free(flows: &HashMap<u16, FlowId>) -> Result<u16, Errno> {
    if flows.len() > usize::from(u16::MAX / 2) {
        return Err(Errno::NOBUFS);
    }
    loop {
        let mut bytes = [0; 2];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let ident = u16::from_ne_bytes(bytes);
        if !flows.contains_key(&ident) {
            return Ok(ident);
        }
    }
}

/// Returns the 16-bit word at offset `at`, in network byte order.
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u16::from_be_bytes(*word))
}

/// Copies as many bytes as fit into `into`, and returns their number.
fn copy(from: &[u8], into: &mut [u8]) -> usize {
    let len = from.len().min(into.len());
    into[..len].copy_from_slice(&from[..len]);
    len
}
