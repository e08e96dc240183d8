//! The state of an engine, in a form that another process reads: the flows, timers, buffers and learned addresses with which an
//! engine of this or the next version continues where this one has stopped.
//!
//! [`Engine::save_state`](crate::Engine::save_state) writes it and changes nothing, so that the engine can go on.
//! [`Engine::restore_state`](crate::Engine::restore_state) reads it into a new engine, which uses no socket before
//! [`Engine::handle_restored`](crate::Engine::handle_restored).
//!
//! The state is untrusted: its reader checks each value, length and relation, and judges each flow by the policy of the new
//! engine. Host sockets are not in the state, but their descriptions. A state that contradicts itself is refused as a whole; a
//! flow whose socket is refused is ended alone.
//!
//! A structure with state lists its fields in [`record!`] or [`flow_record!`] beside its definition, and does not compile
//! without one of them. docs/state.md has the rules for new fields.

mod codec;
mod engine;
mod envelope;
mod net;
mod record;
mod socket;

use thiserror::Error;

pub(crate) use codec::{Reader, Record, Writer, check};
pub(crate) use record::{field, flow_record, record, record_enum};
pub(crate) use socket::{Adoption, Sockets};
pub use socket::{SavedSocket, SocketDescription, SocketKind, SocketRefused};

/// Version of the states that are written. States of this version and of the one before are read.
pub const STATE_VERSION: u32 = 1;

/// Maximum length of a state in bytes: the buffers for data of the guest, and 1 KiB for each of 131,072 flows.
pub const MOST_BYTES: usize = (32 + 8 + 128) << 20;

/// State of an engine, with the host sockets to which it refers by their places in the list.
#[derive(Debug)]
pub struct SavedState<'a, S> {
    /// The state.
    pub bytes: Vec<u8>,
    /// The host sockets. The place of each is its index in the state.
    pub sockets: Vec<SavedSocket<'a, S>>,
}

/// Numbers of flows of a state that was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Flows that continue.
    pub flows: u32,
    /// Flows that end, because the policy or the caller has refused their sockets.
    pub refused: u32,
}

/// The reason why a state cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// The octets are not the state of an engine.
    #[error("not the state of an engine")]
    Magic,
    /// The version is neither this one nor the one before.
    #[error("the state has version {0}, which is not supported")]
    Version(u32),
    /// The state ends within a value.
    #[error("the state is truncated")]
    Truncated,
    /// A value is not possible, or is followed by octets that belong to none.
    #[error("the state is malformed")]
    Malformed,
    /// There are more elements, or more bytes of data, than the limits permit.
    #[error("the state exceeds a limit")]
    Limit,
    /// Values contradict each other.
    #[error("the state contradicts itself")]
    Inconsistent,
    /// The state belongs to another worker.
    #[error("the state belongs to another worker")]
    Worker,
    /// The published ports are not those of the configuration.
    #[error("the published ports differ from those of the state")]
    Published,
    /// Another worker owns a flow.
    #[error("another worker owns a flow of the state")]
    Owner,
}
