//! A session with a front-end: what its messages change, and what it is answered.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use tracing::{debug, warn};
use zerocopy::IntoBytes;

use crate::channel::{Broken, Channel};
use crate::features::{Features, MAX_PACKET, Protocol};
use crate::guard;
use crate::half::MOST_SAID;
use crate::log::Log;
use crate::mailbox::{self, Answer, Mailbox};
use crate::memory::{self, MAX_REGIONS, Table};
use crate::message::{Header, Malformed, Request, RingFd};
use crate::receive::Receiver;
use crate::ring::{Ring, Unusable};
use crate::transmit::Transmitter;

/// Queue pairs at most: more than `Protocol::MQ` has ever been asked for, and their rings fit a message's eight bits.
pub const MAX_PAIRS: usize = 64;

/// Messages handled before others have their turn.
const BUDGET: usize = 64;

/// The control side of the device. It serves one front-end at a time, and as many after one another as come.
///
/// Nothing here waits: [`handle`](Self::handle) it when its descriptor is readable.
#[derive(Debug)]
pub struct Backend {
    /// Of pair 0 the receive queue, then its transmit queue (5.1.2), of pair 1 ...
    rings: Vec<Ring>,
    /// Rung by whoever works on a ring, when it has answered.
    bell: Arc<OwnedFd>,
    /// Holds the bell and the session's socket.
    epoll: OwnedFd,
    /// What the guest interface's MTU is when the front-end does not say.
    mtu: usize,
    session: Option<Session>,
    /// The last session is over, but its rings have not been stopped.
    parting: bool,
}

/// How a session ended.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Ended(End);

#[derive(Debug, thiserror::Error)]
enum End {
    #[error(transparent)]
    Channel(#[from] Broken),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A front-end that does not wait for answers would take it for done.
    #[error("message {code} cannot be obeyed: {refused}")]
    Refused { code: u32, refused: Refused },
}

/// Why a message is not obeyed.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("features {0:#x} are not on offer")]
    Features(u64),
    #[error("no ring {0}")]
    Ring(u32),
    #[error("an MTU of {0}")]
    Mtu(u64),
    #[error(transparent)]
    Memory(#[from] memory::Refused),
    #[error("the log: {0}")]
    Log(io::Error),
    #[error("ring {ring}: {error}")]
    Unusable { ring: u32, error: Unusable },
    #[error("{0}")]
    Worker(String),
}

impl Ended {
    /// Whether the front-end went at a moment when it may.
    #[must_use]
    pub fn is_orderly(&self) -> bool {
        matches!(self.0, End::Channel(Broken::Closed))
    }
}

#[derive(Debug)]
struct Session {
    channel: Channel,
    features: Features,
    protocol: Protocol,
    memory: Arc<Table>,
    log: Option<Arc<Log>>,
    mtu: usize,
    /// The message whose orders are being obeyed.
    pending: Option<Pending>,
    /// Messages that were answered by a refusal.
    refusals: u64,
}

#[derive(Debug)]
struct Pending {
    header: Header,
    outcome: Result<Reply, Refused>,
}

/// What a message is answered.
#[derive(Clone, Copy, Debug)]
enum Reply {
    /// Nothing, or that it is done where that was asked for.
    Done,
    Value(u64),
    /// The log is in use. The specification has no body for this; rust-vmm's front-end wants its own back.
    Log {
        size: u64,
        offset: u64,
    },
    /// Where this ring has got to.
    Base(u32),
}

impl Backend {
    /// A device with `pairs` pairs of queues (1 to [`MAX_PAIRS`]), whose guest's MTU is `mtu` unless its front-end says
    /// otherwise, and the two halves of each pair's link.
    ///
    /// From now on the process handles SIGBUS, and calls the handler of before for what is not about a guest's memory.
    ///
    /// # Errors
    /// Out of descriptors.
    ///
    /// # Panics
    /// With another number of pairs.
    pub fn new(pairs: usize, mtu: usize) -> io::Result<(Self, Vec<(Receiver, Transmitter)>)> {
        assert!((1..=MAX_PAIRS).contains(&pairs), "{pairs} pairs of queues");
        guard::install()?;
        let bell = Arc::new(mailbox::bell()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, &bell)?;
        let mut rings = Vec::new();
        let mut halves = Vec::new();
        for _ in 0..pairs {
            let (pair, both) = pair(&bell, mtu)?;
            rings.extend(pair);
            halves.push(both);
        }
        let backend = Self {
            rings,
            bell,
            epoll,
            mtu,
            session: None,
            parting: false,
        };
        Ok((backend, halves))
    }

    /// Begins a session on `socket`, which does not block. One that is under way ends.
    ///
    /// # Errors
    /// The socket cannot be waited for.
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
            refusals: 0,
        });
        Ok(())
    }

    /// Ends the session: its rings stop, and its memory is unmapped when they have.
    pub fn disconnect(&mut self) {
        if self.session.take().is_some() {
            self.parting = true;
            self.settle_parting();
        }
    }

    /// Whether a front-end is there.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// Whether a front-end is there that has closed its end, though what it said may not have been handled yet.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.channel.has_hung_up())
    }

    /// Handles the messages that are there, as far as the rings' workers have obeyed.
    ///
    /// # Errors
    /// The session is over. Another one may begin.
    pub fn handle(&mut self) -> Result<(), Ended> {
        let handled = self.handle_some();
        if handled.is_err() {
            self.disconnect();
        }
        handled.map_err(Ended)
    }

    fn handle_some(&mut self) -> Result<(), End> {
        for _ in 0..BUDGET {
            if !self.settle()? || !self.handle_one()? {
                return Ok(());
            }
        }
        // The socket will not tell again of what is in it.
        mailbox::ring(&self.bell);
        Ok(())
    }

    /// Handles the next message, and says whether there was one.
    fn handle_one(&mut self) -> Result<bool, End> {
        let Self { session, rings, .. } = self;
        let Some(session) = session else {
            return Ok(false);
        };
        let Some(message) = session.channel.receive()? else {
            return Ok(false);
        };
        let header = message.header;
        let request = Request::parse(header.code, message.body, message.fds)?;
        debug!(?request, "vhost-user");
        let outcome = session.obey(rings, request);
        session.pending = Some(Pending { header, outcome });
        Ok(true)
    }

    /// Collects what became of the orders that were given, and answers the message that they were for. Says whether all of
    /// that is done.
    fn settle(&mut self) -> Result<bool, End> {
        if !self.settle_parting() || self.rings.iter().any(Ring::is_busy) {
            return Ok(false);
        }
        let mut refused = None;
        for ring in &mut self.rings {
            if let Some(Answer::Refused(reason)) = ring.collect() {
                refused = Some(Refused::Worker(reason));
            }
        }
        let Some(session) = &mut self.session else {
            return Ok(true);
        };
        let Some(Pending { header, outcome }) = session.pending.take() else {
            return Ok(true);
        };
        let outcome = refused.map_or(outcome, Err);
        session.answer(header, outcome, &self.rings)?;
        Ok(true)
    }

    /// Stops the rings of a session that is over, once they have done what it told them last. Says whether that is done.
    fn settle_parting(&mut self) -> bool {
        while self.parting {
            if self.rings.iter().any(Ring::is_busy) {
                return false;
            }
            for ring in &mut self.rings {
                ring.collect();
            }
            self.parting = self.rings.iter().any(Ring::is_running);
            for ring in &mut self.rings {
                match self.parting {
                    true => ring.stop(),
                    false => ring.forget(),
                }
            }
        }
        true
    }
}

/// A pair of rings, the receive queue first, and the halves of the link that work on them and then ring `bell`.
pub(crate) fn pair(bell: &Arc<OwnedFd>, mtu: usize) -> io::Result<([Ring; 2], (Receiver, Transmitter))> {
    let mailboxes = [Mailbox::new(bell.clone())?, Mailbox::new(bell.clone())?].map(Arc::new);
    let rings = mailboxes.clone().map(Ring::new);
    let [to_guest, from_guest] = mailboxes;
    Ok((
        rings,
        (Receiver::new(from_guest)?, Transmitter::new(to_guest, mtu)?),
    ))
}

impl AsFd for Backend {
    /// Readable when there is something to [`handle`](Self::handle), edge-triggered.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Session {
    fn obey(&mut self, rings: &mut [Ring], request: Request) -> Result<Reply, Refused> {
        let pairs = rings.len() / 2;
        match request {
            Request::GetFeatures => return Ok(Reply::Value(Features::offered(pairs).0)),
            Request::SetFeatures(bits) => self.set_features(rings, bits)?,
            Request::Owner | Request::SetLogFd => {}
            Request::SetMemTable(regions) => self.set_memory(rings, Table::new(regions)?),
            Request::AddMemReg(region, file) => {
                let table = self.memory.as_ref().clone().with(region, file)?;
                self.set_memory(rings, table);
            }
            Request::RemMemReg(region) => {
                self.set_memory(rings, self.memory.as_ref().clone().without(&region))
            }
            Request::GetMaxMemSlots => return Ok(Reply::Value(MAX_REGIONS as u64)),
            Request::SetLogBase { size, offset, file } => {
                let log = Log::new(size, offset, file).map_err(Refused::Log)?;
                self.log = Some(Arc::new(log));
                self.tell_log(rings);
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
                    return Err(Refused::Features(bits));
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
                    .ok_or(Refused::Mtu(mtu))?;
            }
        }
        Ok(Reply::Done)
    }

    /// Changes one ring.
    fn ring(
        &self,
        rings: &mut [Ring],
        number: u32,
        how: impl FnOnce(&mut Ring, &Self) -> Result<(), Unusable>,
    ) -> Result<(), Refused> {
        let ring = usize::try_from(number).ok().and_then(|at| rings.get_mut(at));
        let ring = ring.ok_or(Refused::Ring(number))?;
        how(ring, self).map_err(|error| Refused::Unusable { ring: number, error })
    }

    /// Those of a ring that is running stay, but for the one about the log.
    fn set_features(&mut self, rings: &mut [Ring], bits: u64) -> Result<(), Refused> {
        let features = Features(bits);
        if !Features::offered(rings.len() / 2).has(features) {
            return Err(Refused::Features(bits));
        }
        self.features = features;
        for ring in rings.iter_mut() {
            // "If VHOST_USER_F_PROTOCOL_FEATURES has not been negotiated, the ring starts directly in the enabled state."
            ring.set_default(!features.has(Features::PROTOCOL));
        }
        self.tell_log(rings);
        Ok(())
    }

    fn set_memory(&mut self, rings: &mut [Ring], table: Table) {
        self.memory = Arc::new(table);
        for ring in rings {
            ring.set_memory(&self.memory);
        }
    }

    fn tell_log(&self, rings: &mut [Ring]) {
        for ring in rings {
            ring.set_log(self.features, self.log.as_ref());
        }
    }

    fn answer(&mut self, header: Header, outcome: Result<Reply, Refused>, rings: &[Ring]) -> Result<(), End> {
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
            Err(refused) if acknowledged => {
                self.refusals += 1;
                if self.refusals <= MOST_SAID {
                    warn!("message {code} cannot be obeyed: {refused}");
                }
                1
            }
            Err(refused) => return Err(End::Refused { code, refused }),
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
