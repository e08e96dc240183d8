//! The vhost-user link: a virtual machine's own memory.
//!
//! `pontoon-vhost-user` is the device; this module connects it with the workers. Each worker has a pair of queues, and the
//! first one also serves the front-end's socket.

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
use super::{Disconnected, For, Link, LinkCounters, NextGuest, Receive, ReceivedBurst, Rest, StopAt};

mod attach;

pub use attach::FrontEndSocket;

/// One worker's part of the link.
#[derive(Debug)]
pub struct VhostUser {
    receiver: Receiver,
    transmitter: Transmitter,
    /// The listener and the connection of the front-end, which the first worker serves.
    front_end: Option<FrontEnd>,
    departures: Arc<Departures>,
    /// Departures that this worker has processed.
    known: u64,
    /// An eventfd that is written for each departure.
    bell: Arc<OwnedFd>,
}

/// A link for each of `workers` workers to guests from `source`, whose interface has this MTU unless the front-end
/// sets another.
///
/// # Errors
/// Out of descriptors, or one cannot be made non-blocking.
pub fn open(source: Source, workers: u8, mtu: u16) -> io::Result<Vec<VhostUser>> {
    let (mut backend, halves) = Backend::new(workers.into(), mtu.into())?;
    let departures = Arc::new(Departures::new(halves.len())?);
    let (guest_listener, guest) = GuestListener::new(source)?;
    if let Some(socket) = guest {
        backend.connect(socket)?;
    }
    let mut front_end = Some(FrontEnd {
        guest_listener,
        backend,
    });
    let links = halves.into_iter().zip(&departures.bells);
    Ok(links
        .map(|(halves, bell)| VhostUser::new(halves, front_end.take(), &departures, bell))
        .collect())
}

/// A link to the guest of a VMM in this process, whose interface has this MTU, and what the VMM controls it by.
///
/// # Errors
/// Out of descriptors.
pub fn in_process(mtu: u16) -> io::Result<(Control, VhostUser)> {
    let (device, receiver, transmitter) = InProcessDevice::new(mtu.into())?;
    let departures = Arc::new(Departures::new(1)?);
    let link = VhostUser::new((receiver, transmitter), None, &departures, &departures.bells[0]);
    Ok((Control { device, departures }, link))
}

/// The control side of a device whose VMM is in this process.
#[derive(Debug)]
pub struct Control {
    device: InProcessDevice,
    departures: Arc<Departures>,
}

impl Control {
    /// See [`InProcessDevice::features`].
    #[must_use]
    pub fn features(&self) -> u64 {
        self.device.features()
    }

    /// See [`InProcessDevice::activate`].
    ///
    /// # Errors
    /// As there.
    pub fn activate(
        &mut self,
        memory: &GuestMemoryMmap,
        features: u64,
        queues: [QueueConfig; 2],
    ) -> Result<(), ActivateError> {
        self.device.activate(memory, features, queues)
    }

    /// See [`InProcessDevice::reset`]. The guest's flows end.
    pub fn reset(&mut self) {
        self.device.reset();
        self.departures.announce();
    }
}

impl VhostUser {
    fn new(
        (receiver, transmitter): (Receiver, Transmitter),
        front_end: Option<FrontEnd>,
        departures: &Arc<Departures>,
        bell: &Arc<OwnedFd>,
    ) -> Self {
        Self {
            receiver,
            transmitter,
            front_end,
            departures: departures.clone(),
            known: 0,
            bell: bell.clone(),
        }
    }
}

impl Link for VhostUser {
    type Receiver<'a> = &'a mut Receiver;
    type Transmitter<'a> = &'a mut Transmitter;

    fn halves(&mut self) -> (&mut Receiver, &mut Transmitter) {
        (&mut self.receiver, &mut self.transmitter)
    }

    fn watch(&mut self, epoll: &Epoll) -> io::Result<()> {
        epoll.add(&self.receiver, Edge::Link.token())?;
        epoll.add(&self.transmitter, Edge::Room.token())?;
        epoll.add(&*self.bell, Edge::Control.token())?;
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

    fn sleep(&mut self, epoll: &Epoll, wait: For) -> Option<Duration> {
        if wait.frames {
            self.receiver.rearm();
        }
        if wait.room {
            self.transmitter.rearm();
        }
        self.front_end.as_mut()?.guest_listener.sleep(epoll)
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
    /// The next frame is in memory: looking for it costs nothing.
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

/// Guests that have disconnected: each worker removes their flows.
#[derive(Debug)]
struct Departures {
    count: AtomicU64,
    bells: Vec<Arc<OwnedFd>>,
}

impl Departures {
    fn new(workers: usize) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bells = (0..workers).map(|_| Ok(Arc::new(eventfd(0, flags)?)));
        Ok(Self {
            count: AtomicU64::new(0),
            bells: bells.collect::<io::Result<_>>()?,
        })
    }

    /// Notifies all workers of one more. Returns the count.
    fn announce(&self) -> u64 {
        let count = self.count.fetch_add(1, Ordering::Release) + 1;
        for bell in &self.bells {
            // It fails only if the count of the eventfd would exceed 2^64 - 2.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
        count
    }
}

/// The front-end's connection, and the listener for the next one.
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

    /// Processes messages of the front-end, then accepts a connection.
    fn handle(&mut self, epoll: &Epoll) -> Result<(), Disconnected> {
        self.backend.handle().map_err(|ended| match ended.is_orderly() {
            true => Disconnected::Closed,
            false => {
                warn!("the vhost-user session failed: {ended}");
                Disconnected::Protocol("vhost-user, see the message before")
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

    /// The descriptor of the back-end, which is registered already, reports the socket's events.
    fn connect(&mut self, socket: OwnedFd, _: &Epoll) -> io::Result<()> {
        self.connect(socket)
    }
}

#[cfg(test)]
mod tests;
