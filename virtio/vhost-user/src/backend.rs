//! Sessions with a vhost-user front-end: execution of its messages, and replies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use tracing::{debug, warn};
use zerocopy::IntoBytes;

use crate::channel::{ChannelError, FrontEndChannel};
use crate::control_ring::{ControlRing, RingError};
use crate::data_plane::MAX_LOGGED;
use crate::features::{Features, MAX_PACKET, ProtocolFeatures};
use crate::guard;
use crate::log::DirtyLog;
use crate::mailbox::{self, Mailbox, RingResponse};
use crate::memory::{self, MAX_REGIONS, MemoryTable};
use crate::message::{FrontEndRequest, MalformedMessage, MessageHeader, RingFd};
use crate::receive::Receiver;
use crate::transmit::Transmitter;

/// Limit on the number of queue pairs, so that the numbers of all rings fit the eight bits that messages have for them.
pub const MAX_PAIRS: usize = 64;

/// Limit on the messages that one call of `handle` processes, so that the worker's other tasks are not delayed.
const BUDGET: usize = 64;

/// The control side of a vhost-user device (the back-end). It serves one front-end at a time, and any number of them
/// one after another.
///
/// No method blocks. [`handle`](Self::handle) must be called when the descriptor is readable.
#[derive(Debug)]
pub struct Backend {
    /// Rings in the order of virtio 1.2, section 5.1.2: receive queue and transmit queue of pair 0, receive queue of
    /// pair 1, and so on.
    rings: Vec<ControlRing>,
    /// Eventfd that the thread of a ring signals after it has executed a command.
    event: Arc<OwnedFd>,
    /// Epoll instance with the eventfd and the socket of the session.
    epoll: OwnedFd,
    /// MTU of the guest's interface in bytes, unless the front-end sets another.
    mtu: usize,
    session: Option<FrontEndSession>,
    /// True if the last session has ended, but its rings have not stopped yet.
    closing: bool,
}

/// Reason why a session with a front-end has ended.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SessionEnd(EndReason);

#[derive(Debug, thiserror::Error)]
enum EndReason {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Malformed(#[from] MalformedMessage),
    /// A message without the flag NEED_REPLY has failed; the session ends because the front-end would assume success.
    #[error("message {code} failed: {error}")]
    Failed { code: u32, error: RequestError },
}

/// Reason why a message of the front-end cannot be executed.
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
    #[error("cannot map the dirty log: {0}")]
    Log(io::Error),
    #[error("ring {ring}: {error}")]
    RingError { ring: u32, error: RingError },
    #[error("{0}")]
    Worker(String),
}

impl SessionEnd {
    /// Returns true if the front-end has closed the connection between two messages.
    #[must_use]
    pub fn is_orderly(&self) -> bool {
        matches!(self.0, EndReason::Channel(ChannelError::Closed))
    }
}

#[derive(Debug)]
struct FrontEndSession {
    channel: FrontEndChannel,
    features: Features,
    protocol: ProtocolFeatures,
    memory: Arc<MemoryTable>,
    log: Option<Arc<DirtyLog>>,
    mtu: usize,
    /// The message whose commands the threads of the rings are executing.
    pending: Option<PendingRequest>,
    /// Number of messages that have failed and for which the front-end has received an error reply.
    failures: u64,
}

#[derive(Debug)]
struct PendingRequest {
    header: MessageHeader,
    outcome: Result<RequestReply, RequestError>,
}

/// Reply to a message of the front-end.
#[derive(Clone, Copy, Debug)]
enum RequestReply {
    /// No reply or, if the front-end has requested one (NEED_REPLY), success.
    Done,
    Value(u64),
    /// Confirmation of SET_LOG_BASE. The specification defines no body for this reply; rust-vmm's front-end expects the
    /// body of its message.
    Log {
        size: u64,
        offset: u64,
    },
    /// The available index at which this ring has stopped (reply to GET_VRING_BASE).
    Base(u32),
}

impl Backend {
    /// Creates a device with `pairs` queue pairs (1 to [`MAX_PAIRS`]), and returns it with the receiver and transmitter
    /// of each pair. `mtu` is the MTU of the guest's interface unless the front-end sets another.
    ///
    /// The function installs a SIGBUS handler for the process, which calls the previous handler for faults outside of
    /// guest memory.
    ///
    /// # Errors
    /// Errors of eventfd(2), epoll_create1(2) and sigaction(2), for example EMFILE.
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

    /// Starts a session on `socket`, which must be non-blocking. A session that exists is ended before.
    ///
    /// # Errors
    /// The socket cannot be added to epoll.
    pub fn connect(&mut self, socket: OwnedFd) -> io::Result<()> {
        self.disconnect();
        watch(&self.epoll, &socket)?;
        self.session = Some(FrontEndSession {
            channel: FrontEndChannel::new(socket),
            features: Features::default(),
            protocol: ProtocolFeatures::default(),
            memory: Arc::default(),
            log: None,
            mtu: self.mtu,
            pending: None,
            failures: 0,
        });
        Ok(())
    }

    /// Ends the session: its rings are stopped, then its memory is unmapped.
    pub fn disconnect(&mut self) {
        if self.session.take().is_some() {
            self.closing = true;
            self.finish_closing();
        }
    }

    /// Returns true if a front-end is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// Returns true if the connected front-end has closed its end of the connection. Messages from it may still be
    /// unread.
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.channel.peer_closed())
    }

    /// Processes received messages. It stops at a message whose commands the threads of the rings have not executed
    /// yet.
    ///
    /// # Errors
    /// The session has ended, for the reason in the error. Another one may be started.
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
        // The socket is registered edge triggered, so epoll does not report messages that it contains already.
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
        let request = FrontEndRequest::parse(header.code, message.body, message.fds)?;
        debug!(?request, "vhost-user");
        let outcome = session.execute(rings, request);
        session.pending = Some(PendingRequest { header, outcome });
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
            if let Some(RingResponse::Failed(reason)) = ring.take_response() {
                refused = Some(RequestError::Worker(reason));
            }
        }
        let Some(session) = &mut self.session else {
            return Ok(Step::Done);
        };
        let Some(PendingRequest { header, outcome }) = session.pending.take() else {
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

/// Creates the two rings of a queue pair, receive queue first, with the receiver and transmitter that serve them and
/// signal `event`.
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
    /// Returns a descriptor that is readable, to be registered edge triggered, when [`handle`](Self::handle) should be
    /// called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl FrontEndSession {
    fn execute(
        &mut self,
        rings: &mut [ControlRing],
        request: FrontEndRequest,
    ) -> Result<RequestReply, RequestError> {
        let pairs = rings.len() / 2;
        match request {
            FrontEndRequest::GetFeatures => return Ok(RequestReply::Value(Features::offered(pairs).0)),
            FrontEndRequest::SetFeatures(bits) => self.set_features(rings, bits)?,
            FrontEndRequest::Owner | FrontEndRequest::SetLogFd => {}
            FrontEndRequest::SetMemTable(regions) => self.set_memory(rings, MemoryTable::new(regions)?),
            FrontEndRequest::AddMemReg(region, file) => {
                let table = self.memory.as_ref().clone().with(region, file)?;
                self.set_memory(rings, table);
            }
            FrontEndRequest::RemMemReg(region) => {
                self.set_memory(rings, self.memory.as_ref().clone().without(&region))
            }
            FrontEndRequest::GetMaxMemSlots => return Ok(RequestReply::Value(MAX_REGIONS as u64)),
            FrontEndRequest::SetLogBase { size, offset, file } => {
                let log = DirtyLog::new(size, offset, file).map_err(RequestError::Log)?;
                self.log = Some(Arc::new(log));
                self.update_log(rings);
                return Ok(RequestReply::Log { size, offset });
            }
            FrontEndRequest::SetVringNum { ring, size } => {
                self.ring(rings, ring, |ring, _| ring.set_size(size))?
            }
            FrontEndRequest::SetVringAddr(address) => self.ring(rings, address.ring, |ring, session| {
                ring.set_address(address, &session.memory)?;
                ring.set_log(session.features, session.log.as_ref());
                Ok(())
            })?,
            FrontEndRequest::SetVringBase { ring, base } => {
                self.ring(rings, ring, |ring, _| ring.set_base(base))?
            }
            FrontEndRequest::GetVringBase { ring: number } => {
                self.ring(rings, number, |ring, _| {
                    ring.stop();
                    Ok(())
                })?;
                return Ok(RequestReply::Base(number));
            }
            FrontEndRequest::SetVringKick(RingFd { ring, fd }) => {
                self.ring(rings, ring, |ring, session| {
                    ring.start(
                        fd,
                        &session.memory,
                        session.features,
                        session.log.as_ref(),
                        session.mtu,
                    )
                })?
            }
            FrontEndRequest::SetVringCall(RingFd { ring, fd }) => {
                self.ring(rings, ring, |ring, _| ring.set_call(fd))?
            }
            FrontEndRequest::SetVringErr(RingFd { ring, fd }) => {
                self.ring(rings, ring, |ring, _| ring.set_err(fd))?
            }
            FrontEndRequest::GetProtocolFeatures => {
                return Ok(RequestReply::Value(ProtocolFeatures::offered(pairs).0));
            }
            FrontEndRequest::SetProtocolFeatures(bits) => {
                let protocol = ProtocolFeatures(bits);
                if !ProtocolFeatures::offered(pairs).has(protocol) {
                    return Err(RequestError::Features(bits));
                }
                self.protocol = protocol;
            }
            FrontEndRequest::GetQueueNum => return Ok(RequestReply::Value(pairs as u64)),
            FrontEndRequest::SetVringEnable { ring, enable } => self.ring(rings, ring, |ring, _| {
                ring.enable(enable);
                Ok(())
            })?,
            FrontEndRequest::NetSetMtu(mtu) => {
                self.mtu = usize::try_from(mtu)
                    .ok()
                    .filter(|mtu| (MIN_MTU..=MAX_PACKET).contains(mtu))
                    .ok_or(RequestError::Mtu(mtu))?;
            }
        }
        Ok(RequestReply::Done)
    }

    /// Changes the configuration of one ring by `how`.
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

    /// Sets the features that the driver has accepted. Those of a running ring cannot change, except VHOST_F_LOG_ALL.
    fn set_features(&mut self, rings: &mut [ControlRing], bits: u64) -> Result<(), RequestError> {
        let features = Features(bits);
        if !Features::offered(rings.len() / 2).has(features) {
            return Err(RequestError::Features(bits));
        }
        self.features = features;
        for ring in rings.iter_mut() {
            // Specification: "If VHOST_USER_F_PROTOCOL_FEATURES has not been negotiated, the ring starts directly in
            // the enabled state."
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
        header: MessageHeader,
        outcome: Result<RequestReply, RequestError>,
        rings: &[ControlRing],
    ) -> Result<(), EndReason> {
        let code = header.code;
        let acknowledged = header.needs_reply() && self.protocol.has(ProtocolFeatures::REPLY_ACK);
        let value = match outcome {
            Ok(RequestReply::Value(value)) => value,
            Ok(RequestReply::Base(number)) => {
                let base = rings[number as usize].base().into();
                return Ok(self.channel.reply(code, [number, base].as_bytes())?);
            }
            Ok(RequestReply::Log { size, offset }) => {
                return Ok(self.channel.reply(code, [size, offset].as_bytes())?);
            }
            Ok(RequestReply::Done) if acknowledged => 0,
            Ok(RequestReply::Done) => return Ok(()),
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

/// Limit on the MTU in bytes: the smallest that an IPv4 link has (RFC 791).
const MIN_MTU: usize = 68;

fn watch(epoll: &OwnedFd, fd: &OwnedFd) -> Result<(), Errno> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), flags)
}
