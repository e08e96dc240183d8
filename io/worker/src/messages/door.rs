//! Published ports that come and go while the engine runs.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pontoon_engine::config::{Protocol, Published};

/// A change of a published port, which is identified by protocol and host address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// A new port, with its socket: listening (TCP) or bound (UDP), non-blocking.
    Open(Published, Descriptor),
    /// A new port, for whose socket this process had no descriptor left. It is not sent: [`Door::Open`] is decoded as this.
    Lost(Published),
    /// The port leads to another port of the guest from now on.
    Lead(Published),
    /// The port is closed.
    Close(Published),
}

/// A published port that a worker could not open or redirect. It is part of the worker's
/// reports until the port changes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The port.
    pub port: Published,
    /// Why; one line.
    pub why: String,
}

/// A descriptor that the supervisor has opened, and may share with the workers. It is equal to itself alone.
#[derive(Clone, Debug)]
pub struct Descriptor(Arc<OwnedFd>);

impl Door {
    /// A line of text. The socket goes along.
    pub(super) fn encode(&self) -> String {
        let (word, published) = match self {
            Self::Open(published, _) | Self::Lost(published) => (OPEN, published),
            Self::Lead(published) => (LEAD, published),
            Self::Close(published) => (CLOSE, published),
        };
        let Published {
            protocol,
            host,
            guest_port,
        } = published;
        format!("{word} {protocol} {host} {guest_port}")
    }

    /// The socket that goes along with it.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Open(_, socket) => Some(socket.as_fd()),
            Self::Lost(_) | Self::Lead(_) | Self::Close(_) => None,
        }
    }

    /// The port that it is about.
    #[must_use]
    pub fn published(&self) -> Published {
        let (Self::Open(published, _)
        | Self::Lost(published)
        | Self::Lead(published)
        | Self::Close(published)) = self;
        *published
    }

    /// Reads a line; the next one of `descriptors` is that of a new port.
    pub(super) fn decode(line: &str, descriptors: &mut impl Iterator<Item = OwnedFd>) -> Option<Self> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let published = decode_port(&mut words)?;
        let door = match word {
            OPEN => match descriptors.next() {
                Some(socket) => Self::Open(published, Arc::new(socket).into()),
                None => Self::Lost(published),
            },
            LEAD => Self::Lead(published),
            CLOSE => Self::Close(published),
            _ => return None,
        };
        words.next().is_none().then_some(door)
    }
}

impl Refused {
    /// The most of them in one message. Where there are as many, there may be more.
    pub const MOST: usize = 256;

    /// Bytes of a reason.
    const LONGEST: usize = 100;

    pub(super) fn encode(&self) -> String {
        let Published {
            protocol,
            host,
            guest_port,
        } = self.port;
        let why: String = self.why.chars().take(Self::LONGEST).collect();
        format!("{protocol} {host} {guest_port} {why}")
    }

    pub(super) fn decode(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        Some(Self {
            port: decode_port(&mut words)?,
            why: words.next()?.to_owned(),
        })
    }
}

fn decode_port<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Published> {
    let protocol = match words.next()? {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return None,
    };
    let host: SocketAddr = words.next()?.parse().ok()?;
    Some(Published {
        protocol,
        host,
        guest_port: words.next()?.parse().ok()?,
    })
}

impl Descriptor {
    /// Returns the shared descriptor.
    #[must_use]
    pub fn into_inner(self) -> Arc<OwnedFd> {
        self.0
    }
}

impl From<Arc<OwnedFd>> for Descriptor {
    fn from(socket: Arc<OwnedFd>) -> Self {
        Self(socket)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PartialEq for Descriptor {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_raw_fd() == other.0.as_raw_fd()
    }
}

impl Eq for Descriptor {}

const OPEN: &str = "open";
const LEAD: &str = "lead";
const CLOSE: &str = "close";
