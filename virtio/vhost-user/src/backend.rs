//! A session with a front-end: handling of its messages and replies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use tracing::{debug, warn};
use zerocopy::IntoBytes;

use crate::channel::{Channel, ChannelError};
use crate::control_ring::{ControlRing, RingError};
use crate::data_plane::MAX_LOGGED;
use crate::features::{Features, MAX_PACKET, Protocol};
use crate::guard;
use crate::log::DirtyLog;
use crate::mailbox::{self, Mailbox, Response};
use crate::memory::{self, MAX_REGIONS, MemoryTable};
use crate::message::{Header, Malformed, Request, RingFd};
use crate::receive::Receiver;
use crate::transmit::Transmitter;

/// Maximum number of queue pairs. The numbers of their rings fit the eight bits that a message has for them.
pub const MAX_PAIRS: usize = 64;

/// Messages handled per call, so that other work is not delayed.
const BUDGET: usize = 64;

/// The control side of the device. It serves one front-end at a time, any number of them one after another.
///
/// No method blocks. Call [`handle`](Self::handle) when the descriptor is readable.
#[derive(Debug)]
pub struct Backend {
    /// The receive queue of pair 0, the transmit queue of pair 0 (5.1.2), the receive queue of pair 1, and so on.
    rings: Vec<ControlRing>,
    /// An eventfd that a ring's thread signals after it has executed a command.
    event: Arc<OwnedFd>,
    /// Watches the eventfd and the session's socket.
    epoll: OwnedFd,
    /// The MTU of the guest's interface, unless the front-end sets one.
    mtu: usize,
    session: Option<Session>,
    /// The last session has ended, but its rings have not stopped yet.
    closing: bool,
}

/// The reason why a session ended.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SessionEnd(EndReason);

#[derive(Debug, thiserror::Error)]
enum EndReason {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A failed message without NEED_REPLY ends the session, because the front-end would take it for done.
    #[error("message {code} failed: {error}")]
    Failed { code: u32, error: RequestError },
}

/// The reason why a message cannot be executed.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("features {0:#x} were not offered")]
    Features(u64),
    #[error("invalid ring {0}")]
    Ring(u32),
    #[error("invalid MTU {0}")]
    Mtu(u64),
    #[error(transparent)]
    Memory(#[from] memory::MemoryError),
    #[error("the log: {0}")]
    Log(io::Error),
    #[error("ring {ring}: {error}")]
    RingError { ring: u32, error: RingError },
    #[error("{0}")]
    Worker(String),
}

impl SessionEnd {
    /// Returns whether the front-end closed the connection between two messages.
    #[must_use]
    pub fn is_orderly(&self) -> bool {
        matches!(self.0, EndReason::Channel(ChannelError::Closed))
    }
}

#[derive(Debug)]
struct Session {
    channel: Channel,
    features: Features,
    protocol: Protocol,
    memory: Arc<MemoryTable>,
    log: Option<Arc<DirtyLog>>,
    mtu: usize,
    /// The message whose commands are being executed by the rings' threads.
    pending: Option<Pending>,
    /// Number of messages that failed with a reply.
    failures: u64,
}

#[derive(Debug)]
struct Pending {
    header: Header,
    outcome: Result<Reply, RequestError>,
}

/// The reply to a message.
#[derive(Clone, Copy, Debug)]
enum Reply {
    /// No reply, or success if the front-end asked for one.
    Done,
    Value(u64),
    /// The log is in use. The specification defines no body for this reply; rust-vmm's front-end expects its own body
    /// back.
    Log {
        size: u64,
        offset: u64,
    },
    /// The available index at which this ring stopped.
    Base(u32),
}

impl Backend {
    /// Creates a device with `pairs` queue pairs (1 to [`MAX_PAIRS`]) and returns it with the receiver and transmitter
    /// of each pair. `mtu` is the MTU of the guest's interface unless the front-end sets one.
    ///
    /// Installs a SIGBUS handler for the process. The previous handler is called for faults outside of guest memory.
    ///
    /// # Errors
    /// Out of descriptors.
    ///
    /// # Panics
    /// `pairs` is out of range.
    pub fn new(pairs: usize, mtu: usize) -> io::Result<(Self, Vec<(Receiver, Transmitter)>)> {
        assert!((1..=MAX_PAIRS).contains(&pairs), "{pairs} pairs of queues");
        guard::install()?;
        let event = Arc::new(mailbox::new_event()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, &event)?;
        let mut rings = Vec::new();
        let mut halves = Vec::new();
        for _ in 0..pairs {
            let (pair, both) = pair(&event, mtu)?;
            rings.extend(pair);
            halves.push(both);
        }
        let backend = Self {
            rings,
            event,
            epoll,
            mtu,
            session: None,
            closing: false,
        };
        Ok((backend, halves))
    }

    /// Starts a session on `socket`, which must be non-blocking, and ends the current one.
    ///
    /// # Errors
    /// The socket cannot be added to epoll.
    pub fn connect(&mut self, socket: OwnedFd) -> io::Result<()> {
        self.disconnect();
        watch(&self.epoll, &socket)?;
        self.session = Some(Session {
            channel: Channel::new(socket),
            features: Features::default(),
            protocol: Protocol::default(),
            memory: Arc::default(),
            log: None,
            mtu: self.mtu,
            pending: None,
            failures: 0,
        });
        Ok(())
    }

    /// Ends the session: its rings are stopped, and then its memory is unmapped.
    pub fn disconnect(&mut self) {
        if self.session.take().is_some() {
            self.closing = true;
            self.finish_closing();
        }
    }

    /// Returns whether a front-end is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// Returns whether the connected front-end has closed its end. Messages from it may still be unhandled.
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.channel.peer_closed())
    }

    /// Handles received messages. Stops at a message whose commands the rings' threads have not executed yet.
    ///
    /// # Errors
    /// The session has ended. Another one may be started.
    pub fn handle(&mut self) -> Result<(), SessionEnd> {
        let handled = self.handle_some();
        if handled.is_err() {
            self.disconnect();
        }
        handled.map_err(SessionEnd)
    }

    fn handle_some(&mut self) -> Result<(), EndReason> {
        for _ in 0..BUDGET {
            let completed = self.complete_pending()?;
            if completed == Step::Wait {
                return Ok(());
            }
            let handled = self.handle_one()?;
            if handled == Step::Wait {
                return Ok(());
            }
        }
        // The socket is watched edge-triggered, so it does not report again what it already holds.
        mailbox::signal(&self.event);
        Ok(())
    }

    /// Handles the next message, if there is one.
    fn handle_one(&mut self) -> Result<Step, EndReason> {
        let Self { session, rings, .. } = self;
        let Some(session) = session else {
            return Ok(Step::Wait);
        };
        let Some(message) = session.channel.receive()? else {
            return Ok(Step::Wait);
        };
        let header = message.header;
        let request = Request::parse(header.code, message.body, message.fds)?;
        debug!(?request, "vhost-user");
        let outcome = session.execute(rings, request);
        session.pending = Some(Pending { header, outcome });
        Ok(Step::Done)
    }

    /// Collects the responses to the current message's commands and replies to the front-end, if
    /// all rings have responded.
    fn complete_pending(&mut self) -> Result<Step, EndReason> {
        let closing = self.finish_closing();
        if closing == Step::Wait || self.rings.iter().any(ControlRing::is_busy) {
            return Ok(Step::Wait);
        }
        let mut refused = None;
        for ring in &mut self.rings {
            if let Some(Response::Failed(reason)) = ring.take_response() {
                refused = Some(RequestError::Worker(reason));
            }
        }
        let Some(session) = &mut self.session else {
            return Ok(Step::Done);
        };
        let Some(Pending { header, outcome }) = session.pending.take() else {
            return Ok(Step::Done);
        };
        let outcome = refused.map_or(outcome, Err);
        session.reply(header, outcome, &self.rings)?;
        Ok(Step::Done)
    }

    /// Stops the rings of an ended session, once they have executed its last commands.
    fn finish_closing(&mut self) -> Step {
        while self.closing {
            if self.rings.iter().any(ControlRing::is_busy) {
                return Step::Wait;
            }
            for ring in &mut self.rings {
                ring.take_response();
            }
            self.closing = self.rings.iter().any(ControlRing::is_running);
            for ring in &mut self.rings {
                if self.closing {
                    ring.stop();
                } else {
                    ring.clear();
                }
            }
        }
        Step::Done
    }
}

/// The result of one step of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The next step can follow.
    Done,
    /// A ring's response, or a message, has to arrive first.
    Wait,
}

/// Creates the two rings of a queue pair, the receive queue first, and the receiver and transmitter that work on them
/// and signal `event`.
pub(crate) fn pair(
    event: &Arc<OwnedFd>,
    mtu: usize,
) -> io::Result<([ControlRing; 2], (Receiver, Transmitter))> {
    let mailboxes = [Mailbox::new(event.clone())?, Mailbox::new(event.clone())?].map(Arc::new);
    let rings = mailboxes.clone().map(ControlRing::new);
    let [to_guest, from_guest] = mailboxes;
    Ok((
        rings,
        (Receiver::new(from_guest)?, Transmitter::new(to_guest, mtu)?),
    ))
}

impl AsFd for Backend {
    /// Readable, edge-triggered, when [`handle`](Self::handle) should be called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Session {
    fn execute(&mut self, rings: &mut [ControlRing], request: Request) -> Result<Reply, RequestError> {
        let pairs = rings.len() / 2;
        match request {
            Request::GetFeatures => return Ok(Reply::Value(Features::offered(pairs).0)),
            Request::SetFeatures(bits) => self.set_features(rings, bits)?,
            Request::Owner | Request::SetLogFd => {}
            Request::SetMemTable(regions) => self.set_memory(rings, MemoryTable::new(regions)?),
            Request::AddMemReg(region, file) => {
                let table = self.memory.as_ref().clone().with(region, file)?;
                self.set_memory(rings, table);
            }
            Request::RemMemReg(region) => {
                self.set_memory(rings, self.memory.as_ref().clone().without(&region))
            }
            Request::GetMaxMemSlots => return Ok(Reply::Value(MAX_REGIONS as u64)),
            Request::SetLogBase { size, offset, file } => {
                let log = DirtyLog::new(size, offset, file).map_err(RequestError::Log)?;
                self.log = Some(Arc::new(log));
                self.update_log(rings);
                return Ok(Reply::Log { size, offset });
            }
            Request::SetVringNum { ring, size } => self.ring(rings, ring, |ring, _| ring.set_size(size))?,
            Request::SetVringAddr(address) => self.ring(rings, address.ring, |ring, session| {
                ring.set_address(address, &session.memory)?;
                ring.set_log(session.features, session.log.as_ref());
                Ok(())
            })?,
            Request::SetVringBase { ring, base } => self.ring(rings, ring, |ring, _| ring.set_base(base))?,
            Request::GetVringBase { ring: number } => {
                self.ring(rings, number, |ring, _| {
                    ring.stop();
                    Ok(())
                })?;
                return Ok(Reply::Base(number));
            }
            Request::SetVringKick(RingFd { ring, fd }) => self.ring(rings, ring, |ring, session| {
                ring.start(
                    fd,
                    &session.memory,
                    session.features,
                    session.log.as_ref(),
                    session.mtu,
                )
            })?,
            Request::SetVringCall(RingFd { ring, fd }) => {
                self.ring(rings, ring, |ring, _| ring.set_call(fd))?
            }
            Request::SetVringErr(RingFd { ring, fd }) => {
                self.ring(rings, ring, |ring, _| ring.set_err(fd))?
            }
            Request::GetProtocolFeatures => return Ok(Reply::Value(Protocol::offered(pairs).0)),
            Request::SetProtocolFeatures(bits) => {
                let protocol = Protocol(bits);
                if !Protocol::offered(pairs).has(protocol) {
                    return Err(RequestError::Features(bits));
                }
                self.protocol = protocol;
            }
            Request::GetQueueNum => return Ok(Reply::Value(pairs as u64)),
            Request::SetVringEnable { ring, enable } => self.ring(rings, ring, |ring, _| {
                ring.enable(enable);
                Ok(())
            })?,
            Request::NetSetMtu(mtu) => {
                self.mtu = usize::try_from(mtu)
                    .ok()
                    .filter(|mtu| (MIN_MTU..=MAX_PACKET).contains(mtu))
                    .ok_or(RequestError::Mtu(mtu))?;
            }
        }
        Ok(Reply::Done)
    }

    /// Changes one ring.
    fn ring(
        &self,
        rings: &mut [ControlRing],
        number: u32,
        how: impl FnOnce(&mut ControlRing, &Self) -> Result<(), RingError>,
    ) -> Result<(), RequestError> {
        let ring = usize::try_from(number).ok().and_then(|at| rings.get_mut(at));
        let ring = ring.ok_or(RequestError::Ring(number))?;
        how(ring, self).map_err(|error| RequestError::RingError { ring: number, error })
    }

    /// Features of a running ring do not change, except VHOST_F_LOG_ALL.
    fn set_features(&mut self, rings: &mut [ControlRing], bits: u64) -> Result<(), RequestError> {
        let features = Features(bits);
        if !Features::offered(rings.len() / 2).has(features) {
            return Err(RequestError::Features(bits));
        }
        self.features = features;
        for ring in rings.iter_mut() {
            // "If VHOST_USER_F_PROTOCOL_FEATURES has not been negotiated, the ring starts directly in the enabled state."
            ring.enable_by_default(!features.has(Features::PROTOCOL));
        }
        self.update_log(rings);
        Ok(())
    }

    fn set_memory(&mut self, rings: &mut [ControlRing], table: MemoryTable) {
        self.memory = Arc::new(table);
        for ring in rings {
            ring.set_memory(&self.memory);
        }
    }

    fn update_log(&self, rings: &mut [ControlRing]) {
        for ring in rings {
            ring.set_log(self.features, self.log.as_ref());
        }
    }

    fn reply(
        &mut self,
        header: Header,
        outcome: Result<Reply, RequestError>,
        rings: &[ControlRing],
    ) -> Result<(), EndReason> {
        let code = header.code;
        let acknowledged = header.needs_reply() && self.protocol.has(Protocol::REPLY_ACK);
        let value = match outcome {
            Ok(Reply::Value(value)) => value,
            Ok(Reply::Base(number)) => {
                let base = rings[number as usize].base().into();
                return Ok(self.channel.reply(code, [number, base].as_bytes())?);
            }
            Ok(Reply::Log { size, offset }) => {
                return Ok(self.channel.reply(code, [size, offset].as_bytes())?);
            }
            Ok(Reply::Done) if acknowledged => 0,
            Ok(Reply::Done) => return Ok(()),
            Err(error) if acknowledged => {
                self.failures += 1;
                if self.failures <= MAX_LOGGED {
                    warn!("vhost-user message {code} failed: {error}");
                }
                1
            }
            Err(error) => return Err(EndReason::Failed { code, error }),
        };
        Ok(self.channel.reply(code, value.as_bytes())?)
    }
}

/// Bytes of the smallest packet that every IPv4 link carries (RFC 791).
const MIN_MTU: usize = 68;

fn watch(epoll: &OwnedFd, fd: &OwnedFd) -> Result<(), Errno> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), flags)
}
