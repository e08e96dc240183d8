//! What both halves of the link have: a ring, a mailbox, and one descriptor that tells of either.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pontoon_ring::device::{self, Device, Queue, State};
use pontoon_ring::{Layout, LayoutError};
use rustix::event::epoll;
use tracing::warn;

use crate::features::Features;
use crate::log::RingLog;
use crate::mailbox::{self, Answer, Mailbox, Order};
use crate::memory::Table;

/// What a ring starts with.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) memory: Arc<Table>,
    pub(crate) layout: Layout,
    pub(crate) features: Features,
    /// Available entries taken by whoever served it before.
    pub(crate) base: u16,
    pub(crate) kick: OwnedFd,
    pub(crate) call: Option<OwnedFd>,
    pub(crate) err: Option<OwnedFd>,
    pub(crate) enabled: bool,
    pub(crate) log: Option<RingLog>,
    /// The guest interface's MTU.
    pub(crate) mtu: usize,
}

/// One of the link's halves, as far as they are alike.
#[derive(Debug)]
pub(crate) struct Half {
    mailbox: Arc<Mailbox>,
    /// Holds the mailbox's bell and the ring's kick, so that who waits needs to know of one descriptor.
    epoll: OwnedFd,
    ring: Option<Ring>,
    /// Rings that had to be given up.
    faults: u64,
}

/// A ring that is being served.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) device: Device,
    pub(crate) setup: Setup,
    /// Something went wrong that only a new start can mend.
    faulty: bool,
    /// All of it lies in the guest's memory as that is now.
    mapped: bool,
}

/// A ring cannot be served any further.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Driver(#[from] device::Error),
    #[error("the guest's memory has been cut off")]
    Memory,
}

/// Faults of a half, or refusals of a session, that are told: there may be as many as the guest or its front-end likes.
pub(crate) const MOST_SAID: u64 = 20;

impl Half {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, mailbox.bell())?;
        Ok(Self {
            mailbox,
            epoll,
            ring: None,
            faults: 0,
        })
    }

    /// Obeys an order, if there is one. Says whether it did.
    pub(crate) fn obey(&mut self) -> bool {
        if !self.mailbox.is_waiting() {
            return false;
        }
        let mailbox = self.mailbox.clone();
        mailbox.obey(|order| self.change(order));
        true
    }

    /// The ring, where there is one that can be served. It may be disabled.
    pub(crate) fn live(&mut self) -> Option<&mut Ring> {
        let ring = self.ring.as_ref()?;
        if ring.is_cut_off() {
            self.fail(Fault::Memory);
        } else if let Some(error) = ring.device.broken() {
            self.fail(Fault::Driver(error));
        }
        self.ring.as_mut().filter(|ring| !ring.faulty && ring.mapped)
    }

    /// Makes the descriptor readable once more.
    pub(crate) fn ring_bell(&self) {
        mailbox::ring(self.mailbox.bell());
    }

    /// Gives the ring up.
    pub(crate) fn fail(&mut self, fault: Fault) {
        let Some(ring) = self.ring.as_mut().filter(|ring| !ring.faulty) else {
            return;
        };
        ring.faulty = true;
        self.faults += 1;
        if self.faults <= MOST_SAID {
            warn!("a queue is given up: {fault}");
        }
        if let Some(err) = &ring.setup.err {
            signal(err);
        }
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults
    }

    /// The ring, for whatever it is in.
    pub(crate) fn ring(&self) -> Option<&Ring> {
        self.ring.as_ref()
    }

    fn change(&mut self, order: Order) -> Answer {
        match order {
            Order::Start(setup) => return self.start(*setup),
            Order::Stop => return Answer::Stopped(self.stop()),
            Order::Memory(memory) => self.remap(memory),
            Order::Call(call) => self.set(|ring| {
                ring.setup.call = call;
                ring.call();
            }),
            Order::Err(err) => self.set(|ring| ring.setup.err = err),
            Order::Enable(enabled) => self.set(|ring| ring.setup.enabled = enabled),
            Order::Log(log) => self.set(|ring| ring.setup.log = log),
        }
        Answer::Done
    }

    fn set(&mut self, how: impl FnOnce(&mut Ring)) {
        if let Some(ring) = &mut self.ring {
            how(ring);
        }
    }

    /// A front-end may take the region away that a running ring lies in, and give it back (REM_MEM_REG, ADD_MEM_REG):
    /// meanwhile the ring is left alone.
    fn remap(&mut self, memory: Arc<Table>) {
        self.set(|ring| {
            ring.setup.memory = memory;
            ring.mapped = ring.open().is_ok();
        });
    }

    fn start(&mut self, setup: Setup) -> Answer {
        self.stop();
        let ring = match Ring::new(setup) {
            Ok(ring) => ring,
            Err(fault) => return Answer::Refused(fault.to_string()),
        };
        if let Err(errno) = watch(&self.epoll, &ring.setup.kick) {
            return Answer::Refused(format!("its kick cannot be waited for: {errno}"));
        }
        // What a predecessor returned, it may not have lived to tell of.
        if ring.device.state().used != 0 {
            ring.call();
        }
        self.ring = Some(ring);
        Answer::Done
    }

    fn stop(&mut self) -> Option<u16> {
        let mut ring = self.ring.take()?;
        let _ = epoll::delete(&self.epoll, &ring.setup.kick);
        if let Ok((mut queue, door)) = ring.open() {
            door.publish(&mut queue);
        }
        Some(ring.device.state().available)
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

impl AsFd for Half {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// What stands around a queue while it is worked on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Door<'r> {
    pub(crate) features: Features,
    pub(crate) log: Option<&'r RingLog>,
    call: Option<&'r OwnedFd>,
}

impl Ring {
    fn new(setup: Setup) -> Result<Self, Fault> {
        // All is returned in the order it was taken, so that what a predecessor took and did not return (it was killed)
        // begins right behind what it returned: that is taken again. Nothing else has to be remembered for it, which is
        // why INFLIGHT_SHMFD is not offered.
        let used = device::used_index(&&*setup.memory, &setup.layout)?;
        if setup.base.wrapping_sub(used) > setup.layout.size {
            return Err(Fault::Layout(LayoutError::State {
                available: setup.base,
                used,
                size: setup.layout.size,
            }));
        }
        let state = State {
            available: used,
            used,
        };
        let mut ring = Self {
            device: Device::new(setup.layout, setup.features.ring(), state)?,
            setup,
            faulty: false,
            mapped: true,
        };
        // A layout that is not in memory is refused now rather than at the first frame.
        ring.open()?;
        if ring.is_cut_off() {
            return Err(Fault::Memory);
        }
        Ok(ring)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.setup.enabled
    }

    /// Wakes the driver, whether or not there is something to see. What was shown while there was nobody to signal is not
    /// told of later: with event indices the one signal is due when the index passes where the driver sleeps.
    fn call(&self) {
        if let Some(call) = &self.setup.call {
            signal(call);
        }
    }

    /// Finds the queue in memory.
    pub(crate) fn open(&mut self) -> Result<(Queue<'_, &Table>, Door<'_>), LayoutError> {
        let Setup {
            memory,
            features,
            log,
            call,
            ..
        } = &self.setup;
        let door = Door {
            features: *features,
            log: log.as_ref(),
            call: call.as_ref(),
        };
        Ok((self.device.attach(&**memory)?, door))
    }

    fn is_cut_off(&self) -> bool {
        let log = self.setup.log.as_ref();
        self.setup.memory.is_broken() || log.is_some_and(|log| log.log.is_broken())
    }
}

impl Door<'_> {
    /// Shows the driver what was returned, and wakes it if it wants to be woken.
    pub(crate) fn publish(&self, queue: &mut Queue<'_, &Table>) {
        let wake = queue.publish();
        if let Some(log) = self.log {
            log.wrote_used();
        }
        if let Some(call) = self.call.filter(|_| wake) {
            signal(call);
        }
    }

    /// Asks to be kicked, then looks how much there is to take.
    pub(crate) fn rearm(&self, queue: &mut Queue<'_, &Table>) -> Result<u16, device::Error> {
        let waiting = queue.rearm();
        if let Some(log) = self.log {
            log.wrote_used();
        }
        waiting
    }
}

fn watch(epoll: &OwnedFd, fd: &OwnedFd) -> rustix::io::Result<()> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), flags)
}

/// Adds one to an eventfd, which does not block. One that is full has been signalled.
fn signal(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
