//! The vhost-net link: a tap in the guest's network namespace, used through virtqueues. A kernel thread copies frames
//! between the tap and memory of this process; this process is the driver of the two virtqueues.
//!
//! The kernel copies on another processor, and frames need no system call each: reading one index finds a burst, and
//! writing one index publishes a burst. Each side requests notifications only when it needs them; the worker does
//! before it sleeps.
//!
//! The tap's descriptor stays open: if vhost-net fails, the link continues with read(2) and write(2) on the tap.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::link::{Room, TransmitError};
use pontoon_engine::{Frame, Limits, Transmit};
use pontoon_event::{Edge, Epoll};
use pontoon_sys::mapping::Mapping;
use pontoon_sys::vhost::{self, VhostDevice, VringIndex};
use pontoon_wire::vnet::Offload;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::info;
use vm_memory::VolatileSlice;

use super::rx_interest::RxInterest;
use super::tap::{self, Tap};
use super::{AwaitedEvents, Disconnected, Link, LinkCounters, RETRY, Receive, ReceivedBurst, Rest, StopAt};
use queue::{EventFd, FailureAlarm, VhostNetFailure};

mod frame_ring;
mod queue;
mod receive;
mod transmit;
/// Offsets in bytes of rings and buffers in the memory of a vhost-net device.
mod places {
    use pontoon_ring::Layout;

    use super::{receive, transmit};

    const PAGE: usize = 4096;

    pub(super) const RECEIVE_RING: usize = 0;
    pub(super) const TRANSMIT_RING: usize = Layout::contiguous_bytes(receive::BUFFERS).next_multiple_of(PAGE);
    pub(super) const RECEIVE_BUFFERS: usize =
        (TRANSMIT_RING + Layout::contiguous_bytes(transmit::FRAMES)).next_multiple_of(PAGE);
    pub(super) const TRANSMIT_BUFFERS: usize = (RECEIVE_BUFFERS + receive::BYTES).next_multiple_of(PAGE);
    pub(super) const BYTES: usize = TRANSMIT_BUFFERS + transmit::BYTES;
}

/// One queue of a tap, used through a vhost-net device or, after that has failed, directly.
#[derive(Debug)]
pub struct VhostNet {
    receiver: VhostNetReceiver,
    transmitter: VhostNetTransmitter,
    kick: EventFd,
    /// Eventfd that reports a failure of vhost-net; `None` after the link has changed to the tap.
    alarm: Option<Arc<FailureAlarm>>,
    /// Registration of the tap's descriptor for frames, which is used after vhost-net has failed.
    rx_interest: RxInterest,
    /// Bytes received and sent since the kernel has first requested a notification that was not sent yet.
    gathered: Option<usize>,
    /// Number of times that the worker has slept since the last frame from the guest.
    silence: u32,
    /// Number of consecutive polls without a frame from the guest.
    empty_polls: u32,
    disconnected: Option<Disconnected>,
    /// True if the link has room that no event has reported.
    room: bool,
    withdrawals: u64,
}

/// A running vhost-net device, a pair of virtqueues, that is not part of a link yet.
#[derive(Debug)]
pub struct VhostPair {
    receiver: receive::VringReceiver,
    transmitter: transmit::VringTransmitter,
    kick: EventFd,
    alarm: Arc<FailureAlarm>,
}

impl VhostPair {
    /// Starts a vhost-net device on a tap. From then on the kernel reads the tap, and this process must not.
    ///
    /// # Errors
    /// Errors of opening and configuring `/dev/vhost-net`.
    pub fn start(tap: &Tap) -> io::Result<Self> {
        let memory = Mapping::new(places::BYTES)?;
        let features = vhost::VERSION_1 | vhost::EVENT_IDX | vhost::MERGEABLE;
        let device = Arc::new(VhostDevice::new(memory, features)?);
        let (kick, alarm) = (EventFd::new()?, Arc::new(FailureAlarm::new()?));
        let pair = Self {
            receiver: receive::VringReceiver::new(&device, &kick, &alarm)?,
            transmitter: transmit::VringTransmitter::new(&device, &kick, &alarm, tap.limits())?,
            kick,
            alarm,
        };
        for which in [VringIndex::Receive, VringIndex::Transmit] {
            device.start(which, tap.as_fd())?;
        }
        Ok(pair)
    }
}

impl VhostNet {
    /// Creates the link of a tap and the vhost-net device that serves it.
    #[must_use]
    pub fn new(tap: Tap, pair: VhostPair) -> Self {
        let (tap_receiver, tap_transmitter) = tap.into_halves();
        Self {
            receiver: VhostNetReceiver {
                ring: Some(pair.receiver),
                tap: tap_receiver,
            },
            transmitter: VhostNetTransmitter {
                ring: Some(pair.transmitter),
                tap: tap_transmitter,
            },
            kick: pair.kick,
            alarm: Some(pair.alarm),
            rx_interest: RxInterest::default(),
            gathered: None,
            silence: 0,
            empty_polls: 0,
            disconnected: None,
            room: false,
            withdrawals: 0,
        }
    }

    /// Changes to the tap after vhost-net has failed. Frames that the kernel has not sent yet are lost.
    fn withdraw(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        self.alarm = None;
        // Dropping the second half closes the device; after that the kernel does not read the tap any more.
        self.receiver.ring = None;
        self.transmitter.ring = None;
        self.withdrawals += 1;
        // The tap is assumed to have room.
        self.room = true;
        epoll
            .add_level(&self.receiver.tap, Edge::Link.token())
            .map_err(Disconnected::Connection)
    }

    /// Notifies the kernel if it has requested that: at once or, if `more` frames follow, when enough bytes have
    /// gathered.
    fn wake(&mut self, more: bool) {
        let (Some(receiver), Some(transmitter)) = (&mut self.receiver.ring, &mut self.transmitter.ring)
        else {
            return;
        };
        let bytes = receiver.take_bytes() + transmitter.take_bytes();
        // Both requests are cleared, so that `|` is used and not `||`.
        let is_due = receiver.take_due() | transmitter.take_due();
        if is_due {
            self.gathered.get_or_insert(0);
        }
        let Some(gathered) = &mut self.gathered else {
            return;
        };
        *gathered += bytes.max(TURN);
        if more && *gathered < ENOUGH {
            return;
        }
        self.gathered = None;
        transmitter.queue().checked(self.kick.signal());
    }

    /// Checks whether the interface was deleted, which vhost-net does not report. The checks become rarer while no
    /// frame arrives.
    fn look_for_guest(&mut self) {
        self.silence = self.silence.saturating_add(1);
        if self.silence.is_power_of_two() && self.silence >= LONG_SILENCE {
            self.check_interface();
        }
    }

    /// Checks by a system call whether the interface was deleted.
    fn check_interface(&mut self) {
        let mut tap = [PollFd::new(&self.receiver.tap, PollFlags::empty())];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if poll(&mut tap, Some(&at_once)).is_ok() && tap[0].revents().contains(PollFlags::ERR) {
            self.disconnected = Some(Disconnected::Interface(Errno::BADFD));
        }
    }
}

/// Number of bytes that gather before the kernel is notified, while more frames follow.
const ENOUGH: usize = 512 << 10;

/// Minimum of bytes that one turn counts for, so that the kernel is notified after at most eight turns.
const TURN: usize = 64 << 10;

/// Consecutive polls without a frame from the guest after which a system call checks that its interface still exists,
/// because a worker in pacing `poll` never sleeps. That number of polls takes some tens of milliseconds.
const EMPTY_POLLS: u32 = 1 << 16;

/// Consecutive sleeps without a frame from the guest after which a system call checks that its interface still exists.
const LONG_SILENCE: u32 = 4;

impl Link for VhostNet {
    type Receiver<'a> = &'a mut VhostNetReceiver;
    type Transmitter<'a> = &'a mut VhostNetTransmitter;

    fn halves(&mut self) -> (&mut VhostNetReceiver, &mut VhostNetTransmitter) {
        (&mut self.receiver, &mut self.transmitter)
    }

    fn watch(&mut self, epoll: &Epoll) -> io::Result<()> {
        if let Some(ring) = &self.receiver.ring {
            epoll.add(ring.queue().call(), Edge::Link.token())?;
        }
        if let Some(ring) = &self.transmitter.ring {
            epoll.add(ring.queue().call(), Edge::Room.token())?;
        }
        if let Some(alarm) = &self.alarm {
            epoll.add(alarm, Edge::Control.token())?;
        }
        Ok(())
    }

    fn poll_frames(&mut self) -> bool {
        let has_frames = self.receiver.look(receive::VringReceiver::waiting);
        if has_frames {
            self.silence = 0;
            self.empty_polls = 0;
        } else {
            self.empty_polls = self.empty_polls.wrapping_add(1);
            if self.empty_polls.is_multiple_of(EMPTY_POLLS) {
                self.check_interface();
            }
        }
        has_frames || self.rx_interest.misses(&self.receiver.tap)
    }

    fn control(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        let Some(failure) = self.alarm.as_ref().and_then(|alarm| alarm.take_failure()) else {
            return Ok(());
        };
        info!("vhost-net has failed ({failure}); the tap is used without it");
        self.withdraw(epoll)
    }

    fn take_full(&mut self) -> Result<bool, Disconnected> {
        let full = match &mut self.transmitter.ring {
            Some(ring) => ring.take_full(),
            // Both are cleared, so that `|` is used and not `||`.
            None => self.transmitter.tap.take_full() | std::mem::take(&mut self.room),
        };
        self.disconnected.map_or(Ok(full), Err)
    }

    fn end_turn(&mut self, more: bool) {
        self.wake(more);
    }

    fn sleep(&mut self, epoll: &Epoll, wait: AwaitedEvents) -> Option<Duration> {
        self.wake(false);
        let Some(ring) = &mut self.transmitter.ring else {
            let frames = self.rx_interest.sleep(&self.receiver.tap, epoll, wait.frames);
            return frames.or(wait.room.then_some(RETRY));
        };
        let room = wait.room && {
            let used = ring.rearm();
            ring.queue().checked(used).is_some_and(|used| used > 0)
        };
        let frames = wait.frames && self.receiver.look(receive::VringReceiver::rearm);
        self.look_for_guest();
        (frames || room || self.disconnected.is_some()).then_some(Duration::ZERO)
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters {
            link_withdrawals: self.withdrawals,
            ..LinkCounters::default()
        }
    }
}

/// The half of a vhost-net link that receives frames.
#[derive(Debug)]
pub struct VhostNetReceiver {
    ring: Option<receive::VringReceiver>,
    tap: tap::TapReceiver,
}

impl VhostNetReceiver {
    /// Returns true if the receive virtqueue has frames; false without vhost-net. `how` polls the virtqueue with or
    /// without a request for a notification.
    fn look(&mut self, how: fn(&mut receive::VringReceiver) -> Result<u16, VhostNetFailure>) -> bool {
        self.ring.as_mut().is_some_and(|ring| {
            let waiting = how(ring);
            ring.queue().checked(waiting).is_some_and(|waiting| waiting > 0)
        })
    }
}

impl Receive for VhostNetReceiver {
    fn receive(&mut self, max: usize, stop_at: StopAt, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst {
        let Some(ring) = &mut self.ring else {
            return self.tap.receive(max, stop_at, sink);
        };
        let burst = ring.receive(max, sink);
        ring.queue().checked(burst).unwrap_or(ReceivedBurst {
            frames: 0,
            malformed: 0,
            rest: Rest::Drained,
        })
    }
}

/// The half of a vhost-net link that sends frames.
#[derive(Debug)]
pub struct VhostNetTransmitter {
    ring: Option<transmit::VringTransmitter>,
    tap: tap::TapTransmitter,
}

impl Transmit for VhostNetTransmitter {
    type Room<'a> = VhostNetReservation<'a>;

    fn limits(&self) -> Limits {
        self.tap.limits()
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError> {
        match &mut self.ring {
            Some(ring) => ring.send(offload, head, payload),
            None => self.tap.send(offload, head, payload),
        }
    }

    fn reserve(&mut self, frames: usize, head: usize, payload: usize) -> Option<VhostNetReservation<'_>> {
        match &mut self.ring {
            Some(ring) => ring.reserve(frames, payload).map(VhostNetReservation::Ring),
            None => self
                .tap
                .reserve(frames, head, payload)
                .map(VhostNetReservation::Tap),
        }
    }

    fn flush(&mut self) {
        if let Some(ring) = &mut self.ring {
            let flushed = ring.flush();
            ring.queue().checked(flushed);
        }
    }
}

/// Reserved frames of a vhost-net link.
#[derive(Debug)]
pub enum VhostNetReservation<'a> {
    /// Frames in the circular buffer of the transmit virtqueue.
    Ring(transmit::VringReservation<'a>),
    /// Frames in the tap's buffer, after vhost-net has failed.
    Tap(tap::TapReservation<'a>),
}

impl Room for VhostNetReservation<'_> {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        match self {
            Self::Ring(room) => room.payloads(),
            Self::Tap(room) => room.payloads(),
        }
    }

    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), TransmitError> {
        match self {
            Self::Ring(room) => room.commit(offload, head, len),
            Self::Tap(room) => room.commit(offload, head, len),
        }
    }
}

#[cfg(test)]
mod tests;
