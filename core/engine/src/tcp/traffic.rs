//! Counts the bytes that a connection has carried in each direction, and makes its entry in the list of flows.

use super::connection::{Connection, TcpState};
use super::seq::Seq;
use crate::ctx::Net;
use crate::egress::EgressProtocol;
use crate::flow_dump::{Flow, Phase, SLOTS, Traffic};
use crate::{Instant, Kind};
use crate::state::record;

/// Byte counter of a connection that counts each sequence number once, even if it is retransmitted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ByteMeter {
    traffic: Traffic,
    /// Sequence numbers up to which bytes are counted: from the guest (`up`), and to the guest (`down`).
    up: Seq,
    down: Seq,
}

record! { ByteMeter { traffic, up, down } }

impl ByteMeter {
    /// Sets the sequence numbers of the first bytes in both directions.
    pub(super) fn begin(&mut self, up: Seq, down: Seq) {
        (self.up, self.down) = (up, down);
    }

    /// Counts the bytes up to the sequence numbers `up` (from the guest) and `down` (to the guest).
    pub(super) fn note(&mut self, up: Seq, down: Seq) {
        self.traffic.up += u64::from(up.past(self.up));
        self.traffic.down += u64::from(down.past(self.down));
        (self.up, self.down) = (self.up.latest(up), self.down.latest(down));
    }

    /// Returns the bytes counted so far.
    pub(super) const fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Returns the number of bytes sent to the guest, each counted once.
    pub(super) const fn sent_down(&self) -> u64 {
        self.traffic.down
    }
}

impl<S> Connection<S> {
    /// Counts the bytes that the connection has received and sent so far.
    pub(super) fn account(&mut self) {
        let fin = u32::from(self.up.closed);
        self.meter.note(self.up.next - fin, self.down.data_end());
    }
}

impl<S> super::Tcp<S> {
    /// Returns a page of the list of flows that begins at the slot `first`, and the number of slots.
    pub(crate) fn flow_page(&self, first: u32, net: &Net, now: Instant) -> (Vec<Flow>, u32) {
        let flows = self
            .connections
            .part(first, SLOTS)
            .map(|(index, generation, connection)| Flow {
                id: net.flow(Kind::Tcp, index, generation),
                protocol: EgressProtocol::Tcp,
                guest: connection.key.guest,
                remote: Some(connection.key.remote),
                came_in: connection.listener.is_some(),
                phase: phase(connection),
                age: now.since(connection.opened),
                traffic: connection.meter.traffic,
            });
        (flows.collect(), self.connections.slots())
    }
}

fn phase<S>(connection: &Connection<S>) -> Phase {
    match connection.state {
        TcpState::Connecting { .. } => Phase::Connecting,
        TcpState::SynReceived | TcpState::SynSent => Phase::Handshake,
        TcpState::Open if connection.up.fin.is_some() || connection.down.eof => Phase::Closing,
        TcpState::Open => Phase::Open,
        TcpState::TimeWait { .. } => Phase::TimeWait,
        TcpState::Failed => Phase::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_once_across_sequence_wrap() {
        let mut meter = ByteMeter::default();
        meter.begin(Seq(u32::MAX - 9), Seq(100));
        meter.note(Seq(u32::MAX - 9), Seq(100));
        assert_eq!(meter.traffic, Traffic { up: 0, down: 0 });
        meter.note(Seq(10), Seq(150));
        // The next sequence number to send moves back to the oldest unacknowledged byte.
        meter.note(Seq(5), Seq(120));
        meter.note(Seq(10), Seq(150));
        assert_eq!(meter.traffic, Traffic { up: 20, down: 50 });
        for step in 1..=8 {
            let to = 10_u32.wrapping_add((1_u32 << 30).wrapping_mul(step));
            meter.note(Seq(to), Seq(150));
        }
        assert_eq!(meter.traffic.up, 20 + (8 << 30));
    }
}
