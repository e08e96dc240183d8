//! The part of a ring that receiver and transmitter share: the active ring, its mailbox, and an epoll instance for
//! both.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pontoon_ring::device::{self, Device, DeviceQueue, State};
use pontoon_ring::{Layout, LayoutError, Notification};
use rustix::event::epoll;
use tracing::warn;

use crate::features::Features;
use crate::log::RingLog;
use crate::mailbox::{self, Mailbox, RingCommand, RingResponse};
use crate::memory::MemoryTable;

/// Configuration with which the thread of a ring starts it.
#[derive(Debug)]
pub(crate) struct RingConfig {
    pub(crate) memory: Arc<MemoryTable>,
    pub(crate) layout: Layout,
    pub(crate) features: Features,
    /// Number of available entries that the previous back-end has taken.
    pub(crate) base: u16,
    pub(crate) kick: OwnedFd,
    pub(crate) call: Option<OwnedFd>,
    pub(crate) err: Option<OwnedFd>,
    pub(crate) enabled: bool,
    pub(crate) log: Option<RingLog>,
    /// MTU of the guest's interface in bytes.
    pub(crate) mtu: usize,
}

/// The part of one ring that is used by the thread which serves it.
#[derive(Debug)]
pub(crate) struct DataPlane {
    mailbox: Arc<Mailbox>,
    /// Epoll instance with the mailbox's eventfd and the ring's kick eventfd, so that the worker registers one
    /// descriptor only.
    epoll: OwnedFd,
    ring: Option<ActiveRing>,
    /// Number of times that a ring has failed because of the driver.
    faults: u64,
}

/// A ring that was started and is being served.
#[derive(Debug)]
pub(crate) struct ActiveRing {
    pub(crate) device: Device,
    pub(crate) config: RingConfig,
    /// True if the ring has failed; it is not served until it is started again.
    failed: bool,
    /// True if all parts of the ring are in the current memory table.
    mapped: bool,
}

/// Reason why a ring cannot be served any longer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum RingFault {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Driver(#[from] device::VirtqueueError),
    #[error("guest memory was truncated")]
    Memory,
}

/// The result of [`DataPlane::execute_command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// A command was executed.
    Executed,
    /// No command was pending.
    NonePending,
}

/// Limit on the log lines about failures of a ring and about failed messages of a session, because the guest or its
/// front-end could cause any number.
pub(crate) const MAX_LOGGED: u64 = 20;

impl DataPlane {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, mailbox.event())?;
        Ok(Self {
            mailbox,
            epoll,
            ring: None,
            faults: 0,
        })
    }

    /// Executes a pending command.
    pub(crate) fn execute_command(&mut self) -> CommandOutcome {
        if !self.mailbox.has_command() {
            return CommandOutcome::NonePending;
        }
        let mailbox = self.mailbox.clone();
        mailbox.execute(|command| self.execute(command));
        CommandOutcome::Executed
    }

    /// Returns the ring if it can be served; it may be disabled.
    pub(crate) fn live(&mut self) -> Option<&mut ActiveRing> {
        let ring = self.ring.as_ref()?;
        if ring.lost_memory() {
            self.fail(RingFault::Memory);
        } else if let Some(error) = ring.device.broken() {
            self.fail(RingFault::Driver(error));
        }
        self.ring.as_mut().filter(|ring| !ring.failed && ring.mapped)
    }

    /// Makes the descriptor readable, so that the worker serves the ring again.
    pub(crate) fn wake(&self) {
        mailbox::signal(self.mailbox.event());
    }

    /// Marks the ring as failed, counts the failure and signals the front-end's error descriptor.
    pub(crate) fn fail(&mut self, fault: RingFault) {
        let Some(ring) = self.ring.as_mut().filter(|ring| !ring.failed) else {
            return;
        };
        ring.failed = true;
        self.faults += 1;
        if self.faults <= MAX_LOGGED {
            warn!("virtqueue failed: {fault}");
        }
        if let Some(err) = &ring.config.err {
            signal(err);
        }
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults
    }

    /// Returns the ring, also if it has failed.
    pub(crate) fn ring(&self) -> Option<&ActiveRing> {
        self.ring.as_ref()
    }

    fn execute(&mut self, command: RingCommand) -> RingResponse {
        match command {
            RingCommand::Start(config) => return self.start(*config),
            RingCommand::Stop => return RingResponse::Stopped(self.stop()),
            RingCommand::Memory(memory) => self.remap(memory),
            RingCommand::Call(call) => self.set(|ring| {
                ring.config.call = call;
                ring.call();
            }),
            RingCommand::Err(err) => self.set(|ring| ring.config.err = err),
            RingCommand::Enable(enabled) => self.set(|ring| ring.config.enabled = enabled),
            RingCommand::Log(log) => self.set(|ring| ring.config.log = log),
        }
        RingResponse::Done
    }

    fn set(&mut self, how: impl FnOnce(&mut ActiveRing)) {
        if let Some(ring) = &mut self.ring {
            how(ring);
        }
    }

    /// Replaces the memory table. A front-end may remove the region that contains a running ring and add it again
    /// (REM_MEM_REG, ADD_MEM_REG); the ring is not served in the meantime.
    fn remap(&mut self, memory: Arc<MemoryTable>) {
        self.set(|ring| {
            ring.config.memory = memory;
            ring.mapped = ring.open().is_ok();
        });
    }

    fn start(&mut self, config: RingConfig) -> RingResponse {
        self.stop();
        let ring = match ActiveRing::new(config) {
            Ok(ring) => ring,
            Err(fault) => return RingResponse::Failed(fault.to_string()),
        };
        if let Err(errno) = watch(&self.epoll, &ring.config.kick) {
            return RingResponse::Failed(format!("cannot watch the kick descriptor: {errno}"));
        }
        // A previous back-end that was killed may not have signalled chains that it had returned.
        if ring.device.state().used != 0 {
            ring.call();
        }
        self.ring = Some(ring);
        RingResponse::Done
    }

    fn stop(&mut self) -> Option<u16> {
        let mut ring = self.ring.take()?;
        let _ = epoll::delete(&self.epoll, &ring.config.kick);
        if let Ok((mut queue, notifier)) = ring.open() {
            notifier.publish(&mut queue);
        }
        Some(ring.device.state().available)
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

impl AsFd for DataPlane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Features, dirty log and call descriptor of a ring, which are needed while its queue is borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notifier<'r> {
    pub(crate) features: Features,
    pub(crate) log: Option<&'r RingLog>,
    call: Option<&'r OwnedFd>,
}

impl ActiveRing {
    fn new(config: RingConfig) -> Result<Self, RingFault> {
        // All chains are returned in the order in which they were taken. Therefore chains that a killed back-end has
        // taken and not returned follow those that it has returned, and are taken again. No other state is needed,
        // which is why INFLIGHT_SHMFD is not offered.
        let used = device::used_index(&&*config.memory, &config.layout)?;
        if config.base.wrapping_sub(used) > config.layout.size {
            return Err(RingFault::Layout(LayoutError::State {
                available: config.base,
                used,
                size: config.layout.size,
            }));
        }
        let state = State {
            available: used,
            used,
        };
        let mut ring = Self {
            device: Device::new(config.layout, config.features.ring(), state)?,
            config,
            failed: false,
            mapped: true,
        };
        // A layout outside of the guest's memory is refused now, not at the first frame.
        ring.open()?;
        if ring.lost_memory() {
            return Err(RingFault::Memory);
        }
        Ok(ring)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.config.enabled
    }

    /// Signals the driver even without its request. Used entries that were published without a call descriptor would
    /// otherwise not be signalled: with event indices a signal is due only once, when the index passes the driver's
    /// event.
    fn call(&self) {
        if let Some(call) = &self.config.call {
            signal(call);
        }
    }

    /// Looks up the parts of the ring in the guest's memory.
    pub(crate) fn open(&mut self) -> Result<(DeviceQueue<'_, &MemoryTable>, Notifier<'_>), LayoutError> {
        let RingConfig {
            memory,
            features,
            log,
            call,
            ..
        } = &self.config;
        let notifier = Notifier {
            features: *features,
            log: log.as_ref(),
            call: call.as_ref(),
        };
        Ok((self.device.attach(&**memory)?, notifier))
    }

    fn lost_memory(&self) -> bool {
        let log = self.config.log.as_ref();
        self.config.memory.has_faulted() || log.is_some_and(|log| log.log.has_faulted())
    }
}

impl Notifier<'_> {
    /// Publishes the returned chains, and signals the driver if it has requested that.
    pub(crate) fn publish(&self, queue: &mut DeviceQueue<'_, &MemoryTable>) {
        let notification = queue.publish();
        if let Some(log) = self.log {
            log.mark_used_ring();
        }
        if let Some(call) = self.call.filter(|_| notification == Notification::Required) {
            signal(call);
        }
    }

    /// Requests a kick for new chains, and returns the number of chains that can be taken.
    pub(crate) fn rearm(
        &self,
        queue: &mut DeviceQueue<'_, &MemoryTable>,
    ) -> Result<u16, device::VirtqueueError> {
        let waiting = queue.rearm();
        if let Some(log) = self.log {
            log.mark_used_ring();
        }
        waiting
    }
}

fn watch(epoll: &OwnedFd, fd: &OwnedFd) -> rustix::io::Result<()> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), flags)
}

/// Adds one to a non-blocking eventfd. The write fails only if the counter is at its maximum; then the eventfd is
/// readable already.
fn signal(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
