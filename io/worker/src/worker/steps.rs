//! Steps of a worker's turn: input, then output.

use std::io;

use pontoon_engine::{Instant, Transmit as _};
use pontoon_event::{EVENTS, Edge, Events};
use pontoon_host::ping::TakenPacket;
use pontoon_link::{BURST, Disconnected, Link, Receive as _, ReceivedBurst, Rest, StopAt};
use pontoon_sys::Family;

use super::updates::ChannelState;
use super::{LoopEnd, Worker};
use crate::pacing::Side;

/// Inputs and conditions of a worker that no further event reports, because their events are edge triggered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PendingInput {
    pub(super) frames: bool,
    pub(super) icmp: bool,
    pub(super) icmpv6: bool,
    pub(super) supervisor: bool,
    pub(super) inbox: bool,
    /// True if the link had no room for a frame.
    pub(super) room: bool,
    /// True if [`Link::control`] has to be called.
    pub(super) control: bool,
    /// True if the socket helper has sent sockets.
    pub(super) guest_sockets: bool,
    /// Reason for which the guest has disconnected, if it has.
    pub(super) disconnected: Option<Disconnected>,
    /// True if a capture starts or stops.
    pub(super) capture: bool,
}

/// State of a raw ICMP socket after some of its packets were received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RawSocketState {
    /// The socket is empty; an event reports the next packet.
    Drained,
    /// The socket may have more packets, which no event reports.
    More,
}

impl<L: Link> Worker<L> {
    /// Receives a burst of frames from the guest, if some may be pending and the rate limit permits. Returns their number.
    #[inline]
    pub(super) fn receive_frames(
        &mut self,
        pending: &mut PendingInput,
        stop_at: StopAt,
        now: Instant,
    ) -> usize {
        if !pending.frames {
            return 0;
        }
        let most @ 1.. = self.engine.frames_allowed(now) else {
            return 0;
        };
        let burst = self.receive_burst(most.min(BURST), stop_at, now);
        pending.frames = burst.rest == Rest::More;
        if let Rest::Disconnected(reason) = burst.rest {
            pending.disconnected = Some(reason);
        }
        burst.frames
    }

    /// Processes the input that is neither a frame of the guest nor an event on a flow's socket: frames handed over by
    /// other workers, shared ICMP sockets, the link's control events, the supervisor's messages and timers. Returns the
    /// reason if the loop has to end.
    #[inline]
    pub(super) fn handle_other_input(
        &mut self,
        pending: &mut PendingInput,
        worked: &mut Option<Side>,
        now: Instant,
    ) -> io::Result<Option<LoopEnd>> {
        if pending.inbox {
            let Some((frames, more)) = self.receive_handed(now) else {
                return Ok(Some(LoopEnd::Peer));
            };
            if frames > 0 {
                *worked = worked.or(Some(Side::Host));
            }
            pending.inbox = more;
        }

        // The raw ICMP sockets, which all flows share.
        if pending.icmp {
            pending.icmp = self.receive_echoes(Family::V4, now) == RawSocketState::More;
        }
        if pending.icmpv6 {
            pending.icmpv6 = self.receive_echoes(Family::V6, now) == RawSocketState::More;
        }

        if std::mem::take(&mut pending.guest_sockets) {
            self.engine
                .handle_guest_sockets(&mut self.link.transmitter(), &mut self.host, now);
        }

        if std::mem::take(&mut pending.control) {
            pending.frames = true;
            if let Err(reason) = self.link.control(self.host.epoll()) {
                pending.disconnected = Some(reason);
            }
        }

        if self.solicits && self.link.poll_guest() {
            self.solicits = false;
            self.engine.solicit_guest(&mut self.link.transmitter());
        }
        if !self.orphans.is_empty() && self.link.poll_guest() {
            self.engine.ask_about(std::mem::take(&mut self.orphans));
        }

        if pending.supervisor && self.receive_updates(now)? == ChannelState::Closed {
            return Ok(Some(LoopEnd::Supervisor));
        }
        pending.supervisor = false;

        if self.engine.next_timeout().is_some_and(|due| due <= now) {
            self.engine
                .handle_timeout(&mut self.link.transmitter(), &mut self.host, now);
        }
        Ok(None)
    }

    /// Sends frames for which the link had no room before, then one quantum of each ready flow.
    #[inline]
    pub(super) fn send_output(&mut self, pending: &mut PendingInput, now: Instant) {
        let mut link = self.link.transmitter();
        if std::mem::take(&mut pending.room) {
            self.engine.handle_link_ready(&mut link, &mut self.host, now);
        }
        self.engine.handle_ready(&mut link, &mut self.host, now);
        link.flush();
        drop(link);
        pending.note_full(self.link.take_full());
    }

    /// Receives a burst of at most `most` frames from the link.
    fn receive_burst(&mut self, most: usize, stop_at: StopAt, now: Instant) -> ReceivedBurst {
        let Self {
            engine, host, link, ..
        } = self;
        let (mut receiver, mut transmitter) = link.halves();
        let burst = receiver.receive(most, stop_at, |frames| {
            engine.handle_frames(frames, &mut transmitter, host, now)
        });
        self.malformed += burst.malformed;
        if burst.frames > 0 {
            self.histograms.batch_frames.count(burst.frames as u64);
        }
        burst
    }

    /// Handles the events on the host sockets of flows. Returns their number.
    pub(super) fn handle_sockets(&mut self, events: &Events, now: Instant) -> usize {
        let mut count = 0;
        for (flow, ready) in events.flows() {
            self.engine
                .handle_socket(flow, ready, &mut self.link.transmitter(), &mut self.host, now);
            count += 1;
        }
        count
    }

    /// Dispatches at most [`EVENTS`] packets of a raw ICMP socket to their flows.
    fn receive_echoes(&mut self, family: Family, now: Instant) -> RawSocketState {
        for _ in 0..EVENTS {
            match self.host.take_shared(family) {
                TakenPacket::Drained => return RawSocketState::Drained,
                TakenPacket::Unmatched => {}
                TakenPacket::Flow(flow, ready) => {
                    self.engine
                        .handle_socket(flow, ready, &mut self.link.transmitter(), &mut self.host, now);
                }
            }
        }
        RawSocketState::More
    }

    /// Processes the frames and updates that other workers put into the inbox. Returns the number of frames, and true if
    /// there may be more; `None` if the loop of another worker has ended.
    fn receive_handed(&mut self, now: Instant) -> Option<(usize, bool)> {
        let Self {
            engine,
            host,
            link,
            handle,
            ..
        } = self;
        let Some(handle) = handle else {
            return Some((0, false));
        };
        let received =
            handle.receive(|frames| engine.handle_handed(frames, &mut link.transmitter(), host, now));
        let (updates, is_over) = (handle.updates(), handle.is_over());
        for update in updates {
            self.apply(update, now);
        }
        (!is_over).then_some(received)
    }
}

impl PendingInput {
    /// Records, after sending, that the link is full or the guest has disconnected.
    pub(super) fn note_full(&mut self, full: Result<bool, Disconnected>) {
        match full {
            Ok(full) => self.room |= full,
            Err(how) => self.disconnected = Some(how),
        }
    }

    /// Records the events on the worker's own sources as pending input.
    pub(super) fn note_events(&mut self, events: &Events) {
        for (edge, ready) in events.edges() {
            match edge {
                Edge::Link => self.frames |= ready.readable || ready.error,
                Edge::Supervisor => self.supervisor = true,
                Edge::Icmp => self.icmp = true,
                Edge::Icmpv6 => self.icmpv6 = true,
                Edge::Inbox => self.inbox = true,
                Edge::Room => self.room = true,
                Edge::Control => self.control = true,
                Edge::SocketHelper => self.guest_sockets = true,
            }
        }
    }
}
