//! The vhost-user link: a virtual machine's own memory.
//!
//! `pontoon-vhost-user` is the device; this module connects it with the workers. Each worker has a pair of queues, and the
//! first one also serves the front-end's socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pontoon_engine::Frame;
use pontoon_vhost_user::{ActivateError, Backend, InProcessDevice, QueueConfig, Receiver, Transmitter};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tracing::{info, warn};
use vm_memory::GuestMemoryMmap;

use super::accept_backoff::AcceptBackoff;
use super::socket::Source;
use super::{Burst, Disconnected, For, Link, Receive, Rest, Until};
use crate::host::event::{Edge, Epoll};

/// One worker's part of the link.
#[derive(Debug)]
pub struct VhostUser {
    receiver: Receiver,
    transmitter: Transmitter,
    /// The listener and the connection of the front-end, which the first worker serves.
    guest_listener: Option<GuestListener>,
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
    let (backend, halves) = Backend::new(workers.into(), mtu.into())?;
    let departures = Arc::new(Departures::new(halves.len())?);
    let mut listener = Some(GuestListener::new(source, backend)?);
    let links = halves.into_iter().zip(&departures.bells);
    Ok(links
        .map(|(halves, bell)| VhostUser::new(halves, listener.take(), &departures, bell))
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
        guest_listener: Option<GuestListener>,
        departures: &Arc<Departures>,
        bell: &Arc<OwnedFd>,
    ) -> Self {
        Self {
            receiver,
            transmitter,
            guest_listener,
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
        match &self.guest_listener {
            Some(guest_listener) => guest_listener.watch(epoll),
            None => Ok(()),
        }
    }

    fn control(&mut self, _: &Epoll) -> Result<(), Disconnected> {
        if let Some(Err(how)) = self.guest_listener.as_mut().map(GuestListener::answer) {
            self.known = self.departures.announce();
            return Err(how);
        }
        let count = self.departures.count.load(Ordering::Acquire);
        match std::mem::replace(&mut self.known, count) == count {
            true => Ok(()),
            false => Err(Disconnected::Closed),
        }
    }

    fn has_guest(&mut self) -> bool {
        self.transmitter.poll()
    }

    fn take_full(&mut self) -> Result<bool, Disconnected> {
        Ok(self.transmitter.take_full())
    }

    fn has_frames(&mut self) -> bool {
        self.receiver.poll()
    }

    fn sleep(&mut self, epoll: &Epoll, wait: For) -> Option<Duration> {
        if wait.frames {
            self.receiver.rearm();
        }
        if wait.room {
            self.transmitter.rearm();
        }
        let guest_listener = self.guest_listener.as_mut()?;
        guest_listener
            .accept_backoff
            .sleep(guest_listener.listener.as_ref(), epoll)
    }

    fn queue_faults(&self) -> u64 {
        self.receiver.faults() + self.transmitter.faults()
    }

    fn detach(&mut self, epoll: &Epoll) -> bool {
        self.guest_listener
            .as_ref()
            .is_none_or(|listener| listener.await_next(epoll))
    }
}

impl Receive for Receiver {
    /// The next frame is in memory: looking for it costs nothing.
    fn receive(&mut self, max: usize, _: Until, sink: impl FnOnce(&[Frame<'_>])) -> Burst {
        let burst = Self::receive(self, max, sink);
        Burst {
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

/// Accepts the connections of front-ends, one at a time.
#[derive(Debug)]
struct GuestListener {
    backend: Backend,
    listener: Option<OwnedFd>,
    accept_backoff: AcceptBackoff,
    one_off: bool,
}

impl GuestListener {
    fn new(source: Source, mut backend: Backend) -> io::Result<Self> {
        Ok(match source {
            Source::Connected(socket) => {
                rustix::io::ioctl_fionbio(&socket, true)?;
                backend.connect(socket)?;
                Self {
                    backend,
                    listener: None,
                    accept_backoff: AcceptBackoff::default(),
                    one_off: true,
                }
            }
            Source::Listening { listener, one_off } => {
                rustix::io::ioctl_fionbio(&listener, true)?;
                Self {
                    backend,
                    listener: Some(listener),
                    accept_backoff: AcceptBackoff::default(),
                    one_off,
                }
            }
        })
    }

    fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        epoll.add(&self.backend, Edge::Control.token())?;
        if let Some(listener) = &self.listener {
            epoll.add(listener, Edge::Control.token())?;
        }
        Ok(())
    }

    /// Processes messages of the front-end, then accepts a connection; further ones are closed while a guest is attached.
    fn answer(&mut self) -> Result<(), Disconnected> {
        self.backend.handle().map_err(|ended| match ended.is_orderly() {
            true => Disconnected::Closed,
            false => {
                warn!("the vhost-user session failed: {ended}");
                Disconnected::Protocol("vhost-user, see the message before")
            }
        })?;
        self.admit();
        Ok(())
    }

    fn admit(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        if self.backend.peer_closed() {
            // Leave the next guest in the backlog; `await_next` registers the listener again when this one is detached.
            return;
        }
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return self.accept_backoff.end(),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return self.accept_backoff.begin(error),
            };
            if self.backend.is_connected() {
                info!("refused the connection of a second guest");
                continue;
            }
            match self.backend.connect(socket) {
                Ok(()) => info!("the guest has connected"),
                Err(error) => warn!("cannot set up a guest's connection: {error}"),
            }
        }
    }

    /// Registers the listener again. Returns true if another guest can connect; `Edge::Control` then also reports one
    /// that is in the backlog already.
    fn await_next(&self, epoll: &Epoll) -> bool {
        match &self.listener {
            Some(listener) if !self.one_off => epoll.rename(listener.as_fd(), Edge::Control.token()).is_ok(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
