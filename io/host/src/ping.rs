//! Echo requests: a ping socket for each echo id, or one raw socket for all of them.
//!
//! A raw socket gets every echo reply that reaches the host. Requests carry identifiers of our choice, and the replies
//! (and the errors) are dealt out by them: [`RawSocket::take`] takes one packet and names the flow, whose next receive
//! finds it.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::OwnedFd;

use pontoon_engine::host::{DatagramMeta, PingReply, Problem};
use pontoon_engine::{FlowId, Readiness};
use pontoon_event::{Edge, Epoll};
use pontoon_sys::message::{self, Take};
use pontoon_sys::{Family, icmp, udp};
use pontoon_wire::checksum::Sum;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, bind, sendmsg_addr};
use rustix::rand::{GetRandomFlags, getrandom};
use vm_memory::VolatileSlice;

use super::properties::{self, Properties};
use super::{KernelHost, index, problem};

/// Bytes of an echo message's header (RFC 792, RFC 4443 section 4.1).
const HEADER: usize = 8;

/// Bytes of the largest packet.
const MAX_PACKET: usize = 65_535;

/// One echo id.
#[derive(Debug)]
pub struct Ping {
    family: Family,
    way: Way,
}

/// The socket type that sends the requests.
#[derive(Debug)]
enum Way {
    /// By a ping socket.
    Own(OwnedFd, Properties),
    /// By the raw socket, with this identifier.
    Shared(u16),
}

/// A raw socket that all echo ids of a family share.
#[derive(Debug)]
pub struct RawSocket {
    fd: OwnedFd,
    family: Family,
    properties: Properties,
    flows: HashMap<u16, FlowId>,
    /// The packet that [`Self::take`] took, until its flow asks for it.
    packet: Option<(u16, RawPacket)>,
    /// Its bytes.
    buffer: Vec<u8>,
}

/// A packet in [`RawSocket::buffer`].
#[derive(Debug)]
enum RawPacket {
    /// An echo reply, whose data begin at `at`.
    Reply { reply: PingReply, at: usize },
    /// An error.
    Problem(Problem),
}

/// The result of [`RawSocket::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Something for this flow.
    Flow(FlowId, Readiness),
    /// A packet for no flow of this process.
    Unmatched,
    /// Nothing more: an event reports the next packet.
    Drained,
}

impl RawSocket {
    /// Takes over a raw socket.
    ///
    /// # Errors
    /// It is not one of that family.
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
            properties: Properties::default(),
            flows: HashMap::new(),
            packet: None,
            buffer: vec![0; MAX_PACKET],
        })
    }

    /// Takes the next packet off the socket, and returns its flow.
    pub fn take(&mut self) -> Next {
        self.packet = None;
        if let Some(problem) = problem::next(&self.fd, &mut self.buffer) {
            let sent = self.buffer.get(..problem.payload_len).unwrap_or_default();
            let ident = word(sent, 4);
            return self.deliver(ident, RawPacket::Problem(problem));
        }
        match self.reply() {
            Ok(Some((ident, packet))) => self.deliver(Some(ident), packet),
            Ok(None) => Next::Unmatched,
            Err(Errno::AGAIN) => Next::Drained,
            // An error that its entry in the error queue has reported already.
            Err(_) => Next::Unmatched,
        }
    }

    fn deliver(&mut self, ident: Option<u16>, packet: RawPacket) -> Next {
        let Some((ident, flow)) = ident.and_then(|ident| Some((ident, *self.flows.get(&ident)?))) else {
            return Next::Unmatched;
        };
        let error = matches!(packet, RawPacket::Problem(_));
        self.packet = Some((ident, packet));
        Next::Flow(
            flow,
            Readiness {
                readable: !error,
                error,
                ..Readiness::default()
            },
        )
    }

    /// Receives an echo reply and returns its identifier and content. `None`: the packet is no echo reply.
    fn reply(&mut self) -> Result<Option<(u16, RawPacket)>, Errno> {
        let mut control = [0; udp::CONTROL];
        let into = [VolatileSlice::from(&mut self.buffer[..])];
        let received = message::receive(&self.fd, &into, &mut control, Take::Next)?;
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

/// An echo reply in a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EchoReply {
    ident: u16,
    seq: u16,
    /// The range of its data in the packet.
    pub data: Range<usize>,
}

/// Finds the echo reply in what a raw socket delivers, which with IPv4 has the IP header, too (raw(7)).
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

    /// Takes the path's MTU from the error queue. The entry is without the packet that was too big, and belongs to `ident`.
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
    /// Binds an echo socket, which is to reach `towards`, to where the host side sends from.
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
                    way: Way::Own(fd, Properties::default()),
                })
            }
            Err(error @ (Errno::ACCESS | Errno::PERM)) => {
                let shared = self.raw[index(family)].as_mut().ok_or(error)?;
                let ident = free(&shared.flows)?;
                shared.flows.insert(ident, flow);
                Ok(Ping {
                    family,
                    way: Way::Shared(ident),
                })
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn close_ping(&mut self, ping: Ping) {
        if let (Way::Shared(ident), Some(shared)) = (ping.way, &mut self.raw[index(ping.family)]) {
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
            Way::Own(fd, properties) => (&*fd, properties, None),
            Way::Shared(ident) => {
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
            // The error may be an earlier request's of any id: the kernel reports it by failing the next call, whatever
            // that is, and has forgotten it afterwards (ip(7)). Only a second failure is this request's own.
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
            Way::Own(fd, _) => receive_own(fd, into),
            Way::Shared(ident) => {
                let shared = self.raw[index(ping.family)].as_mut().ok_or(Errno::INVAL)?;
                shared.take_reply(*ident, into)
            }
        }
    }

    pub(super) fn ping_problem(&mut self, ping: &Ping, into: &mut [u8]) -> Option<Problem> {
        match &ping.way {
            Way::Own(fd, _) => problem::next(fd, into),
            Way::Shared(ident) => self.raw[index(ping.family)].as_mut()?.take_problem(*ident, into),
        }
    }
}

/// Receives from a ping socket, which delivers ICMP headers too.
fn receive_own(fd: &OwnedFd, into: &mut [u8]) -> Result<PingReply, Errno> {
    let mut header = [0; HEADER];
    let mut control = [0; udp::CONTROL];
    let parts = [VolatileSlice::from(&mut header[..]), VolatileSlice::from(into)];
    let received = message::receive(fd, &parts, &mut control, Take::Next)?;
    let beside = udp::Ancillary::decode(control.get(..received.control_len).unwrap_or_default());
    Ok(PingReply {
        from: received.address.ok_or(Errno::INVAL)?.ip(),
        seq: word(&header, 6).unwrap_or(0),
        len: received.len.saturating_sub(HEADER),
        meta: properties::received(&beside),
    })
}

/// The header of an echo request. The kernel sums ICMPv6, and whatever leaves by a ping socket; raw ICMP is ours to sum.
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

/// An identifier that no flow has.
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

/// The 16-bit word at `at`, in network order.
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u16::from_be_bytes(*word))
}

/// Copies the bytes that fit, and returns their number.
fn copy(from: &[u8], into: &mut [u8]) -> usize {
    let len = from.len().min(into.len());
    into[..len].copy_from_slice(&from[..len]);
    len
}
