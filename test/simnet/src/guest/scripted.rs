//! A scripted guest: a small TCP stack that also sends segments that well-behaved stacks never send.
//!
//! It checks every byte, acknowledgement and reset that it receives, and records violations by the engine.

mod peer;
mod receiver;
mod sender;

use pontoon_engine::Instant;
use pontoon_wire::frame::Flags;
use pontoon_wire::vnet::Offload;

use super::{Addressing, Guest, GuestCall, GuestListener, GuestReport};
use crate::clock::earlier;
use crate::frames::{Datagram, IcmpMessage, Packet, Segment};
use crate::rng::Rng;
use peer::ScriptedConnection;

pub use peer::Mischief;

/// Configuration of a scripted guest's TCP.
#[derive(Clone, Debug)]
pub struct ScriptedPlan {
    /// Maximum segment size that the guest announces.
    pub mss: u16,
    /// Window scale that the guest offers; `None` if it offers none (RFC 7323).
    pub scale: Option<u8>,
    /// True if the guest offers SACK and sends SACK blocks (RFC 2018).
    pub sack: bool,
    /// Size of the receive buffer in bytes, by which the guest's window is limited.
    pub receive_buffer: u64,
    /// Size of the send buffer in bytes, which holds data until it is acknowledged.
    pub send_buffer: u64,
    /// Initial sequence number of the first connection, to test wrapping; each connection adds to it.
    pub iss: u32,
    /// True if the guest acknowledges every segment at once; otherwise every second segment or after 40 ms.
    pub quick_ack: bool,
    /// Deviations of the guest from a well-behaved stack.
    pub mischief: Mischief,
}

impl Default for ScriptedPlan {
    fn default() -> Self {
        Self {
            mss: 1460,
            scale: Some(7),
            sack: true,
            receive_buffer: 1 << 20,
            send_buffer: 1 << 20,
            iss: 1000,
            quick_ack: false,
            mischief: Mischief::default(),
        }
    }
}

/// A scripted guest with its connections.
#[derive(Debug)]
pub struct Scripted {
    addressing: Addressing,
    plan: ScriptedPlan,
    rng: Rng,
    listeners: Vec<GuestListener>,
    peers: Vec<ScriptedConnection>,
    output: Vec<Segment>,
    /// Packets that a test has queued, which belong to no connection of the guest.
    extra: Vec<Packet>,
    /// Received ICMP messages; `datagrams` has the received UDP datagrams.
    icmp: Vec<IcmpMessage>,
    datagrams: Vec<Datagram>,
    wrong: Vec<String>,
}

impl Scripted {
    /// Returns a scripted guest without connections.
    #[must_use]
    pub fn new(addressing: Addressing, plan: ScriptedPlan, rng: Rng) -> Self {
        Self {
            addressing,
            plan,
            rng,
            listeners: Vec::new(),
            peers: Vec::new(),
            output: Vec::new(),
            extra: Vec::new(),
            icmp: Vec::new(),
            datagrams: Vec::new(),
            wrong: Vec::new(),
        }
    }

    /// Returns the received ICMP messages, oldest first.
    #[must_use]
    pub fn icmp(&self) -> &[IcmpMessage] {
        &self.icmp
    }

    /// Returns the received UDP datagrams, oldest first.
    #[must_use]
    pub fn datagrams(&self) -> &[Datagram] {
        &self.datagrams
    }

    /// Queues a packet to be sent that belongs to no connection of the guest.
    pub fn inject(&mut self, packet: Packet) {
        self.extra.push(packet);
    }

    /// Returns the number of received resets with an inexact sequence number, which the guest has answered by an
    /// acknowledgement (RFC 5961).
    #[must_use]
    pub fn resets_ignored(&self) -> u32 {
        self.peers.iter().map(ScriptedConnection::resets_ignored).sum()
    }

    fn accept(&mut self, segment: &Segment, now: Instant) {
        let listener = self
            .listeners
            .iter()
            .position(|listener| listener.port == segment.to.port());
        let opens = segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::ACK);
        match listener {
            Some(listener) if opens => {
                let listener = self.listeners.remove(listener);
                let mut peer = ScriptedConnection::accepting(&self.plan, listener, segment, self.rng.fork());
                self.plan.iss = self.plan.iss.wrapping_add(99_991);
                peer.receive(segment, now, &mut self.output, &mut self.wrong);
                self.peers.push(peer);
            }
            _ => self.output.extend(refusal(segment)),
        }
    }
}

impl Guest for Scripted {
    fn call(&mut self, call: GuestCall) {
        let from = (self.addressing.own(call.to.ip()), call.from).into();
        self.peers.push(ScriptedConnection::calling(
            &self.plan,
            from,
            call,
            self.rng.fork(),
        ));
        self.plan.iss = self.plan.iss.wrapping_add(99_991);
    }

    fn listen(&mut self, listener: GuestListener) {
        self.listeners.push(listener);
    }

    fn receive(&mut self, frame: &[u8], now: Instant) {
        match Packet::parse(Offload::NONE, frame) {
            Ok((_, Packet::Tcp(segment))) => {
                let peer = self
                    .peers
                    .iter_mut()
                    .find(|peer| peer.began() && (peer.local, peer.remote) == (segment.to, segment.from));
                match peer {
                    Some(peer) => peer.receive(&segment, now, &mut self.output, &mut self.wrong),
                    None => self.accept(&segment, now),
                }
            }
            Ok((_, Packet::Icmp(icmp))) => self.icmp.push(icmp),
            Ok((_, Packet::Udp(datagram))) => self.datagrams.push(datagram),
            Ok((_, Packet::Other(..))) => {}
            Err(error) => self.wrong.push(format!("a malformed frame: {error}")),
        }
    }

    fn poll(&mut self, now: Instant) -> Vec<Vec<u8>> {
        for peer in &mut self.peers {
            peer.poll(now, &mut self.output);
        }
        let ether = self.addressing.ether();
        let segments = self.output.drain(..).map(Packet::Tcp);
        segments
            .chain(self.extra.drain(..))
            .map(|packet| packet.emit(ether))
            .collect()
    }

    fn next(&mut self, now: Instant) -> Option<Instant> {
        if !self.output.is_empty() || !self.extra.is_empty() {
            return Some(now);
        }
        self.peers
            .iter()
            .fold(None, |next, peer| earlier(next, peer.next(now)))
    }

    fn reports(&self) -> Vec<GuestReport> {
        self.peers
            .iter()
            .map(|peer| GuestReport {
                port: peer.port(),
                app: peer.app().cloned(),
                outcome: peer.outcome(),
                broken: false,
            })
            .collect()
    }

    fn wrong(&self) -> &[String] {
        &self.wrong
    }
}

/// Returns the answer to a segment that belongs to no connection (RFC 9293 section 3.10.7.1).
fn refusal(segment: &Segment) -> Option<Segment> {
    if segment.flags.has(Flags::RST) {
        return None;
    }
    let (seq, ack, flags) = if segment.flags.has(Flags::ACK) {
        (segment.ack, 0, Flags::RST)
    } else {
        (0, segment.end(), Flags::RST.and(Flags::ACK))
    };
    Some(Segment {
        from: segment.to,
        to: segment.from,
        seq,
        ack,
        flags,
        window: 0,
        ..Segment::EMPTY
    })
}
