//! The state of one connection, from its SYN to the end of TIME_WAIT.

use core::net::SocketAddr;

use arrayvec::ArrayVec;

use super::recovery::Recovery;
use super::reorder::Reorder;
use super::rtt::Rtt;
use super::seq::Seq;
use super::stalled::Held;
use super::traffic::Meter;
use crate::Instant;
use crate::dns::stream::Queries;
use crate::pool::{Promise, Queue};
use crate::timer::Timer;

/// The key of a connection: both ends as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionKey {
    pub(super) guest: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// The engine's window scale (RFC 7323): windows up to 16 MiB in steps of 256 bytes.
pub(super) const SCALE: u8 = 8;
/// The window for the guest before the room of the host's send buffer is known: that of a new connection has 39 KB (Linux
/// 6.18, MTU 1500, the default `tcp_wmem`).
pub(super) const BLIND_WINDOW: u32 = 32 << 10;
/// The initial window of a flow.
pub(super) const FIRST_WINDOW: u32 = 64 << 10;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpState {
    /// The guest's SYN was received; the host connection is pending.
    Connecting {
        /// The time at which the guest's SYN is refused.
        give_up: Option<Instant>,
    },
    /// The SYN-ACK was sent; the host connection is established.
    SynReceived,
    /// The SYN was sent to the guest (published port); the host connection is established.
    SynSent,
    /// Data flows; either direction may be closed.
    Open,
    /// Both directions are closed, that to the guest first: a retransmitted FIN is still acknowledged.
    TimeWait {
        /// The time at which the slot is freed.
        until: Instant,
    },
    /// The host connection failed, and the link had no room for the reset to the guest.
    Failed,
}

/// Guest to host.
#[derive(Debug)]
pub(super) struct Up {
    /// Next byte expected; all bytes before it are in the socket, the spill queue or this burst.
    pub(super) next: Seq,
    /// Right edge of the advertised window: it never moves back.
    pub(super) edge: Seq,
    /// Right edge that the next segment advertises.
    pub(super) want: Seq,
    /// The scale that the guest applies to the window field.
    pub(super) scale: u8,
    /// The largest window, and the bytes received since it grew.
    pub(super) limit: u32,
    pub(super) since_growth: u32,
    /// Bytes of the current burst, not yet sent.
    pub(super) gathered: u32,
    /// Bytes for which the socket had no room.
    pub(super) spill: Queue,
    /// Memory for the part of the window that the socket may refuse.
    pub(super) promise: Option<Promise>,
    /// Segments received out of order.
    pub(super) reorder: Reorder,
    /// The sequence number of the guest's FIN, once received.
    pub(super) fin: Option<Seq>,
    /// The host socket is shut down for writing, the guest's FIN acknowledged.
    pub(super) closed: bool,
    /// On a connection to the DNS forwarder, which accepts only queries.
    pub(super) queries: Option<Queries>,
}

/// Host to guest. The head of the socket's receive queue is the byte at `una` (less `discard`).
#[derive(Debug)]
pub(super) struct Down {
    /// Oldest byte not acknowledged.
    pub(super) una: Seq,
    /// Next to send.
    pub(super) nxt: Seq,
    /// The byte after the last one that was ever sent.
    pub(super) max: Seq,
    /// The guest's window, scaled, and its maximum so far.
    pub(super) wnd: u32,
    pub(super) max_wnd: u32,
    /// Sequence number of the segment that `wnd` is from.
    pub(super) wl1: Seq,
    /// The guest's window scale.
    pub(super) scale: u8,
    /// Data bytes in a segment.
    pub(super) mss: u32,
    /// The guest sends SACK.
    pub(super) sack: bool,
    /// Acknowledged bytes still at the head of the receive queue.
    pub(super) discard: u32,
    /// The stream has ended: no more data follows.
    pub(super) eof: bool,
    /// Sequence number of the engine's FIN, once sent.
    pub(super) fin: Option<Seq>,
    /// The guest has acknowledged the engine's FIN.
    pub(super) closed: bool,
    pub(super) recovery: Recovery,
    pub(super) rtt: Rtt,
}

impl Down {
    /// Sent and not acknowledged, before `nxt`.
    pub(super) const fn flight(&self) -> u32 {
        self.nxt.past(self.una)
    }

    /// Returns `bytes` rounded down to whole segments: a partial one would be one more frame.
    pub(super) const fn whole_segments(&self, bytes: u32) -> u32 {
        bytes / self.mss * self.mss
    }

    /// Returns the sequence number after the last data byte that was ever sent.
    pub(super) const fn data_end(&self) -> Seq {
        match self.fin {
            Some(fin) => fin,
            None => self.max,
        }
    }

    /// Returns a sequence number within the guest's window for a segment without data: the highest one sent, or, if the guest
    /// has shrunk its window, the window's edge (Linux `tcp_acceptable_seq`: to within a step of the window field).
    pub(super) fn acceptable(&self) -> Seq {
        let edge = self.una + self.wnd;
        match self.max.after(edge) && self.max.past(edge) >= 1 << self.scale {
            true => edge,
            false => self.max,
        }
    }
}

/// Pending work of a connection, which [`flush`](super::Tcp::flush) performs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pending {
    /// The receive queue may have bytes that were not sent yet.
    pub(super) readable: bool,
    /// The socket may have room for the bytes in the pool.
    pub(super) writable: bool,
    /// An event for room was requested and has not arrived.
    pub(super) watching: bool,
    /// The host peer has closed its direction: the queue holds all remaining data.
    pub(super) end: bool,
    /// The socket has an error, behind the data in its queue.
    pub(super) error: bool,
    /// A short peek may stop at urgent data, with more data behind it.
    pub(super) urgent: bool,
    /// The SYN or SYN-ACK is to be sent.
    pub(super) handshake: bool,
    /// An acknowledgement is to be sent,
    pub(super) ack: bool,
    /// or one that may be delayed, to be sent with a response,
    pub(super) ack_later: bool,
    /// and the flow is in the list of delayed acknowledgements.
    pub(super) ack_is_delayed: bool,
    /// In the list of flows to flush.
    pub(super) dirty: bool,
    /// In the list of flows that wait for the link.
    pub(super) parked: bool,
    /// In the list of flows to continue.
    pub(super) queued: bool,
    /// Among the half-closed connections that may be evicted.
    pub(super) yields: bool,
    /// In the list of stalled connections.
    pub(super) listed_as_stalled: bool,
    /// Another flow was refused for lack of room: an idle guest is probed early.
    pub(super) shortage: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection<S> {
    pub(super) key: ConnectionKey,
    pub(super) state: TcpState,
    /// The host connection; none after it has ended.
    pub(super) socket: Option<S>,
    pub(super) timer: Timer,
    pub(super) pending: Pending,
    /// A keepalive probe was received, and keepalive is enabled on the host connection.
    pub(super) keepalive: bool,
    /// The engine sent its FIN before it received the guest's: it enters TIME_WAIT.
    pub(super) active_close: bool,
    /// The `Published::share_key` of the published port at which a client opened it: egress rules do not apply to it.
    pub(super) listener: Option<u32>,
    /// The time of the first segment.
    pub(super) opened: Instant,
    /// The host socket's receive queue.
    pub(super) held: Held,
    /// Bytes carried.
    pub(super) meter: Meter,
    /// The time of the last accepted segment from the guest.
    pub(super) last_received: Instant,
    /// The earliest time of the next challenge acknowledgement (RFC 5961 section 7).
    pub(super) next_challenge: Instant,
    pub(super) up: Up,
    pub(super) down: Down,
}

impl<S> Connection<S> {
    /// Returns a connection before its handshake, with the initial sequence number `iss`.
    pub(super) fn new(key: ConnectionKey, state: TcpState, iss: Seq, now: Instant) -> Self {
        Self {
            key,
            state,
            socket: None,
            timer: Timer::default(),
            pending: Pending::default(),
            keepalive: false,
            active_close: false,
            listener: None,
            opened: now,
            held: Held::default(),
            meter: Meter::default(),
            last_received: now,
            next_challenge: Instant::default(),
            up: Up {
                next: Seq(0),
                edge: Seq(0),
                want: Seq(BLIND_WINDOW),
                scale: 0,
                limit: FIRST_WINDOW,
                since_growth: 0,
                gathered: 0,
                spill: Queue::default(),
                promise: None,
                reorder: Reorder::default(),
                fin: None,
                closed: false,
                queries: None,
            },
            down: Down {
                una: iss,
                nxt: iss,
                max: iss,
                wnd: 0,
                max_wnd: 0,
                wl1: Seq(0),
                scale: 0,
                mss: 536,
                sack: false,
                discard: 0,
                eof: false,
                fin: None,
                closed: false,
                recovery: Recovery::new(iss),
                rtt: Rtt::default(),
            },
        }
    }

    /// Applies the options and the window of the guest's SYN or SYN-ACK.
    pub(super) fn apply_syn(&mut self, segment: &pontoon_wire::frame::Tcp, mtu: usize) {
        let next = Seq(segment.seq) + 1;
        self.up.next = next;
        self.up.edge = next;
        self.up.want = next + BLIND_WINDOW;
        self.meter.begin(next, self.down.una + 1);
        let options = &segment.options;
        // RFC 7323 section 1.3: scaling only if both SYNs have the option.
        self.down.scale = options.window_scale.unwrap_or(0);
        self.up.scale = if options.window_scale.is_some() { SCALE } else { 0 };
        self.down.sack = options.sack_permitted;
        self.down.mss = mss(options.mss, self.key.guest, mtu);
        // RFC 7323 section 2.2: the window of a segment with SYN is never scaled.
        self.down.wnd = u32::from(segment.window);
        self.down.max_wnd = self.down.wnd;
        self.down.wl1 = Seq(segment.seq);
    }

    /// Returns SACK blocks for the next segment.
    pub(super) fn sack_blocks(&self) -> ArrayVec<(u32, u32), SACK_BLOCKS> {
        if self.down.sack {
            self.up.reorder.runs().take(SACK_BLOCKS).collect()
        } else {
            ArrayVec::new()
        }
    }
}

/// The number of blocks that fit into a header without other options (RFC 2018 section 3).
const SACK_BLOCKS: usize = 4;
/// RFC 9293 section 3.7.1: the default if the peer sends no segment size.
const DEFAULT_MSS_V4: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;
/// A smaller segment size would let a guest cause a header for each byte; Linux's minimum is 48 (`TCP_MIN_MSS` with options).
const MIN_MSS: u32 = 48;

/// Returns the data bytes of a segment to the guest: its MSS, within the MTU of the link.
fn mss(offered: Option<u16>, guest: SocketAddr, mtu: usize) -> u32 {
    let default = if guest.is_ipv4() {
        DEFAULT_MSS_V4
    } else {
        DEFAULT_MSS_V6
    };
    u32::from(offered.unwrap_or(default))
        .max(MIN_MSS)
        .min(u32::from(link_mss(guest, mtu)))
}

/// Returns the segment size for an MTU; that of the link is also the MSS in the engine's SYN.
pub(super) fn link_mss(guest: SocketAddr, mtu: usize) -> u16 {
    let headers = if guest.is_ipv4() { 40 } else { 60 };
    u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker may have a hundred thousand connections.
    #[test]
    fn connection_is_at_most_512_bytes() {
        let size = size_of::<Connection<i32>>();
        assert!(size <= 512, "{size}");
    }
}
