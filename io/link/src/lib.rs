//! Links: the carriers of Ethernet frames to and from a guest. A link is a module here, a line
//! of `attachments!` if a supervisor opens it, and an entry of [`MACHINE_PROTOCOLS`] if machines connect by a Unix socket.
//!
//! A worker is generic over its link, so that the packet path has no indirect call.

use std::io;
use std::time::Duration;

use pontoon_engine::{Frame, Transmit};
use pontoon_event::Epoll;
#[cfg(test)]
use pontoon_test_support::namespace;
use rustix::io::Errno;

mod attachment;
pub mod capturing;
#[cfg(test)]
mod conformance;
mod counters;
mod guest_listener;
mod machine_protocol;
mod rx_interest;
pub mod socket;
pub mod tap;
pub mod vhost_net;
pub mod vhost_user;

pub use attachment::{Attach, Serve};
pub use counters::LinkCounters;
pub use guest_listener::Source;
pub use machine_protocol::{MACHINE_PROTOCOLS, MachineProtocol};
pub use tap::{TapQueues, Vhost};
pub use vhost_user::FrontEndSocket;

use attachment::attachments;
use socket::{Packet, Socket, Stream};
use tap::Tap;
use vhost_user::VhostUser;

/// Frames of one burst. TCP up, one stream, medians of nine interleaved rounds (2026-11-20, 2 cores): 32,000 Mbit/s with 4,
/// 40,600 with 16, 35,300 with 32, whose buffers no longer stay in the cache.
pub const BURST: usize = 16;

/// Bounds of how many frames a burst has.
pub const BURSTS: [u64; 5] = [1, 2, 4, 8, BURST as u64];

/// The interval after which a full link is tried again, if no event reports that it has room.
const RETRY: Duration = Duration::from_millis(1);

attachments! {
    /// A tap.
    Tap(TapQueues) => Tap;
    /// A SOCK_STREAM socket.
    Stream(Source) => Socket<Stream>;
    /// A SOCK_SEQPACKET or SOCK_DGRAM socket.
    Packet(Source) => Socket<Packet>;
    /// A SOCK_STREAM socket on which a front-end uses the vhost-user protocol.
    VhostUser(FrontEndSocket) => VhostUser;
}

/// One worker's part of a link.
pub trait Link: Send {
    /// The half that receives frames from the guest.
    type Receiver<'a>: Receive
    where
        Self: 'a;
    /// The half that sends frames to the guest.
    type Transmitter<'a>: Transmit
    where
        Self: 'a;

    /// The two halves. Replies to a burst are sent while the buffers of its frames are still borrowed.
    fn halves(&mut self) -> (Self::Receiver<'_>, Self::Transmitter<'_>);

    /// The sending half.
    fn transmitter(&mut self) -> Self::Transmitter<'_> {
        self.halves().1
    }

    /// Registers the link's descriptors, edge or level triggered: frames as
    /// [`Edge::Link`](pontoon_event::Edge::Link), room as `Edge::Room`, control events as `Edge::Control`.
    /// Readiness that exists already need not be reported, except of control events.
    ///
    /// # Errors
    /// Out of memory, or of the user's watches.
    fn watch(&mut self, epoll: &Epoll) -> io::Result<()>;

    /// Polls the link for frames that no event may have reported, and returns true if there are some. A link in shared
    /// memory does this without a system call and needs no notification while its worker is awake.
    fn poll_frames(&mut self) -> bool {
        false
    }

    /// Processes the link's control events: connections of guests and their negotiation. Called after `Edge::Control`.
    ///
    /// # Errors
    /// The guest is gone.
    fn control(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        let _ = epoll;
        Ok(())
    }

    /// Polls the link for a guest, and returns true if one is attached that accepts frames.
    fn poll_guest(&mut self) -> bool {
        true
    }

    /// Returns true if a frame was refused for lack of room since the last call, or is still waiting to be sent.
    ///
    /// # Errors
    /// The guest has disconnected, as sending has shown.
    fn take_full(&mut self) -> Result<bool, Disconnected>;

    /// A turn is over; with `more`, the next one follows at once and has something to do.
    fn end_turn(&mut self, more: bool) {
        let _ = more;
    }

    /// Prepares the link for a sleeping worker. Returns the longest time for which it may sleep; `None`: until an event.
    fn sleep(&mut self, epoll: &Epoll, wait: For) -> Option<Duration>;

    /// Registers a listener with guests that no event reports again, once the pause after a failed accept is over. Returns
    /// the longest time for which the worker may sleep. Called in every turn, as a worker that polls does not sleep.
    fn retry_accept(&mut self, epoll: &Epoll) -> Option<Duration> {
        let _ = epoll;
        None
    }

    /// Returns the link's counters, without the malformed frames that its bursts report.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    /// Detaches a guest that has disconnected. If another one can connect, `Edge::Control` reports it.
    fn detach(&mut self, epoll: &Epoll) -> NextGuest {
        let _ = epoll;
        NextGuest::Never
    }
}

/// The events for which a sleeping worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct For {
    /// Frames. If false, frames are pending, but the rate limit does not permit them yet.
    pub frames: bool,
    /// Room for frames to the guest.
    pub room: bool,
}

/// The receiving half of a link.
pub trait Receive {
    /// Takes up to `max` frames (one at least, at most [`BURST`]) and hands them to `sink` together, unless there is none.
    fn receive(&mut self, max: usize, stop_at: StopAt, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst;
}

impl<R: Receive> Receive for &mut R {
    fn receive(&mut self, max: usize, stop_at: StopAt, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst {
        (**self).receive(max, stop_at, sink)
    }
}

/// The condition that ends a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopAt {
    /// No frame is left.
    Empty,
    /// No frame is left, or a frame was received whose sender most likely waits for a response: another read would be a
    /// system call without a result when latency matters most.
    Request,
}

/// The result of receiving a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedBurst {
    /// Frames that were handed on.
    pub frames: usize,
    /// Frames that were dropped here, for invalid offload metadata or an invalid length.
    pub malformed: u64,
    /// The state of the link after the burst.
    pub rest: Rest,
}

/// The state of a link after a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing, or nothing that was looked for: an event reports the next frame.
    Drained,
    /// Possibly more frames, which no event reports.
    More,
    /// The guest is gone.
    Disconnected(Disconnected),
}

/// The prospect of another guest after one has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextGuest {
    /// Another guest can connect.
    CanConnect,
    /// The link has ended.
    Never,
}

/// The reason for which a guest was disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disconnected {
    /// The interface was deleted, or its namespace was.
    #[error("the guest's interface is gone: {0}")]
    Interface(Errno),
    /// It closed its end of the connection.
    #[error("the guest has closed its connection")]
    Closed,
    /// Its connection failed.
    #[error("the guest's connection failed: {0}")]
    Connection(Errno),
    /// It violated the link's protocol.
    #[error("protocol error of the guest: {0}")]
    Protocol(&'static str),
}
