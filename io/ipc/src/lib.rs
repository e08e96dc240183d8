//! Communication between a supervisor and its worker processes: typed messages with descriptors over a `SOCK_SEQPACKET`
//! socket.
//!
//! Each kind of worker has a type of the messages to it and a type of the messages from it, which implement
//! [`ChannelMessage`]. A [`Channel`] connects the two processes. A message is JSON, which a `strace` of either process shows.

mod channel;
mod descriptor;
#[cfg(any(feature = "hostile", fuzzing))]
pub mod hostile;
mod message;
mod outbox;
mod send_error;
pub mod text;

pub use channel::Channel;
pub use descriptor::Descriptor;
pub use message::{ChannelMessage, ProcessReport, ReportKind, decode, encode};
pub use outbox::OutboxOverflow;
