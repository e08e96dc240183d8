//! The vhost-net link: a namespace's tap. A kernel thread copies frames between the tap and memory of this process, by two
//! virtqueues, of which this process is the driver.
//!
//! The kernel copies while the worker does something else, and frames cost no system call each: one read of an index finds
//! a burst, and one store publishes one. Each side requests notifications when it needs them: the worker only before it
//! sleeps.
//!
//! The tap stays open. When vhost-net fails, the link continues on the tap.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::link::{Room, TransmitError};
use pontoon_engine::{Frame, Limits, Transmit};
use pontoon_event::{Edge, Epoll};
use pontoon_sys::mapping::Mapping;
use pontoon_sys::vhost::{self, Device, Which};
use pontoon_wire::vnet::Offload;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::info;
use vm_memory::VolatileSlice;

use super::rx_interest::RxInterest;
use super::tap::{self, Tap};
use super::{Disconnected, For, Link, LinkCounters, RETRY, Receive, ReceivedBurst, Rest, StopAt};
use queue::{Alarm, Bell, Failure};

mod frame_ring;
mod queue;
mod receive;
mod transmit;
/// Offsets in a device's memory, from its first byte.
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

/// One queue of a tap with the kernel's vhost-net in front of it.
#[derive(Debug)]
pub struct VhostNet {
    receiver: VhostNetReceiver,
    transmitter: VhostNetTransmitter,
    bell: Bell,
    /// Present as long as vhost-net is.
    alarm: Option<Arc<Alarm>>,
    /// Of the tap's, when vhost-net is gone.
    rx_interest: RxInterest,
    /// Bytes, both ways, since the kernel would have liked to be woken.
    gathered: Option<usize>,
    /// Times that the worker went to sleep since a frame came.
    silence: u32,
    disconnected: Option<Disconnected>,
    /// There is room that no event has reported.
    room: bool,
    withdrawals: u64,
}

/// A running queue pair, not yet part of a link.
#[derive(Debug)]
pub struct Pair {
    receiver: receive::VringReceiver,
    transmitter: transmit::VringTransmitter,
    bell: Bell,
    alarm: Arc<Alarm>,
}

impl Pair {
    /// Starts a vhost-net device on a tap, which must not be read from then on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(tap: &Tap) -> io::Result<Self> {
        let memory = Mapping::new(places::BYTES)?;
        let features = vhost::VERSION_1 | vhost::EVENT_IDX | vhost::MERGEABLE;
        let device = Arc::new(Device::new(memory, features)?);
        let (bell, alarm) = (Bell::new()?, Arc::new(Alarm::new()?));
        let pair = Self {
            receiver: receive::VringReceiver::new(&device, &bell, &alarm)?,
            transmitter: transmit::VringTransmitter::new(&device, &bell, &alarm, tap.limits())?,
            bell,
            alarm,
        };
        for which in [Which::Receive, Which::Transmit] {
            device.start(which, tap.as_fd())?;
        }
        Ok(pair)
    }
}

impl VhostNet {
    /// The link of a tap and the pair that serves it.
    #[must_use]
    pub fn new(tap: Tap, pair: Pair) -> Self {
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
            bell: pair.bell,
            alarm: Some(pair.alarm),
            rx_interest: RxInterest::default(),
            gathered: None,
            silence: 0,
            disconnected: None,
            room: false,
            withdrawals: 0,
        }
    }

    /// Goes on by the tap. Frames that the kernel had not sent are lost, as they may be on any link.
    fn withdraw(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        self.alarm = None;
        // With the last half, the device: after this the kernel reads the tap no more.
        self.receiver.ring = None;
        self.transmitter.ring = None;
        self.withdrawals += 1;
        // The tap has room.
        self.room = true;
        epoll
            .add_level(&self.receiver.tap, Edge::Link.token())
            .map_err(Disconnected::Connection)
    }

    /// Wakes the kernel if it has to be: now, or, with `more` to come, when enough has gathered.
    fn wake(&mut self, more: bool) {
        let (Some(receiver), Some(transmitter)) = (&mut self.receiver.ring, &mut self.transmitter.ring)
        else {
            return;
        };
        let bytes = receiver.take_bytes() + transmitter.take_bytes();
        // Both are asked.
        if receiver.take_due() | transmitter.take_due() {
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
        transmitter.queue().checked(self.bell.ring());
    }

    /// Checks for the loss of the interface, which vhost-net does not report. The checks become rarer while no frame
    /// arrives.
    fn look_for_guest(&mut self) {
        self.silence = self.silence.saturating_add(1);
        if !self.silence.is_power_of_two() || self.silence < LONG_SILENCE {
            return;
        }
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

/// Bytes that gather before the kernel is woken for them, while there is more to do.
const ENOUGH: usize = 512 << 10;

/// The minimum of bytes that a turn counts for, so that the kernel is woken after at most eight turns.
const TURN: usize = 64 << 10;

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
        }
        has_frames || self.rx_interest.misses(&self.receiver.tap)
    }

    fn control(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        let Some(failure) = self.alarm.as_ref().and_then(|alarm| alarm.take_failure()) else {
            return Ok(());
        };
        info!("vhost-net has failed ({failure}); using the tap without it");
        self.withdraw(epoll)
    }

    fn take_full(&mut self) -> Result<bool, Disconnected> {
        let full = match &mut self.transmitter.ring {
            Some(ring) => ring.take_full(),
            None => self.transmitter.tap.take_full() || std::mem::take(&mut self.room),
        };
        self.disconnected.map_or(Ok(full), Err)
    }

    fn end_turn(&mut self, more: bool) {
        self.wake(more);
    }

    fn sleep(&mut self, epoll: &Epoll, wait: For) -> Option<Duration> {
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

/// The receiving half.
#[derive(Debug)]
pub struct VhostNetReceiver {
    ring: Option<receive::VringReceiver>,
    tap: tap::TapReceiver,
}

impl VhostNetReceiver {
    /// Returns true if frames wait in the ring, if there is one; `how` looks for them, with or without a
    /// notification request.
    fn look(&mut self, how: fn(&mut receive::VringReceiver) -> Result<u16, Failure>) -> bool {
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

/// The sending half.
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

/// Reserved frames.
#[derive(Debug)]
pub enum VhostNetReservation<'a> {
    /// In the circular buffer.
    Ring(transmit::VringReservation<'a>),
    /// The tap's.
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
