//! Changes of published ports while the engine runs.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use pontoon_engine::config::{Protocol, Published, PublishedPath};
use pontoon_ipc::Descriptor;
use serde::{Deserialize, Serialize};

/// Change of a published port, which is identified by its [`PublishedKey`](pontoon_engine::config::PublishedKey).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PortUpdate {
    /// The port is new, with this socket: listening (TCP) or bound (UDP), non-blocking. The descriptor is empty if the
    /// engine process had no free descriptor for it.
    Open(#[serde(with = "PublishedFields")] Published, Descriptor),
    /// The destination of the port changes to another port or address of the guest.
    Redirect(#[serde(with = "PublishedFields")] Published),
    /// The port is closed.
    Close(#[serde(with = "PublishedFields")] Published),
}

/// Published port that a worker could not open or redirect, with the reason. It is part of the worker's reports until the
/// port changes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortError {
    /// Published port that was refused.
    #[serde(with = "PublishedFields")]
    pub port: Published,
    /// Reason for the refusal, in one line.
    pub why: String,
}

impl PortUpdate {
    /// Returns the published port that changes.
    #[must_use]
    pub fn published(&self) -> Published {
        let (Self::Open(published, _) | Self::Redirect(published) | Self::Close(published)) = self;
        *published
    }

    pub(super) fn descriptor(&self) -> Option<&Descriptor> {
        match self {
            Self::Open(_, socket) => Some(socket),
            Self::Redirect(_) | Self::Close(_) => None,
        }
    }

    pub(super) fn descriptor_mut(&mut self) -> Option<&mut Descriptor> {
        match self {
            Self::Open(_, socket) => Some(socket),
            Self::Redirect(_) | Self::Close(_) => None,
        }
    }
}

impl PortError {
    /// Limit on the errors in one report. If a report has as many, there may be more.
    pub const MOST: usize = 128;

    /// Limit on the characters of a reason.
    const MAX_WHY: usize = 100;

    /// Creates an error, whose reason is truncated to [`Self::MAX_WHY`] characters.
    pub(crate) fn new(port: Published, why: &str) -> Self {
        Self {
            port,
            why: why.chars().take(Self::MAX_WHY).collect(),
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.why.chars().nth(Self::MAX_WHY).is_none()
    }
}

/// Fields of [`Published`], for serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Published", deny_unknown_fields)]
struct PublishedFields {
    #[serde(with = "ProtocolName")]
    protocol: Protocol,
    host: SocketAddr,
    #[serde(default)]
    interface: Option<NonZeroU32>,
    #[serde(default)]
    target: Option<IpAddr>,
    guest_port: u16,
    #[serde(default, with = "PathName")]
    path: PublishedPath,
}

/// Variants of [`PublishedPath`], for serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "PublishedPath", rename_all = "snake_case")]
enum PathName {
    Shortest,
    Link,
    GuestLoopback,
    FromGuest,
}

/// Variants of [`Protocol`], for serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Protocol", rename_all = "snake_case")]
pub(super) enum ProtocolName {
    Tcp,
    Udp,
}
