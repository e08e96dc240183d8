//! Published ports that come and go while the engine runs.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use pontoon_engine::config::{Protocol, Published};

/// What happens to a published port, which protocol and host address name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// There is a new one, with its socket: listening (TCP) or bound (UDP), non-blocking.
    Open(Published, Descriptor),
    /// It leads to another port of the guest's.
    Lead(Published),
    /// It is no more.
    Close(Published),
}

/// What the supervisor has opened, and may share with the workers. Equal to itself alone.
#[derive(Clone, Debug)]
pub struct Descriptor(Arc<OwnedFd>);

impl Door {
    /// A line of text. The socket goes along.
    pub(super) fn encode(&self) -> String {
        let (word, published) = match self {
            Self::Open(published, _) => (OPEN, published),
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
            Self::Lead(_) | Self::Close(_) => None,
        }
    }

    /// Reads a line; the next one of `descriptors` is that of a new port.
    pub(super) fn decode(line: &str, descriptors: &mut impl Iterator<Item = OwnedFd>) -> Option<Self> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let protocol = match words.next()? {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return None,
        };
        let host: SocketAddr = words.next()?.parse().ok()?;
        let published = Published {
            protocol,
            host,
            guest_port: words.next()?.parse().ok()?,
        };
        let door = match word {
            OPEN => Self::Open(published, Arc::new(descriptors.next()?).into()),
            LEAD => Self::Lead(published),
            CLOSE => Self::Close(published),
            _ => return None,
        };
        words.next().is_none().then_some(door)
    }
}

impl Descriptor {
    pub(crate) fn into_inner(self) -> Arc<OwnedFd> {
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
