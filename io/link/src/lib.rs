//! Links, which carry Ethernet frames between a guest and the engine. Each type of link is a module of this crate, a
//! line of `attachments!` if a supervisor opens it, and an entry of [`MACHINE_PROTOCOLS`] if virtual machines connect
//! to it by a Unix socket.
//!
//! Workers are generic over the type of link, so that processing a frame needs no indirect call.

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

pub use attachment::{Attach, LinkServer};
pub use counters::LinkCounters;
pub use guest_listener::Source;
pub use machine_protocol::{MACHINE_PROTOCOLS, MachineProtocol};
pub use tap::{TapQueues, Vhost};
pub use vhost_user::FrontEndSocket;

use attachment::attachments;
use socket::{Packet, Socket, Stream};
use tap::Tap;
use vhost_user::VhostUser;

/// Limit on the frames of one burst. Throughput of one TCP stream from the guest, medians of nine interleaved rounds
/// (2026-11-20, 2 cores): 32,000 Mbit/s with 4 frames, 40,600 with 16, and 35,300 with 32, whose buffers exceed the
/// cache.
pub const BURST: usize = 16;

/// Upper bounds of the buckets in the histogram of frames per burst.
pub const BURSTS: [u64; 5] = [1, 2, 4, 8, BURST as u64];

/// Interval after which sending to a full link is tried again, for links that have no event for room.
const RETRY: Duration = Duration::from_millis(1);

attachments! {
    /// Queues of a tap interface.
    Tap(TapQueues) => Tap;
    /// A SOCK_STREAM socket on which each frame follows its length.
    Stream(Source) => Socket<Stream>;
    /// A SOCK_SEQPACKET or SOCK_DGRAM socket on which each message is a frame.
    Packet(Source) => Socket<Packet>;
    /// A SOCK_STREAM socket on which a front-end such as QEMU uses the vhost-user protocol.
    VhostUser(FrontEndSocket) => VhostUser;
}

/// The part of a guest's link that one worker serves, for example one queue of a tap.
pub trait Link: Send {
    /// The half that receives frames from the guest.
    type Receiver<'a>: Receive
    where
        Self: 'a;
    /// The half that sends frames to the guest.
    type Transmitter<'a>: Transmit
    where
        Self: 'a;

    /// True if guests attach to the link with Ethernet addresses that are unknown before their first frames.
    const UNKNOWN_GUESTS: bool = false;

    /// Returns both halves at once: replies to a burst are sent while the buffers of its frames are still borrowed.
    fn halves(&mut self) -> (Self::Receiver<'_>, Self::Transmitter<'_>);

    /// Returns the half that sends frames to the guest.
    fn transmitter(&mut self) -> Self::Transmitter<'_> {
        self.halves().1
    }

    /// Registers the link's descriptors with epoll, edge or level triggered: frames from the guest as
    /// [`Edge::Link`](pontoon_event::Edge::Link), room for frames to the guest as `Edge::Room`, control events as
    /// `Edge::Control`. Frames and room that exist already need not be reported; control events must be.
    ///
    /// # Errors
    /// Errors of epoll_ctl(2): ENOMEM; ENOSPC, the user has reached `max_user_watches`.
    fn watch(&mut self, epoll: &Epoll) -> io::Result<()>;

    /// Polls the link for frames from the guest that no event may have reported, and returns true if there are any. A
    /// link in shared memory polls without a system call, and requests no notification while its worker is awake.
    fn poll_frames(&mut self) -> bool {
        false
    }

    /// Processes the link's control events: guests that connect, and their negotiation. It is called after
    /// `Edge::Control`.
    ///
    /// # Errors
    /// The guest has disconnected.
    fn control(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        let _ = epoll;
        Ok(())
    }

    /// Returns true if a guest is attached and accepts frames.
    fn poll_guest(&mut self) -> bool {
        true
    }

    /// Returns true if the link has refused a frame for lack of room since the last call, or has frames that are not
    /// sent yet.
    ///
    /// # Errors
    /// A send has shown that the guest has disconnected.
    fn take_full(&mut self) -> Result<bool, Disconnected>;

    /// Ends a turn of the worker: the link may notify the guest or kernel. With `more`, the worker begins its next turn
    /// at once, with work to do, so the notification may be delayed.
    fn end_turn(&mut self, more: bool) {
        let _ = more;
    }

    /// Requests the events in `wait` before the worker sleeps. Returns the longest time for which it may sleep; `None`
    /// if an event ends the sleep.
    fn sleep(&mut self, epoll: &Epoll, wait: AwaitedEvents) -> Option<Duration>;

    /// Registers a listener with guests that no event reports again, once the pause after a failed accept is over. Returns
    /// the longest time for which the worker may sleep. Called in every turn, as a worker that polls does not sleep.
    fn retry_accept(&mut self, epoll: &Epoll) -> Option<Duration> {
        let _ = epoll;
        None
    }

    /// Returns the link's counters, without the malformed frames that [`ReceivedBurst`] reports.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    /// Detaches a guest that has disconnected. If another guest can connect, `Edge::Control` reports it.
    fn detach(&mut self, epoll: &Epoll) -> NextGuest {
        let _ = epoll;
        NextGuest::Never
    }
}

/// Events of the link for which a sleeping worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedEvents {
    /// Wait for frames from the guest. If false, frames may be pending, but the rate limit does not permit receiving
    /// them yet.
    pub frames: bool,
    /// Wait for room for frames to the guest.
    pub room: bool,
}

/// The half of a link that receives frames from the guest.
pub trait Receive {
    /// Receives up to `max` frames (1 to [`BURST`]) and passes them to `sink` in one call, unless there is none.
    fn receive(&mut self, max: usize, stop_at: StopAt, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst;
}

impl<R: Receive> Receive for &mut R {
    fn receive(&mut self, max: usize, stop_at: StopAt, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst {
        (**self).receive(max, stop_at, sink)
    }
}

/// Condition that ends a burst before its maximum of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopAt {
    /// The burst ends when the link has no more frames.
    Empty,
    /// The link has no more frames, or a frame was received whose sender probably waits for a response. Then another
    /// read would most likely be a system call without a result, at a time when latency matters.
    Request,
}

/// Result of [`Receive::receive`]: numbers of frames, and the state of the link afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedBurst {
    /// Number of frames that were passed to `sink`.
    pub frames: usize,
    /// Number of frames that the link has dropped because of invalid offload metadata or an invalid length.
    pub malformed: u64,
    /// State of the link after the burst.
    pub rest: Rest,
}

/// State of a link after a burst: whether it has more frames, or the guest has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The link has no more frames, or the burst has ended at a request: an event reports the next frame.
    Drained,
    /// The link may have more frames, which no event reports; the worker must call `receive` again.
    More,
    /// The guest has disconnected, for this reason.
    Disconnected(Disconnected),
}

/// Answer to whether another guest can connect after one has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextGuest {
    /// Another guest can connect to the link.
    CanConnect,
    /// No other guest can connect, so that the link and the engine end.
    Never,
}

/// Reason for which the link has lost its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disconnected {
    /// The guest's interface or its network namespace was deleted.
    #[error("the guest's interface was deleted: {0}")]
    Interface(Errno),
    /// The guest has closed its end of the connection.
    #[error("the guest has closed its connection")]
    Closed,
    /// The connection to the guest has failed with this errno.
    #[error("the guest's connection failed: {0}")]
    Connection(Errno),
    /// The guest has violated the protocol of the link; the text names the violation.
    #[error("protocol error of the guest: {0}")]
    Protocol(&'static str),
}
