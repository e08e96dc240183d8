//! Parses relay rules from their text form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroU8, NonZeroU16};
use std::str::FromStr;

use ipnet::IpNet;

use super::{Hops, Input, Output, Rule};

/// The reason why the text of a rule is invalid, with the invalid part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The arrow `->` between input and outputs is missing.
    #[error("no '->' (the form is: eth0 239.1.1.1:5001 -> eth1 239.2.2.2:5002)")]
    NoArrow,
    /// A part of the rule is missing, such as the interface or the address.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A word is at a position where none is expected.
    #[error("unexpected '{0}'")]
    Unexpected(String),
    /// The word is not a valid interface name.
    #[error("invalid interface name '{0}'")]
    Interface(String),
    /// The word is not of the form ADDRESS:PORT.
    #[error("invalid endpoint '{0}' (ADDRESS:PORT; [ADDRESS]:PORT for IPv6)")]
    Endpoint(String),
    /// The word is not an address or a range of addresses.
    #[error("invalid address '{0}'")]
    Address(String),
    /// The word is not a port: 1 to 65535, or `*`.
    #[error("invalid port '{0}' (1 to 65535, or *)")]
    Port(String),
    /// The word is not a TTL: 1 to 255.
    #[error("invalid TTL '{0}' (1 to 255)")]
    Ttl(String),
    /// An address range has bits set behind its prefix.
    #[error("'{0}' has bits set behind its prefix (try: {1})")]
    HostBits(String, IpNet),
    /// A range of destination addresses includes unicast addresses.
    #[error("'{0}' is not a range of multicast groups")]
    NotGroups(IpNet),
    /// The destination address of an output cannot be a destination, such as 0.0.0.0.
    #[error("nothing can be sent to {0}")]
    Unreachable(IpAddr),
    /// The input is a unicast address without a port, but the relay has to bind a socket to the port.
    #[error("{0} is a unicast address, so it needs a port")]
    UnicastNeedsPort(IpAddr),
    /// The address range after `from` contains addresses that are not unicast.
    #[error("{0} is not a range of unicast addresses")]
    Sender(IpNet),
    /// The address range after `from` and the destination address are of different families.
    #[error("{0} and the group are of different address families")]
    OtherFamily(IpNet),
    /// The output keeps the destination address (`*`), but that is a unicast address of the relay's host.
    #[error("'*' keeps the destination address, but {0} is a unicast address of this host")]
    KeepsUnicast(IpAddr),
    /// The rule has the same output twice.
    #[error("duplicate '{0}'")]
    Duplicate(String),
    /// The output is the same as the input, which would be a loop.
    #[error("'{0}' is the same as the input")]
    Loop(String),
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (left, right) = text.split_once("->").ok_or(RuleError::NoArrow)?;
        let input: Input = left.parse()?;
        let mut outputs: Vec<Output> = Vec::new();
        for part in right.split(',') {
            let output = output(part, &input)?;
            let same = |other: &Output| {
                (&other.interface, other.to, other.port) == (&output.interface, output.to, output.port)
            };
            if outputs.iter().any(same) {
                return Err(RuleError::Duplicate(part.trim().to_owned()));
            }
            outputs.push(output);
        }
        Ok(Self { input, outputs })
    }
}

impl FromStr for Input {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut words = text.split_whitespace();
        let interface = interface(words.next())?;
        let word = words.next().ok_or(RuleError::Missing("the group"))?;
        let (address, port) = endpoint(word)?;
        let to = range(address)?;
        let from = match words.next() {
            None => None,
            Some("from") => Some(range(words.next().ok_or(RuleError::Missing("the sender"))?)?),
            Some(other) => return Err(RuleError::Unexpected(other.to_owned())),
        };
        end(words)?;
        let one = to.prefix_len() == to.max_prefix_len();
        let (first, last) = (to.network(), to.broadcast());
        match (first.is_multicast() && last.is_multicast(), one) {
            (true, _) => {}
            (false, true) if unreachable(first) => return Err(RuleError::Unreachable(first)),
            (false, true) if port.is_none() => return Err(RuleError::UnicastNeedsPort(first)),
            (false, true) => {}
            (false, false) => return Err(RuleError::NotGroups(to)),
        }
        if let Some(from) = from {
            if from.addr().is_ipv4() != to.addr().is_ipv4() {
                return Err(RuleError::OtherFamily(from));
            }
            let one = from.prefix_len() == from.max_prefix_len();
            if from.addr().is_multicast() || (one && unreachable(from.addr())) {
                return Err(RuleError::Sender(from));
            }
        }
        Ok(Self {
            interface,
            to,
            port,
            from,
        })
    }
}

fn output(text: &str, input: &Input) -> Result<Output, RuleError> {
    let mut words = text.split_whitespace();
    let interface = interface(words.next())?;
    let word = words.next().ok_or(RuleError::Missing("the address to send to"))?;
    let (address, port) = endpoint(word)?;
    let to = match address {
        "*" if input.is_multicast() => None,
        "*" => return Err(RuleError::KeepsUnicast(input.to.addr())),
        address => Some(single(address)?),
    };
    let hops = match words.next() {
        None => Hops::Decrement,
        Some("above") => Hops::Above(ttl(words.next())?),
        Some("ttl") => Hops::Set(ttl(words.next())?),
        Some(other) => return Err(RuleError::Unexpected(other.to_owned())),
    };
    end(words)?;
    let comes_back =
        to.is_none_or(|to| input.to == IpNet::from(to)) && port.is_none_or(|port| input.port == Some(port));
    if interface == input.interface && comes_back {
        return Err(RuleError::Loop(text.trim().to_owned()));
    }
    Ok(Output {
        interface,
        to,
        port,
        hops,
    })
}

fn ttl(word: Option<&str>) -> Result<NonZeroU8, RuleError> {
    let word = word.ok_or(RuleError::Missing("the TTL"))?;
    word.parse().map_err(|_| RuleError::Ttl(word.to_owned()))
}

/// Parses an interface name: a name that the kernel accepts (`dev_valid_name`, Linux net/core/dev.c), without the
/// characters that the text of rules uses itself.
pub(crate) fn interface(word: Option<&str>) -> Result<String, RuleError> {
    let name = word.ok_or(RuleError::Missing("the interface"))?;
    let fits = |letter: char| letter.is_ascii_graphic() && !"/:,".contains(letter);
    if name.len() > 15 || name == "." || name == ".." || !name.chars().all(fits) {
        return Err(RuleError::Interface(name.to_owned()));
    }
    Ok(name.to_owned())
}

/// Splits `ADDRESS:PORT` or `[ADDRESS]:PORT` into address and port; the port `*` is `None`.
fn endpoint(word: &str) -> Result<(&str, Option<NonZeroU16>), RuleError> {
    let malformed = || RuleError::Endpoint(word.to_owned());
    let (address, port) = match word.strip_prefix('[') {
        Some(rest) => rest.split_once("]:").ok_or_else(malformed)?,
        None => word.split_once(':').ok_or_else(malformed)?,
    };
    // An IPv6 address needs brackets, because it contains colons.
    if word.starts_with('[') != address.contains(':') || port.contains(':') {
        return Err(malformed());
    }
    let port = match port {
        "*" => None,
        digits => Some(digits.parse().map_err(|_| RuleError::Port(digits.to_owned()))?),
    };
    Ok((address, port))
}

fn range(word: &str) -> Result<IpNet, RuleError> {
    let net = if word.contains('/') {
        word.parse().ok()
    } else {
        word.parse::<IpAddr>().ok().map(IpNet::from)
    };
    let net = net.ok_or_else(|| RuleError::Address(word.to_owned()))?;
    if net.trunc() != net {
        return Err(RuleError::HostBits(word.to_owned(), net.trunc()));
    }
    Ok(net)
}

fn single(word: &str) -> Result<IpAddr, RuleError> {
    let address = word.parse().map_err(|_| RuleError::Address(word.to_owned()))?;
    if unreachable(address) {
        return Err(RuleError::Unreachable(address));
    }
    Ok(address)
}

/// Returns true for addresses that cannot be the source or destination of a datagram that a rule matches or sends.
pub(crate) fn unreachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4 == Ipv4Addr::UNSPECIFIED || v4 == Ipv4Addr::BROADCAST,
        // The kernel sends datagrams to an IPv4-mapped address as IPv4.
        IpAddr::V6(v6) => v6 == Ipv6Addr::UNSPECIFIED || v6.to_ipv4_mapped().is_some(),
    }
}

pub(crate) fn end<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<(), RuleError> {
    match words.next() {
        None => Ok(()),
        Some(word) => Err(RuleError::Unexpected(word.to_owned())),
    }
}
