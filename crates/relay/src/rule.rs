//! Rules: which datagrams are taken, and where they go.

use std::fmt;
use std::net::IpAddr;
use std::num::{NonZeroU8, NonZeroU16};

use ipnet::IpNet;

pub(crate) mod parse;
#[cfg(test)]
mod tests;

pub use parse::RuleError;

/// One rule: `eth0 239.1.1.1:5001 from 10.0.0.1 -> eth1 239.2.2.2:5002 ttl 8, eth2 10.1.2.3:5003`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// What is taken.
    pub input: Input,
    /// Where it goes; at least one.
    pub outputs: Vec<Output>,
}

/// Left of the arrow. No two rules have the same one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// Interface that it arrives on.
    pub interface: String,
    /// Address that it was sent to: a group, a range of groups, or one unicast address.
    pub to: IpNet,
    /// Port that it was sent to; `None` is any.
    pub port: Option<NonZeroU16>,
    /// Who sent it; `None` is anybody.
    pub from: Option<IpNet>,
}

/// Right of the arrow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    /// Interface that it leaves on.
    pub interface: String,
    /// Group or unicast address that it is sent to; `None` keeps the one that it had.
    pub to: Option<IpAddr>,
    /// Port that it is sent to; `None` keeps the one that it had.
    pub port: Option<NonZeroU16>,
    /// Its TTL or hop limit.
    pub hops: Hops,
}

/// What becomes of TTL or hop limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hops {
    /// One less, as a router does; what arrives with 1 ends here.
    Decrement,
    /// The same, and only of what arrives with more than this: a threshold of the kernel's multicast routes.
    Above(NonZeroU8),
    /// Always this, whatever it was: nothing ends a loop.
    Set(NonZeroU8),
}

impl Hops {
    /// What a datagram that arrived with `hops` leaves with; `None` where it ends here.
    #[must_use]
    pub fn leaving(self, hops: u8) -> Option<NonZeroU8> {
        match self {
            Self::Decrement => NonZeroU8::new(hops.saturating_sub(1)),
            Self::Above(threshold) if hops <= threshold.get() => None,
            Self::Above(_) => Self::Decrement.leaving(hops),
            Self::Set(value) => Some(value),
        }
    }
}

impl Input {
    /// Whether it is IPv6.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        matches!(self.to, IpNet::V6(_))
    }

    /// Whether it is sent to a group.
    #[must_use]
    pub fn is_multicast(&self) -> bool {
        self.to.addr().is_multicast()
    }
}

impl Output {
    /// Whether it keeps address or port.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.to.is_none() || self.port.is_none()
    }

    /// Whether what it sends for `input` is IPv6.
    #[must_use]
    pub fn is_v6(&self, input: &Input) -> bool {
        self.to.map_or(input.is_v6(), |to| to.is_ipv6())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> ", self.input)?;
        for (index, output) in self.outputs.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{output}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = Range(self.to);
        match self.to {
            IpNet::V4(_) => write!(f, "{} {to}:{}", self.interface, Port(self.port))?,
            IpNet::V6(_) => write!(f, "{} [{to}]:{}", self.interface, Port(self.port))?,
        }
        match self.from {
            Some(from) => write!(f, " from {}", Range(from)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = Port(self.port);
        match self.to {
            None => write!(f, "{} *:{port}", self.interface)?,
            Some(IpAddr::V4(to)) => write!(f, "{} {to}:{port}", self.interface)?,
            Some(IpAddr::V6(to)) => write!(f, "{} [{to}]:{port}", self.interface)?,
        }
        match self.hops {
            Hops::Decrement => Ok(()),
            Hops::Above(threshold) => write!(f, " above {threshold}"),
            Hops::Set(value) => write!(f, " ttl {value}"),
        }
    }
}

/// A range of one address is written as that address.
struct Range(IpNet);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            self.0.addr().fmt(f)
        } else {
            self.0.fmt(f)
        }
    }
}

struct Port(Option<NonZeroU16>);

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(port) => port.fmt(f),
            None => f.write_str("*"),
        }
    }
}
