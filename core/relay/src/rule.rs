//! Relay rules: the input of datagrams and the outputs to which they are forwarded.

use std::fmt;
use std::net::IpAddr;
use std::num::{NonZeroU8, NonZeroU16};

use ipnet::IpNet;

pub(crate) mod parse;
#[cfg(test)]
mod tests;

pub use parse::RuleError;

/// A relay rule: `eth0 239.1.1.1:5001 from 10.0.0.1 -> eth1 239.2.2.2:5002 ttl 8, eth2 10.1.2.3:5003`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Input: the datagrams that the rule matches.
    pub input: Input,
    /// Outputs: the interfaces and addresses to which a copy of each datagram is sent; at least one.
    pub outputs: Vec<Output>,
}

/// Input of a rule, the part before the arrow. It is unique among the rules of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// Interface on which datagrams arrive.
    pub interface: String,
    /// Destination address that datagrams must have: a group, a range of groups, or one unicast address.
    pub to: IpNet,
    /// Destination port that datagrams must have; `None` means any port.
    pub port: Option<NonZeroU16>,
    /// Range of source addresses that datagrams must have; `None` means any sender.
    pub from: Option<IpNet>,
}

/// Output of a rule, an item behind the arrow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    /// Interface on which copies are sent.
    pub interface: String,
    /// Destination address of copies; `None` keeps the datagram's address.
    pub to: Option<IpAddr>,
    /// Destination port of copies; `None` keeps the datagram's port.
    pub port: Option<NonZeroU16>,
    /// TTL or hop limit with which copies are sent.
    pub hops: Hops,
}

/// TTL or hop limit with which an output sends copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hops {
    /// The TTL is decremented, as by a router; a datagram that arrives with TTL 1 is not forwarded.
    Decrement,
    /// The TTL is decremented, and only datagrams with a TTL above this threshold are forwarded, like the threshold of
    /// a multicast route in the kernel (`vifc_threshold`).
    Above(NonZeroU8),
    /// The TTL is set to this value. A forwarding loop would therefore not end.
    Set(NonZeroU8),
}

impl Hops {
    /// Returns the TTL of the copy of a datagram that arrived with TTL `hops`; `None` if the datagram is not forwarded.
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

impl Rule {
    /// Returns true if the rule's text parses to the same rule, which is required because workers receive rules as
    /// text.
    #[must_use]
    pub fn parses_back(&self) -> bool {
        self.to_string().parse().as_ref() == Ok(self)
    }
}

impl Input {
    /// Returns true if the input matches IPv6 datagrams.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        matches!(self.to, IpNet::V6(_))
    }

    /// Returns true if the destination address is a group or a range of groups.
    #[must_use]
    pub fn is_multicast(&self) -> bool {
        self.to.addr().is_multicast()
    }
}

impl Output {
    /// Returns true if the output keeps the datagram's destination address or port.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.to.is_none() || self.port.is_none()
    }

    /// Returns true if the output sends copies of datagrams of `input` as IPv6.
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
        let to = DisplayedRange(self.to);
        match self.to {
            IpNet::V4(_) => write!(f, "{} {to}:{}", self.interface, DisplayedPort(self.port))?,
            IpNet::V6(_) => write!(f, "{} [{to}]:{}", self.interface, DisplayedPort(self.port))?,
        }
        match self.from {
            Some(from) => write!(f, " from {}", DisplayedRange(from)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = DisplayedPort(self.port);
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

/// Displays an address range; a range of a single address is displayed as that address.
struct DisplayedRange(IpNet);

impl fmt::Display for DisplayedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            self.0.addr().fmt(f)
        } else {
            self.0.fmt(f)
        }
    }
}

/// Displays a port; `None` is displayed as `*`.
struct DisplayedPort(Option<NonZeroU16>);

impl fmt::Display for DisplayedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(port) => port.fmt(f),
            None => f.write_str("*"),
        }
    }
}
