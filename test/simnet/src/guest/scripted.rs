//! A scripted TCP guest: a small stack that also sends segments that well-behaved stacks never send.
//!
//! It checks every segment that it receives: data, acknowledgements and resets byte for byte. Violations of the engine are
//! recorded.

mod peer;
mod receiver;
mod sender;

use pontoon_engine::Instant;
use pontoon_wire::frame::Flags;
use pontoon_wire::vnet::Offload;

use super::{Addressing, Call, Guest, GuestListener, GuestReport};
use crate::clock::earlier;
use crate::frames::{Datagram, Icmp, Packet, Segment};
use crate::rng::Rng;
use peer::Peer;

pub use peer::Mischief;

/// Configuration of the guest's TCP.
#[derive(Clone, Debug)]
pub struct ScriptedPlan {
    /// Its maximum segment size.
    pub mss: u16,
    /// Its window scale; `None`: it does not offer one.
    pub scale: Option<u8>,
    /// It offers SACK and reports with it.
    pub sack: bool,
    /// Bytes that it holds until its application reads them.
    pub receive_buffer: u64,
    /// Bytes that it holds until they are acknowledged.
    pub send_buffer: u64,
    /// Its first sequence number, so that wrapping is tested; each connection adds to it.
    pub iss: u32,
    /// It acknowledges every segment at once, instead of every second one or after 40 ms.
    pub quick_ack: bool,
    /// Its deviations from a well-behaved stack.
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

/// A scripted guest.
#[derive(Debug)]
pub struct Scripted {
    addressing: Addressing,
    plan: ScriptedPlan,
    rng: Rng,
    listeners: Vec<GuestListener>,
    peers: Vec<Peer>,
    output: Vec<Segment>,
    /// Packets that a test has queued.
    extra: Vec<Packet>,
    /// ICMP messages and datagrams that were received.
    icmp: Vec<Icmp>,
    datagrams: Vec<Datagram>,
    wrong: Vec<String>,
}

impl Scripted {
    /// A guest with no connections.
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
    pub fn icmp(&self) -> &[Icmp] {
        &self.icmp
    }

    /// Returns the received UDP datagrams, oldest first.
    #[must_use]
    pub fn datagrams(&self) -> &[Datagram] {
        &self.datagrams
    }

    /// Sends a packet that belongs to no connection of the guest.
    pub fn inject(&mut self, packet: Packet) {
        self.extra.push(packet);
    }

    /// Returns the number of resets with an inexact sequence number, which the guest answered by an acknowledgement.
    #[must_use]
    pub fn resets_ignored(&self) -> u32 {
        self.peers.iter().map(Peer::resets_ignored).sum()
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
                let mut peer = Peer::accepting(&self.plan, listener, segment, self.rng.fork());
                self.plan.iss = self.plan.iss.wrapping_add(99_991);
                peer.receive(segment, now, &mut self.output, &mut self.wrong);
                self.peers.push(peer);
            }
            _ => self.output.extend(refusal(segment)),
        }
    }
}

impl Guest for Scripted {
    fn call(&mut self, call: Call) {
        let from = (self.addressing.own(call.to.ip()), call.from).into();
        self.peers
            .push(Peer::calling(&self.plan, from, call, self.rng.fork()));
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
