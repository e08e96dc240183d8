//! One connection's state.

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
pub(super) struct Key {
    pub(super) guest: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// Our window scale (RFC 7323): windows up to 16 MiB in steps of 256 bytes.
pub(super) const SCALE: u8 = 8;
/// The guest's window before the host's send buffer has been read: that of a fresh connection takes
/// 39 KB (Linux 6.18, MTU 1500, the default `tcp_wmem`).
pub(super) const BLIND_WINDOW: u32 = 32 << 10;
/// The initial window of a flow.
pub(super) const FIRST_WINDOW: u32 = 64 << 10;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The guest's SYN is here, the host connection pending.
    Connecting {
        /// When the guest is told that it will not be.
        give_up: Option<Instant>,
    },
    /// Our SYN-ACK is out, the host connection stands.
    SynReceived,
    /// Our SYN is out (published port), the host connection stands.
    SynSent,
    /// Data flows; either direction may be closed.
    Open,
    /// Both directions closed, ours first: a repeated FIN is still acknowledged.
    TimeWait {
        /// When the slot is free again.
        until: Instant,
    },
    /// The host connection failed, and the link had no room for the reset that tells the guest.
    Failed,
}

/// Guest to host.
#[derive(Debug)]
pub(super) struct Up {
    /// Next byte expected; everything before it is the socket's, the spill queue's or this burst's.
    pub(super) next: Seq,
    /// Right edge of the window that the guest was told: it never moves back.
    pub(super) edge: Seq,
    /// Right edge that the next segment will tell.
    pub(super) want: Seq,
    /// The guest scales our window field by this.
    pub(super) scale: u8,
    /// The most that the window may be, and what arrived since it grew.
    pub(super) limit: u32,
    pub(super) since_growth: u32,
    /// Bytes of the present burst, not yet sent.
    pub(super) gathered: u32,
    /// Bytes that the socket had no room for.
    pub(super) spill: Queue,
    /// Memory for the part of the window that the socket may refuse.
    pub(super) promise: Option<Promise>,
    /// Segments received out of order.
    pub(super) reorder: Reorder,
    /// The sequence number of the guest's FIN, once received.
    pub(super) fin: Option<Seq>,
    /// The host socket is shut down for writing, the guest's FIN acknowledged.
    pub(super) closed: bool,
    /// On a connection to the DNS forwarder, which takes queries alone.
    pub(super) queries: Option<Queries>,
}

/// Host to guest. The head of the socket's receive queue is the byte at `una` (less `discard`).
#[derive(Debug)]
pub(super) struct Down {
    /// Oldest byte not acknowledged.
    pub(super) una: Seq,
    /// Next to send.
    pub(super) nxt: Seq,
    /// Next never sent.
    pub(super) max: Seq,
    /// The guest's window, scaled, and the most it ever was.
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
    /// The queue has ended: no more data will come.
    pub(super) eof: bool,
    /// Sequence number of our FIN, once sent.
    pub(super) fin: Option<Seq>,
    /// The guest acknowledged our FIN.
    pub(super) closed: bool,
    pub(super) recovery: Recovery,
    pub(super) rtt: Rtt,
}

impl Down {
    /// Sent and not acknowledged, before `nxt`.
    pub(super) const fn flight(&self) -> u32 {
        self.nxt.past(self.una)
    }

    /// `bytes` in whole segments: a part of one would be a frame more for the guest to take.
    pub(super) const fn whole_segments(&self, bytes: u32) -> u32 {
        bytes / self.mss * self.mss
    }

    /// Just after the last data byte that was ever sent.
    pub(super) const fn data_end(&self) -> Seq {
        match self.fin {
            Some(fin) => fin,
            None => self.max,
        }
    }

    /// The sequence number of a segment without data that is in the guest's window: as far as was sent, or, where the
    /// guest has taken back what it had offered, as far as it takes now (Linux `tcp_acceptable_seq`: to within a step
    /// of the window field).
    pub(super) fn acceptable(&self) -> Seq {
        let edge = self.una + self.wnd;
        match self.max.after(edge) && self.max.past(edge) >= 1 << self.scale {
            true => edge,
            false => self.max,
        }
    }
}

/// State of a connection that [`flush`](super::Tcp::flush) has not acted on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pending {
    /// The receive queue may have bytes that were not sent yet.
    pub(super) readable: bool,
    /// The socket may have room for what is spilled.
    pub(super) writable: bool,
    /// The host was asked to say when there is room, and has not said so since.
    pub(super) watching: bool,
    /// The host peer closed its direction: the queue holds all there will be.
    pub(super) end: bool,
    /// The socket has an error to tell, behind whatever data it holds.
    pub(super) error: bool,
    /// A short peek is no sign that there is no more.
    pub(super) urgent: bool,
    /// Our SYN or SYN-ACK is to be sent.
    pub(super) handshake: bool,
    /// The guest is owed an acknowledgement,
    pub(super) ack: bool,
    /// or one that may wait for an answer to go with,
    pub(super) ack_later: bool,
    /// and the flow is in the list of those that are.
    pub(super) ack_is_delayed: bool,
    /// In the list of flows to flush.
    pub(super) dirty: bool,
    /// In the list of flows that wait for the link.
    pub(super) parked: bool,
    /// In the list of flows to continue.
    pub(super) queued: bool,
    /// Among the half-closed connections that give way.
    pub(super) yields: bool,
    /// In the list of stalled connections.
    pub(super) listed_as_stalled: bool,
    /// Another flow found no room: a silent guest is probed early.
    pub(super) shortage: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection<S> {
    pub(super) key: Key,
    pub(super) state: State,
    /// The host connection; none once it is over.
    pub(super) socket: Option<S>,
    pub(super) timer: Timer,
    pub(super) pending: Pending,
    /// A keepalive probe came, and the host connection does the same.
    pub(super) keepalive: bool,
    /// We sent our FIN before the guest's came: TIME_WAIT is ours.
    pub(super) active_close: bool,
    /// The `Published::share_key` of the published port at which a client opened it: rules about
    /// where the guest may go do not concern it.
    pub(super) listener: Option<u32>,
    /// When the first segment came or went.
    pub(super) opened: Instant,
    /// The host socket's receive queue.
    pub(super) held: Held,
    /// Bytes carried.
    pub(super) meter: Meter,
    /// When the guest last sent a segment that was accepted.
    pub(super) heard: Instant,
    /// The earliest time of the next challenge acknowledgement (RFC 5961 section 7).
    pub(super) next_challenge: Instant,
    pub(super) up: Up,
    pub(super) down: Down,
}

impl<S> Connection<S> {
    /// A connection before its handshake: ours begins at `iss`.
    pub(super) fn new(key: Key, state: State, iss: Seq, now: Instant) -> Self {
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
            heard: now,
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

    /// Takes over what the guest's SYN or SYN-ACK says.
    pub(super) fn heard_syn(&mut self, segment: &pontoon_wire::frame::Tcp, mtu: usize) {
        let next = Seq(segment.seq) + 1;
        self.up.next = next;
        self.up.edge = next;
        self.up.want = next + BLIND_WINDOW;
        self.meter.begin(next, self.down.una + 1);
        let options = &segment.options;
        // RFC 7323 section 1.3: scaling only where both SYNs carry the option.
        self.down.scale = options.window_scale.unwrap_or(0);
        self.up.scale = if options.window_scale.is_some() { SCALE } else { 0 };
        self.down.sack = options.sack_permitted;
        self.down.mss = mss(options.mss, self.key.guest, mtu);
        // RFC 7323 section 2.2: the window of a segment with SYN is never scaled.
        self.down.wnd = u32::from(segment.window);
        self.down.max_wnd = self.down.wnd;
        self.down.wl1 = Seq(segment.seq);
    }

    /// SACK blocks for the next segment.
    pub(super) fn sack_blocks(&self) -> ArrayVec<(u32, u32), SACK_BLOCKS> {
        if self.down.sack {
            self.up.reorder.runs().take(SACK_BLOCKS).collect()
        } else {
            ArrayVec::new()
        }
    }
}

/// All that fit in a header without other options (RFC 2018 section 3).
const SACK_BLOCKS: usize = 4;
/// RFC 9293 section 3.7.1: the default where the peer names no segment size.
const DEFAULT_MSS_V4: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;
/// Below this a guest would make us send a header per byte; Linux's own floor is 48 (`TCP_MIN_MSS` with options).
const MIN_MSS: u32 = 48;

/// Data bytes in a segment towards the guest: what it takes, within what the link carries.
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

/// The segment size that an MTU leaves; the link's is also what our SYN offers.
pub(super) fn link_mss(guest: SocketAddr, mtu: usize) -> u16 {
    let headers = if guest.is_ipv4() { 40 } else { 60 };
    u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be a hundred thousand.
    #[test]
    fn a_connection_is_small() {
        let size = size_of::<Connection<i32>>();
        assert!(size <= 512, "{size}");
    }
}
