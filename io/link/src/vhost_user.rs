//! The vhost-user link: virtqueues in a virtual machine's memory, which this process has mapped.
//!
//! `pontoon-vhost-user` is the device; this module connects it with the workers. Each worker has a pair of virtqueues,
//! and the first worker also serves the front-end's socket.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pontoon_engine::Frame;
use pontoon_event::{Edge, Epoll};
use pontoon_vhost_user::{ActivateError, Backend, InProcessDevice, QueueConfig, Receiver, Transmitter};
use rustix::event::{EventfdFlags, eventfd};
use tracing::warn;
use vm_memory::GuestMemoryMmap;

use super::guest_listener::{GuestConnection, GuestListener, Source};
use super::{
    AwaitedEvents, Disconnected, Link, LinkCounters, NextGuest, Receive, ReceivedBurst, Rest, StopAt,
};

mod attach;

pub use attach::FrontEndSocket;

/// The part of a vhost-user link that one worker serves: a pair of virtqueues.
#[derive(Debug)]
pub struct VhostUser {
    receiver: Receiver,
    transmitter: Transmitter,
    /// Connection of the front-end and the listener for the next one; only the first worker has it.
    front_end: Option<FrontEnd>,
    departures: Arc<GuestDepartures>,
    /// Number of disconnected guests whose flows this worker has removed.
    known: u64,
    /// Eventfd of this worker that is written when a guest has disconnected.
    departure_event: Arc<OwnedFd>,
}

/// Opens a link for each of `workers` workers, to guests that connect through `source`. `mtu` is the MTU of their
/// interface, unless the front-end sets another.
///
/// # Errors
/// No free descriptor, or a descriptor cannot be made non-blocking.
pub fn open(source: Source, workers: u8, mtu: u16) -> io::Result<Vec<VhostUser>> {
    let (mut backend, halves) = Backend::new(workers.into(), mtu.into())?;
    let departures = Arc::new(GuestDepartures::new(halves.len())?);
    let (guest_listener, guest) = GuestListener::new(source)?;
    if let Some(socket) = guest {
        backend.connect(socket)?;
    }
    let mut front_end = Some(FrontEnd {
        guest_listener,
        backend,
    });
    let links = halves.into_iter().zip(&departures.events);
    Ok(links
        .map(|(halves, departure_event)| {
            VhostUser::new(halves, front_end.take(), &departures, departure_event)
        })
        .collect())
}

/// Creates the link to the guest of a VMM in this process, and the object by which the VMM controls the device. `mtu`
/// is the MTU of the guest's interface.
///
/// # Errors
/// No free descriptor.
pub fn in_process(mtu: u16) -> io::Result<(Control, VhostUser)> {
    let (device, receiver, transmitter) = InProcessDevice::new(mtu.into())?;
    let departures = Arc::new(GuestDepartures::new(1)?);
    let link = VhostUser::new((receiver, transmitter), None, &departures, &departures.events[0]);
    Ok((Control { device, departures }, link))
}

/// The control interface of an in-process virtio-net device, for the VMM.
#[derive(Debug)]
pub struct Control {
    device: InProcessDevice,
    departures: Arc<GuestDepartures>,
}

impl Control {
    /// Returns the features that the device offers, see [`InProcessDevice::features`].
    #[must_use]
    pub fn features(&self) -> u64 {
        self.device.features()
    }

    /// Activates the device with the driver's virtqueues, see [`InProcessDevice::activate`].
    ///
    /// # Errors
    /// Those of [`InProcessDevice::activate`].
    pub fn activate(
        &mut self,
        memory: &GuestMemoryMmap,
        features: u64,
        queues: [QueueConfig; 2],
    ) -> Result<(), ActivateError> {
        self.device.activate(memory, features, queues)
    }

    /// Resets the device, see [`InProcessDevice::reset`]. The guest's flows end.
    pub fn reset(&mut self) {
        self.device.reset();
        self.departures.announce();
    }
}

impl VhostUser {
    fn new(
        (receiver, transmitter): (Receiver, Transmitter),
        front_end: Option<FrontEnd>,
        departures: &Arc<GuestDepartures>,
        departure_event: &Arc<OwnedFd>,
    ) -> Self {
        Self {
            receiver,
            transmitter,
            front_end,
            departures: departures.clone(),
            known: 0,
            departure_event: departure_event.clone(),
        }
    }
}

impl Link for VhostUser {
    type Receiver<'a> = &'a mut Receiver;
    type Transmitter<'a> = &'a mut Transmitter;

    const UNKNOWN_GUESTS: bool = true;

    fn halves(&mut self) -> (&mut Receiver, &mut Transmitter) {
        (&mut self.receiver, &mut self.transmitter)
    }

    fn watch(&mut self, epoll: &Epoll) -> io::Result<()> {
        epoll.add(&self.receiver, Edge::Link.token())?;
        epoll.add(&self.transmitter, Edge::Room.token())?;
        epoll.add(&*self.departure_event, Edge::Control.token())?;
        match &self.front_end {
            Some(front_end) => front_end.watch(epoll),
            None => Ok(()),
        }
    }

    fn control(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        if let Some(front_end) = &mut self.front_end {
            front_end
                .handle(epoll)
                .inspect_err(|_| self.known = self.departures.announce())?;
        }
        let count = self.departures.count.load(Ordering::Acquire);
        match std::mem::replace(&mut self.known, count) == count {
            true => Ok(()),
            false => Err(Disconnected::Closed),
        }
    }

    fn poll_guest(&mut self) -> bool {
        self.transmitter.poll()
    }

    fn take_full(&mut self) -> Result<bool, Disconnected> {
        Ok(self.transmitter.take_full())
    }

    fn poll_frames(&mut self) -> bool {
        self.receiver.poll()
    }

    fn sleep(&mut self, _: &Epoll, wait: AwaitedEvents) -> Option<Duration> {
        if wait.frames {
            self.receiver.rearm();
        }
        if wait.room {
            self.transmitter.rearm();
        }
        None
    }

    fn retry_accept(&mut self, epoll: &Epoll) -> Option<Duration> {
        self.front_end.as_mut()?.guest_listener.retry_accept(epoll)
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters {
            link_queue_faults: self.receiver.faults() + self.transmitter.faults(),
            ..LinkCounters::default()
        }
    }

    fn detach(&mut self, epoll: &Epoll) -> NextGuest {
        match &self.front_end {
            Some(front_end) => front_end.guest_listener.await_next(epoll),
            None => NextGuest::CanConnect,
        }
    }
}

impl Receive for Receiver {
    /// Receives frames from the virtqueue. `StopAt` is ignored, because a poll of memory needs no system call.
    fn receive(&mut self, max: usize, _: StopAt, sink: impl FnOnce(&[Frame<'_>])) -> ReceivedBurst {
        let burst = Self::receive(self, max, sink);
        ReceivedBurst {
            frames: burst.frames,
            malformed: burst.malformed,
            rest: match burst.more {
                true => Rest::More,
                false => Rest::Drained,
            },
        }
    }
}

/// Count of the guests that have disconnected, with an eventfd for each worker, so that each removes the guest's flows.
#[derive(Debug)]
struct GuestDepartures {
    count: AtomicU64,
    events: Vec<Arc<OwnedFd>>,
}

impl GuestDepartures {
    fn new(workers: usize) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let events = (0..workers).map(|_| Ok(Arc::new(eventfd(0, flags)?)));
        Ok(Self {
            count: AtomicU64::new(0),
            events: events.collect::<io::Result<_>>()?,
        })
    }

    /// Notifies all workers that a guest has disconnected. Returns the number of guests that have.
    fn announce(&self) -> u64 {
        let count = self.count.fetch_add(1, Ordering::Release) + 1;
        for event in &self.events {
            // The write fails only if the count of the eventfd would exceed 2^64 - 2.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
        count
    }
}

/// The front-end's connection, and the listener for the next front-end.
#[derive(Debug)]
struct FrontEnd {
    guest_listener: GuestListener,
    backend: Backend,
}

impl FrontEnd {
    fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        epoll.add(&self.backend, Edge::Control.token())?;
        self.guest_listener.watch(epoll)
    }

    /// Processes messages of the connected front-end, then accepts the connection of another one.
    fn handle(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        self.backend.handle().map_err(|ended| match ended.is_orderly() {
            true => Disconnected::Closed,
            false => {
                warn!("the vhost-user session failed: {ended}");
                Disconnected::Protocol("vhost-user, see the previous log message")
            }
        })?;
        self.guest_listener.accept(&mut self.backend, epoll);
        Ok(())
    }
}

impl GuestConnection for Backend {
    fn is_connected(&self) -> bool {
        self.is_connected()
    }

    fn peer_closed(&self) -> bool {
        self.peer_closed()
    }

    /// Starts a session on `socket`. Its events are reported by the back-end's descriptor, which is registered already.
    fn connect(&mut self, socket: OwnedFd, _: &Epoll) -> io::Result<()> {
        self.connect(socket)
    }
}

#[cfg(test)]
mod tests;
