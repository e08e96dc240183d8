//! Checks the TCP segments that the engine sends for violations of RFC 9293, before the network drops or reorders
//! them.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use pontoon_wire::frame::Flags;

use crate::frames::{Packet, Segment};

/// Observed state of all TCP connections.
#[derive(Debug, Default)]
pub struct Monitor {
    seen: BTreeMap<(SocketAddr, SocketAddr), MonitoredConnection>,
    wrong: Vec<String>,
}

/// Observed sequence numbers and options of one connection, by its addresses (guest, remote).
#[derive(Debug, Default)]
struct MonitoredConnection {
    /// Window scale in the guest's SYN.
    guest_scale: Option<u8>,
    /// True if the guest's SYN permits SACK.
    guest_sack: bool,
    /// Window field of the guest's SYN.
    guest_window: u16,
    /// Highest sequence number that the guest has sent.
    guest_max: Option<u32>,
    /// Highest right edge of the guest's receive window.
    guest_edge: Option<u32>,
    /// Initial sequence number of the engine.
    iss: Option<u32>,
    /// Window scale in the engine's SYN.
    scale: Option<u8>,
    /// Highest sequence number that the engine has sent.
    sent: Option<u32>,
    /// Highest acknowledgement number that the engine has sent.
    ack: Option<u32>,
    /// Highest right edge of the engine's receive window.
    edge: Option<u32>,
    /// Sequence number of the engine's FIN.
    fin: Option<u32>,
}

impl Monitor {
    /// Returns descriptions of the engine's violations of TCP.
    #[must_use]
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// Records a packet from the guest that arrives at the engine.
    pub fn up(&mut self, packet: &Packet) {
        let Packet::Tcp(segment) = packet else { return };
        if segment.flags.has(Flags::RST) {
            return;
        }
        let key = (segment.from, segment.to);
        if segment.flags.has(Flags::SYN) {
            let known = self.seen.entry(key).or_default();
            // A SYN on an open connection is an old duplicate or a forged one.
            if known
                .guest_max
                .is_none_or(|max| known.fin.is_some() && after(segment.seq, max))
            {
                *known = MonitoredConnection {
                    guest_scale: segment.window_scale,
                    guest_sack: segment.sack_permitted,
                    guest_window: segment.window,
                    ..core::mem::take(known).renewed(segment)
                };
            }
        }
        let seen = self.seen.entry(key).or_default();
        // A probe of a closed window may contain one byte.
        let in_window = seen
            .edge
            .is_none_or(|edge| !after(segment.end(), edge.wrapping_add(1)));
        if in_window {
            seen.guest_max = Some(later(seen.guest_max, segment.end()));
        } else if let Some(edge) = seen.edge.filter(|edge| after(*edge, segment.seq)) {
            // The engine may accept data up to the right edge of its window.
            seen.guest_max = Some(later(seen.guest_max, edge));
        }
        let plausible = seen.sent.is_none_or(|sent| !after(segment.ack, sent));
        if segment.flags.has(Flags::ACK) && plausible {
            let shift = match segment.flags.has(Flags::SYN) || seen.scale.is_none() {
                true => 0,
                false => seen.guest_scale.unwrap_or(0).min(14),
            };
            let edge = segment.ack.wrapping_add(u32::from(segment.window) << shift);
            seen.guest_edge = Some(later(seen.guest_edge, edge));
        }
    }

    /// Checks a packet that the engine sends to the guest.
    pub fn down(&mut self, packet: &Packet) {
        let Packet::Tcp(segment) = packet else { return };
        if segment.flags.has(Flags::RST) {
            return;
        }
        let seen = self.seen.entry((segment.to, segment.from)).or_default();
        if let Some(what) = seen.judge(segment) {
            self.wrong.push(format!("{what}: {segment:?}, seen {seen:?}"));
        }
    }
}

impl MonitoredConnection {
    fn renewed(self, syn: &Segment) -> Self {
        // A SYN-ACK of the guest answers the engine's SYN, and so belongs to the connection that the SYN opened.
        if syn.flags.has(Flags::ACK) {
            self
        } else {
            Self::default()
        }
    }

    /// Returns the state with the guest's options, and without the engine's numbers.
    fn answered(self) -> Self {
        Self {
            guest_scale: self.guest_scale,
            guest_sack: self.guest_sack,
            guest_window: self.guest_window,
            guest_max: self.guest_max,
            ..Self::default()
        }
    }

    fn judge(&mut self, segment: &Segment) -> Option<&'static str> {
        if segment.flags.has(Flags::SYN) {
            if self.iss != Some(segment.seq) {
                let answers = segment.flags.has(Flags::ACK);
                *self = if answers {
                    core::mem::take(self).answered()
                } else {
                    Self::default()
                };
                self.iss = Some(segment.seq);
                // The window field of the guest's SYN is not scaled.
                let first = segment.seq.wrapping_add(1);
                self.guest_edge = Some(first.wrapping_add(u32::from(self.guest_window)));
            }
            self.scale = segment.window_scale;
            let offers = segment.window_scale.is_some() && self.guest_scale.is_none()
                || segment.sack_permitted && !self.guest_sack;
            if segment.flags.has(Flags::ACK) && offers {
                return Some("an option that was not offered");
            }
        }
        self.sent = Some(later(self.sent, segment.end()));
        if !segment.flags.has(Flags::ACK) {
            return None;
        }
        if let Some(max) = self.guest_max
            && after(segment.ack, max)
        {
            return Some("acknowledges what was never sent");
        }
        let scaled = !segment.flags.has(Flags::SYN) && self.guest_scale.is_some();
        let shift = if scaled { self.scale.unwrap_or(0) } else { 0 };
        let edge = segment.ack.wrapping_add(u32::from(segment.window) << shift);
        let (last_ack, last_edge) = (self.ack, self.edge);
        self.ack = Some(later(self.ack, segment.ack));
        self.edge = Some(later(self.edge, edge));
        if last_ack.is_some_and(|last| after(last, segment.ack)) {
            return Some("moves its acknowledgement back");
        }
        if last_edge.is_some_and(|last| after(last, edge)) {
            return Some("moves the window's right edge back");
        }
        let data_end = segment.seq.wrapping_add(segment.payload.len() as u32);
        if !segment.payload.is_empty()
            && let Some(allowed) = self.guest_edge
            // A probe of a closed window may contain one byte.
            && after(data_end, allowed.wrapping_add(u32::from(segment.payload.len() == 1)))
        {
            return Some("sends beyond the guest's window");
        }
        if !segment.payload.is_empty() && self.fin.is_some_and(|fin| after(data_end, fin)) {
            return Some("sends data after its FIN");
        }
        if segment.flags.has(Flags::FIN) {
            if self.fin.is_some_and(|fin| fin != data_end) {
                return Some("moves its FIN");
            }
            self.fin = Some(data_end);
        }
        if !segment.sack.is_empty() && !self.guest_sack {
            return Some("SACK that was not offered");
        }
        None
    }
}

fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

fn later(a: Option<u32>, b: u32) -> u32 {
    match a {
        Some(a) if after(a, b) => a,
        _ => b,
    }
}
