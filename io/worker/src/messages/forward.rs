//! Changes of guest forwards while the engine runs.

use std::net::SocketAddr;

use pontoon_engine::config::Protocol;
use pontoon_engine::policy::GuestForward;
use serde::{Deserialize, Serialize};

use super::port_update::ProtocolName;

/// Change of a guest forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ForwardUpdate {
    /// The forward is added. It overlaps no other.
    Add(#[serde(with = "ForwardFields")] GuestForward),
    /// The forward is removed, and connections that the guest has opened through it are reset.
    Remove(#[serde(with = "ForwardFields")] GuestForward),
}

impl ForwardUpdate {
    /// Returns true if all ports of both ends are at most 65535 and both addresses are of the same family.
    pub(super) fn is_valid(&self) -> bool {
        let (Self::Add(forward) | Self::Remove(forward)) = self;
        let fits = |at: SocketAddr| at.port().checked_add(forward.count.saturating_sub(1)).is_some();
        let is_one_family = forward.from.is_ipv4() == forward.to.is_ipv4();
        forward.count > 0 && is_one_family && fits(forward.from) && fits(forward.to)
    }
}

/// Fields of [`GuestForward`], for serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "GuestForward", deny_unknown_fields)]
struct ForwardFields {
    #[serde(with = "ProtocolName")]
    protocol: Protocol,
    from: SocketAddr,
    to: SocketAddr,
    count: u16,
}
