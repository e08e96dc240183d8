//! The state of a TCP connection, from its SYN to the end of TIME-WAIT.

use core::net::SocketAddr;

use arrayvec::ArrayVec;

use super::proof::NameProof;
use super::recovery::LossRecovery;
use super::reorder::Reorder;
use super::rtt::Rtt;
use super::seq::Seq;
use super::stalled::ReceiveQueueWatch;
use super::traffic::ByteMeter;
use crate::Instant;
use crate::dns::stream::Queries;
use crate::flow_events::Announcement;
use crate::pool::{BlockPromise, BlockQueue};
use crate::timer::Timer;
use crate::state::{flow_record, record, record_enum};

/// Key of a connection: address and port of both ends, as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionKey {
    pub(super) guest: SocketAddr,
    pub(super) remote: SocketAddr,
}

record! { ConnectionKey { guest, remote } }

/// Shift of the window scale option that the engine sends (RFC 7323): windows up to 16 MiB in steps of 256 bytes.
pub(super) const SCALE: u8 = 8;
/// Receive window in bytes before the room in the host's send buffer is known, which is 39 KB for a new connection
/// (Linux 6.18, MTU 1500, the default `tcp_wmem`).
pub(super) const BLIND_WINDOW: u32 = 32 << 10;
/// Initial maximum of the receive window in bytes.
pub(super) const FIRST_WINDOW: u32 = 64 << 10;

/// State of a connection, which differs from those of RFC 9293 in that it includes the host connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpState {
    /// The guest's SYN was received, and the connect to the remote host or the handshake with the upstream proxy is pending.
    Connecting {
        /// Time at which the connect is abandoned and the guest's SYN refused; `None` leaves the timeout to the host's
        /// kernel.
        give_up: Option<Instant>,
    },
    /// The SYN-ACK was sent to the guest; the host connection is established.
    SynReceived,
    /// The SYN was sent to the guest, for a client of a published port; the host connection is established.
    SynSent,
    /// The connection is established; one direction may be closed already.
    Open,
    /// Both directions are closed, the one to the guest first. A retransmitted FIN of the guest is still acknowledged.
    TimeWait {
        /// Time at which TIME-WAIT ends and the connection is removed.
        until: Instant,
    },
    /// The host connection has failed, and the reset to the guest waits for room on the link.
    Failed,
}

record_enum! { TcpState {
    0 = Connecting { give_up },
    1 = SynReceived,
    2 = SynSent,
    3 = Open,
    4 = TimeWait { until },
    5 = Failed,
} }

/// State of the direction from the guest to the host.
#[derive(Debug)]
pub(super) struct GuestToHost {
    /// Next sequence number expected from the guest (RCV.NXT); all bytes before it are in the host socket, in `spill`
    /// or in the current burst.
    pub(super) next: Seq,
    /// Right edge of the receive window that was advertised to the guest, which never moves back.
    pub(super) edge: Seq,
    /// Right edge of the receive window that the next segment will advertise.
    pub(super) want: Seq,
    /// Window scale shift that the guest applies to the window field.
    pub(super) scale: u8,
    /// Maximum of the receive window in bytes, and the bytes received since it was increased.
    pub(super) limit: u32,
    pub(super) since_growth: u32,
    /// Bytes of the current burst that were not sent to the host yet.
    pub(super) gathered: u32,
    /// Bytes in the buffer pool, which the host socket has not accepted.
    pub(super) spill: BlockQueue,
    /// Reserved pool block for the part of the receive window that exceeds the socket's room.
    pub(super) promise: Option<BlockPromise>,
    /// Reorder buffer for data from the guest received out of order.
    pub(super) reorder: Reorder,
    /// Sequence number of the guest's FIN, if it was received.
    pub(super) fin: Option<Seq>,
    /// True if the guest's FIN was acknowledged and the host socket shut down for writing.
    pub(super) closed: bool,
    /// Parser of DNS messages, on a connection to the DNS forwarder, which accepts only queries.
    pub(super) queries: Option<Queries>,
}

record! { GuestToHost {
    next, edge, want, scale, limit, since_growth, gathered, spill, promise, reorder, fin, closed, queries,
} }

/// State of the direction from the host to the guest. The head of the socket's receive queue is the byte at `una` minus
/// `discard`.
#[derive(Debug)]
pub(super) struct HostToGuest {
    /// Oldest sequence number that the guest has not acknowledged (SND.UNA).
    pub(super) una: Seq,
    /// Next sequence number to send (SND.NXT); it moves back to `una` after a retransmission timeout.
    pub(super) nxt: Seq,
    /// Sequence number behind the highest one that was ever sent.
    pub(super) max: Seq,
    /// The guest's receive window in bytes (SND.WND), and its maximum so far.
    pub(super) wnd: u32,
    pub(super) max_wnd: u32,
    /// Sequence number of the segment that has updated `wnd` last (SND.WL1).
    pub(super) wl1: Seq,
    /// Window scale shift of the guest's window field.
    pub(super) scale: u8,
    /// Maximum number of data bytes in a segment to the guest.
    pub(super) mss: u32,
    /// True if the guest has sent the SACK-permitted option.
    pub(super) sack: bool,
    /// Number of acknowledged bytes that are still at the head of the receive queue.
    pub(super) discard: u32,
    /// True if the remote host has sent its FIN and no more data follows.
    pub(super) eof: bool,
    /// Sequence number of the engine's FIN, if it was sent.
    pub(super) fin: Option<Seq>,
    /// True if the guest has acknowledged the engine's FIN.
    pub(super) closed: bool,
    pub(super) recovery: LossRecovery,
    pub(super) rtt: Rtt,
}

record! { HostToGuest {
    una, nxt, max, wnd, max_wnd, wl1, scale, mss, sack, discard, eof, fin, closed, recovery, rtt,
} }

impl HostToGuest {
    /// Returns the number of sequence numbers in flight: sent before `nxt` and not acknowledged.
    pub(super) const fn flight(&self) -> u32 {
        self.nxt.past(self.una)
    }

    /// Returns `bytes` rounded down to a multiple of the segment size, because a partial segment would be one more
    /// frame.
    pub(super) const fn whole_segments(&self, bytes: u32) -> u32 {
        bytes / self.mss * self.mss
    }

    /// Returns the sequence number behind the last data byte that was ever sent.
    pub(super) const fn data_end(&self) -> Seq {
        match self.fin {
            Some(fin) => fin,
            None => self.max,
        }
    }

    /// Returns a sequence number for a segment without data that the guest accepts: the highest one sent or, if the
    /// guest has shrunk its window, the window's edge (Linux `tcp_acceptable_seq`: to within a step of the window
    /// field).
    pub(super) fn acceptable(&self) -> Seq {
        let edge = self.una + self.wnd;
        match self.max.after(edge) && self.max.past(edge) >= 1 << self.scale {
            true => edge,
            false => self.max,
        }
    }
}

/// Pending work of a connection, which [`flush`](super::Tcp::flush) performs, and the lists that contain the
/// connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingWork {
    /// The host socket's receive queue may have bytes that were not sent to the guest yet.
    pub(super) readable: bool,
    /// The host socket may have room for the bytes in the buffer pool.
    pub(super) writable: bool,
    /// An event for room in the send buffer was requested and has not arrived.
    pub(super) watching: bool,
    /// The remote host has closed its direction, so the receive queue contains all remaining data.
    pub(super) end: bool,
    /// The host socket has an error, behind the data in its receive queue.
    pub(super) error: bool,
    /// A short peek may have stopped at urgent data, with more data behind it.
    pub(super) urgent: bool,
    /// The SYN or SYN-ACK has to be sent to the guest.
    pub(super) handshake: bool,
    /// An acknowledgement has to be sent to the guest now.
    pub(super) ack: bool,
    /// An acknowledgement has to be sent to the guest, and may be delayed until there is data to send.
    pub(super) ack_later: bool,
    /// The connection is in the list of delayed acknowledgements.
    pub(super) ack_is_delayed: bool,
    /// The connection is in the list of connections with pending work.
    pub(super) dirty: bool,
    /// The connection is in the list of flows that wait for room on the link.
    pub(super) parked: bool,
    /// The connection is in the list of ready flows.
    pub(super) queued: bool,
    /// The connection is in the list of half-closed connections that may be evicted.
    pub(super) yields: bool,
    /// The connection is in the list of stalled connections.
    pub(super) listed_as_stalled: bool,
    /// Another flow was refused for lack of room, so an idle guest is probed early.
    pub(super) shortage: bool,
}

record! { PendingWork {
    readable, writable, watching, end, error, urgent, handshake, ack, ack_later, ack_is_delayed, dirty, parked, queued, yields,
    listed_as_stalled, shortage,
} }

/// A TCP connection between the guest and a remote host.
#[derive(Debug)]
pub(super) struct Connection<S> {
    pub(super) key: ConnectionKey,
    pub(super) state: TcpState,
    /// Host socket of the connection; `None` after the host connection has ended.
    pub(super) socket: Option<S>,
    pub(super) timer: Timer,
    pub(super) pending: PendingWork,
    /// True if the guest has sent a keepalive probe, so that keepalive is enabled on the host socket.
    pub(super) keepalive: bool,
    /// True if the engine has sent its FIN before it received the guest's, so that the connection will enter TIME-WAIT.
    pub(super) active_close: bool,
    /// True if the egress rules refuse the destination since they changed, and the connection is kept.
    pub(super) is_kept: bool,
    /// The `Published::share_key` of the published port through which a client has opened the connection; egress rules
    /// do not apply to it. `None` if the guest has opened it.
    pub(super) listener: Option<u32>,
    /// True if the decider has redirected the connection of the guest, or it uses the upstream proxy.
    pub(super) redirected: bool,
    /// Proof of the name that a rule requires; `None` if a rule permits the connection without it, or there are no rules.
    pub(super) proof: Option<Box<NameProof>>,
    /// Time of the connection's first segment.
    pub(super) opened: Instant,
    /// Measurement of the host socket's receive queue, by which a stalled connection is detected.
    pub(super) held: ReceiveQueueWatch,
    /// Counter of the bytes carried in both directions.
    pub(super) meter: ByteMeter,
    /// State of the connection's opening event.
    pub(super) announcement: Announcement,
    /// Code of the reason of the connection's end, once it is known, or 0.
    pub(super) close_reason: u16,
    /// Time of the last acceptable segment from the guest.
    pub(super) last_received: Instant,
    /// Earliest time at which another challenge acknowledgement may be sent (RFC 5961 section 7).
    pub(super) next_challenge: Instant,
    pub(super) up: GuestToHost,
    pub(super) down: HostToGuest,
}

flow_record! { Connection {
    key, state, pending, keepalive, active_close, is_kept, listener, redirected, proof, opened, held, meter, announcement,
    close_reason, last_received, next_challenge, up, down,
} sockets { socket: Option<S> } elsewhere { timer = Timer::default() } }

impl<S> Connection<S> {
    /// Creates a connection before its handshake, with the initial sequence number `iss`.
    pub(super) fn new(key: ConnectionKey, state: TcpState, iss: Seq, now: Instant) -> Self {
        Self {
            key,
            state,
            socket: None,
            timer: Timer::default(),
            pending: PendingWork::default(),
            keepalive: false,
            active_close: false,
            is_kept: false,
            listener: None,
            redirected: false,
            proof: None,
            opened: now,
            held: ReceiveQueueWatch::default(),
            meter: ByteMeter::default(),
            announcement: Announcement::default(),
            close_reason: 0,
            last_received: now,
            next_challenge: Instant::default(),
            up: GuestToHost {
                next: Seq(0),
                edge: Seq(0),
                want: Seq(BLIND_WINDOW),
                scale: 0,
                limit: FIRST_WINDOW,
                since_growth: 0,
                gathered: 0,
                spill: BlockQueue::default(),
                promise: None,
                reorder: Reorder::default(),
                fin: None,
                closed: false,
                queries: None,
            },
            down: HostToGuest {
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
                recovery: LossRecovery::new(iss),
                rtt: Rtt::default(),
            },
        }
    }

    /// Applies the TCP options and the window of the guest's SYN or SYN-ACK.
    pub(super) fn apply_syn(&mut self, segment: &pontoon_wire::frame::Tcp, mtu: usize) {
        let next = Seq(segment.seq) + 1;
        self.up.next = next;
        self.up.edge = next;
        self.up.want = next + BLIND_WINDOW;
        self.meter.begin(next, self.down.una + 1);
        let options = &segment.options;
        // RFC 7323 section 1.3: windows are scaled only if both SYNs have the option.
        self.down.scale = options.window_scale.unwrap_or(0);
        self.up.scale = if options.window_scale.is_some() { SCALE } else { 0 };
        self.down.sack = options.sack_permitted;
        self.down.mss = mss(options.mss, self.key.guest, mtu);
        // RFC 7323 section 2.2: the window in a segment with SYN is not scaled.
        self.down.wnd = u32::from(segment.window);
        self.down.max_wnd = self.down.wnd;
        self.down.wl1 = Seq(segment.seq);
    }

    /// Returns the SACK blocks for the next segment to the guest; none if the guest does not permit SACK.
    pub(super) fn sack_blocks(&self) -> ArrayVec<(u32, u32), SACK_BLOCKS> {
        if self.down.sack {
            self.up.reorder.runs().take(SACK_BLOCKS).collect()
        } else {
            ArrayVec::new()
        }
    }
}

/// Maximum number of SACK blocks in a header without other options (RFC 2018 section 3).
const SACK_BLOCKS: usize = 4;
/// MSS for a guest that has sent no MSS option (RFC 9293 section 3.7.1).
const DEFAULT_MSS_V4: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;
/// Minimum segment size in bytes, because a smaller one would let a guest cause a header for each byte; Linux's minimum
/// is 48 (`TCP_MIN_MSS` with options).
pub(super) const MIN_MSS: u32 = 48;

/// Returns the segment size in bytes for data to the guest: the MSS that it has sent, limited by the MTU of the link.
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

/// Returns the segment size in bytes for an MTU; for the link's MTU, it is also the MSS in the engine's SYN.
pub(super) fn link_mss(guest: SocketAddr, mtu: usize) -> u16 {
    let headers = if guest.is_ipv4() { 40 } else { 60 };
    u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker may have a hundred thousand connections, so the size of each matters.
    #[test]
    fn connection_is_at_most_512_bytes() {
        let size = size_of::<Connection<i32>>();
        assert!(size <= 512, "{size}");
    }
}
