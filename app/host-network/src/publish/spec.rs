//! The value of the option `--publish`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use pontoon_engine::config::{Protocol, PublishedPath};

use super::port_range::PortRange;

/// Value of `--publish`: `[[ADDR][%IFACE]:]PORTS[:[TARGET:]GUEST][/tcp|/udp|/both][,via=PATH]`, a superset of the syntax of podman and
/// docker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Transport protocols.
    pub protocols: Protocols,
    /// Host address to listen on; `None` means all addresses of both families.
    pub address: Option<IpAddr>,
    /// Name of the host's interface to listen on; `None` means all interfaces.
    pub interface: Option<String>,
    /// Ports of the host, and the ports of the guest to which they lead.
    pub ports: PublishedPorts,
    /// Ports of the host that are not published although `ports` contains them.
    pub excluded: Vec<PortRange>,
    /// Address behind the guest's link to which the ports lead; `None` means the guest's own.
    pub target: Option<IpAddr>,
    /// Path of the data of clients on this host.
    pub path: PublishedPath,
}

/// Ports of the host, and the ports of the guest to which they lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishedPorts {
    /// Consecutive ports.
    Range {
        /// Ports of the host.
        host: PortRange,
        /// Port of the guest to which the first of them leads.
        guest: u16,
    },
    /// Two or more ranges of ports that lead to the guest's ports of the same numbers.
    List(Vec<PortRange>),
    /// All ports that are free on the host and not ephemeral; they lead to the guest's ports of the same numbers.
    All,
    /// Ports on which the guest listens, for as long as it does; if the list is not empty, only those in one of its
    /// ranges.
    Auto(Vec<PortRange>),
}

/// Transport protocols of a value of `--publish` or `--guest-forward`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocols {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// TCP and UDP.
    Both,
}

/// Limit on the ranges, and on the excluded ranges, of one value.
const MOST_RANGES: usize = 256;

impl Protocols {
    /// Returns the protocols.
    pub fn iter(self) -> impl Iterator<Item = Protocol> {
        let all: &[Protocol] = match self {
            Self::Tcp => &[Protocol::Tcp],
            Self::Udp => &[Protocol::Udp],
            Self::Both => &[Protocol::Tcp, Protocol::Udp],
        };
        all.iter().copied()
    }

    /// Splits `/tcp`, `/udp` or `/both` off the end of a value. The default is TCP.
    ///
    /// # Errors
    /// The text after the slash is not a protocol.
    pub fn split_off(text: &str) -> Result<(&str, Self), String> {
        match text.rsplit_once('/') {
            None => Ok((text, Self::Tcp)),
            Some((text, "tcp")) => Ok((text, Self::Tcp)),
            Some((text, "udp")) => Ok((text, Self::Udp)),
            Some((text, "both")) => Ok((text, Self::Both)),
            Some((_, other)) => Err(format!("protocol '{other}' is not tcp, udp or both")),
        }
    }
}

impl From<Protocol> for Protocols {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
        }
    }
}

impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Both => "both",
        })
    }
}

impl Publish {
    /// Returns the ranges of ports that the value names, without those that it excludes. [`PublishedPorts::All`] and
    /// [`PublishedPorts::Auto`] name none.
    #[must_use]
    pub fn named(&self) -> Vec<PortRange> {
        let ranges = match &self.ports {
            PublishedPorts::Range { host, .. } => std::slice::from_ref(host),
            PublishedPorts::List(ranges) => ranges,
            PublishedPorts::All | PublishedPorts::Auto(_) => &[],
        };
        self.without_excluded(ranges)
    }

    /// Returns the parts of `ranges` that the value does not exclude.
    pub(super) fn without_excluded(&self, ranges: &[PortRange]) -> Vec<PortRange> {
        let left = |range: &PortRange| range.without(&self.excluded);
        ranges.iter().flat_map(left).collect()
    }

    /// Returns the host address to listen on: that of the value, or the unspecified address of the target's family.
    /// `None` means all addresses of both families.
    #[must_use]
    pub fn listens_at(&self) -> Option<IpAddr> {
        let any: Option<IpAddr> = self.target.map(|target| match target {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        });
        self.address.or(any)
    }

    /// Returns the number of ports, one for each protocol. Those of [`PublishedPorts::Auto`] are not counted, because
    /// they have their own limit.
    #[must_use]
    pub fn count(&self) -> usize {
        let ranges = match &self.ports {
            PublishedPorts::All => PortRange::ALL.without(&self.excluded),
            _ => self.named(),
        };
        let of_one: usize = ranges.into_iter().map(|range| usize::from(range.count())).sum();
        of_one * self.protocols.iter().count()
    }

    /// Returns the guest's port to which a port of the host leads.
    #[must_use]
    pub fn guest_port(&self, host: u16) -> u16 {
        match &self.ports {
            PublishedPorts::Range { host: range, guest } => guest + (host - range.first),
            PublishedPorts::List(_) | PublishedPorts::All | PublishedPorts::Auto(_) => host,
        }
    }

    /// Returns true if the value publishes the ports on which the guest listens (`auto`).
    #[must_use]
    pub fn is_auto(&self) -> bool {
        matches!(self.ports, PublishedPorts::Auto(_))
    }

    /// Returns true if the value is one with `auto` that publishes `port` while the guest listens on it.
    pub fn auto_contains(&self, protocol: Protocol, port: u16) -> bool {
        let PublishedPorts::Auto(ranges) = &self.ports else {
            return false;
        };
        let is_among = |ranges: &[PortRange]| ranges.iter().any(|range| range.contains(port));
        self.protocols.iter().any(|own| own == protocol)
            && (ranges.is_empty() || is_among(ranges))
            && !is_among(&self.excluded)
    }

    fn check(self) -> Result<Self, String> {
        if let (Some(address), Some(target)) = (self.address, self.target)
            && address.is_ipv4() != target.is_ipv4()
        {
            return Err(format!("{address} and {target} are of different families"));
        }
        if self.path == PublishedPath::GuestLoopback {
            if self.target.is_some() {
                return Err("via=guest-loopback excludes a target address".into());
            }
            if self.protocols != Protocols::Tcp {
                return Err("via=guest-loopback is for TCP only".into());
            }
        }
        if self.is_auto() && self.target.is_some() {
            return Err("'auto' excludes a target address".into());
        }
        let is_empty = match &self.ports {
            PublishedPorts::Range { .. } | PublishedPorts::List(_) => self.named().is_empty(),
            PublishedPorts::All => PortRange::ALL.without(&self.excluded).is_empty(),
            PublishedPorts::Auto(ranges) if ranges.is_empty() => {
                PortRange::ALL.without(&self.excluded).is_empty()
            }
            PublishedPorts::Auto(ranges) => self.without_excluded(ranges).is_empty(),
        };
        match is_empty {
            true => Err("all ports are excluded".into()),
            false => Ok(self),
        }
    }
}

impl FromStr for Publish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, path) = split_off_path(text)?;
        let (rest, protocols) = Protocols::split_off(rest)?;
        if rest.contains("::") && !rest.contains('[') {
            return Err("an IPv6 address goes in brackets: [ADDR]:PORTS".into());
        }
        let mut parts = split(rest).into_iter().peekable();
        let (address, interface) = match parts.next_if(|part| is_address(part) || part.contains('%')) {
            Some(part) => listen_address(part)?,
            None => (None, None),
        };
        let ports = parts
            .next()
            .ok_or("no port: the form is [ADDR:]PORTS[:[TARGET:]PORTS]")?;
        if is_address(ports) {
            return Err(format!("'{ports}' is not a port (1 to 65535)"));
        }
        let (listed, excluded) = port_list(ports)?;
        let target = parts.next_if(|part| is_address(part)).map(parse_address);
        let guest = parts.next();
        if let Some(extra) = parts.next() {
            return Err(format!(
                "'{extra}' is one part too many: the form is [ADDR:]PORTS[:[TARGET:]PORTS]"
            ));
        }
        let publish = Self {
            protocols,
            address,
            interface,
            ports: guest_ports(listed, guest)?,
            excluded,
            target: target.transpose()?,
            path,
        };
        publish.check()
    }
}

/// Splits `,via=PATH` off the end of a value.
///
/// # Errors
/// The text after `,via=` is not a path.
pub fn split_off_path(text: &str) -> Result<(&str, PublishedPath), String> {
    match text.split_once(",via=") {
        None => Ok((text, PublishedPath::Shortest)),
        Some((rest, "link")) => Ok((rest, PublishedPath::Link)),
        Some((rest, "guest-loopback")) => Ok((rest, PublishedPath::GuestLoopback)),
        Some((_, other)) => Err(format!("'{other}' is not a path (link, guest-loopback)")),
    }
}

/// Splits a value at its colons, except those within brackets.
pub fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let is_separator = |letter: char| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ':' && depth == 0
    };
    text.split(is_separator).collect()
}

/// Returns true if a part of a value is an address and not a list of ports: it contains a dot, a bracket, or a letter
/// that does not belong to `all` or `auto`.
pub fn is_address(part: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphabetic();
    let is_word = part.split(',').any(|word| word == "all" || word == "auto");
    part.contains(['.', '[', ']']) || part.contains(letter) && !is_word
}

/// Parses `ADDR`, `%IFACE` or `ADDR%IFACE`.
fn listen_address(part: &str) -> Result<(Option<IpAddr>, Option<String>), String> {
    let (address, interface) = match part.split_once('%') {
        // The displayed value would be parsed as one with an IPv6 address.
        Some((_, interface)) if interface.contains(['[', ']']) => {
            return Err(format!("'{interface}' is not a valid interface name"));
        }
        Some((address, interface)) => (address, Some(interface_name(interface)?)),
        None => (part, None),
    };
    let address = match address {
        "" => None,
        address => Some(parse_address(address)?),
    };
    Ok((address, interface))
}

/// Parses an IPv4 address, or an IPv6 address in brackets.
pub fn parse_address(text: &str) -> Result<IpAddr, String> {
    if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return inner
            .parse::<Ipv6Addr>()
            .map(IpAddr::V6)
            .map_err(|_| format!("'{inner}' is not an IPv6 address"));
    }
    text.parse::<Ipv4Addr>()
        .map(IpAddr::V4)
        .map_err(|_| format!("'{text}' is not an IPv4 address (an IPv6 address goes in brackets)"))
}

/// Parses the name of an interface by the rules of the kernel (`dev_valid_name`), and refuses the patterns (`%d`) that a
/// tap's name may have.
///
/// # Errors
/// The kernel permits no interface of this name.
pub fn interface_name(text: &str) -> Result<String, String> {
    let fits = |letter: char| letter.is_ascii_graphic() && !"/:%".contains(letter);
    match text {
        "" | "." | ".." => Err(format!("'{text}' is not a valid interface name")),
        _ if text.len() > 15 => Err(format!("interface name '{text}' is longer than 15 characters")),
        _ if !text.chars().all(fits) => Err(format!("'{text}' is not a valid interface name")),
        _ => Ok(text.to_owned()),
    }
}

/// Ports of the host as a value lists them, without the guest's.
enum Listed {
    Ranges(Vec<PortRange>),
    All,
    Auto(Vec<PortRange>),
}

/// Parses a list of ranges, excluded ranges, and the words `all` and `auto`.
fn port_list(text: &str) -> Result<(Listed, Vec<PortRange>), String> {
    let (mut ranges, mut excluded) = (Vec::new(), Vec::new());
    let (mut all, mut auto) = (false, false);
    for part in text.split(',') {
        match (part, part.strip_prefix('~')) {
            ("all", _) => all = true,
            ("auto", _) => auto = true,
            (_, Some(gap)) => excluded.push(gap.parse()?),
            (range, None) => ranges.push(range.parse()?),
        }
    }
    if ranges.len() > MOST_RANGES || excluded.len() > MOST_RANGES {
        return Err(format!("more than {MOST_RANGES} ranges"));
    }
    let listed = match (all, auto) {
        (true, true) => return Err("'all' and 'auto' exclude each other".into()),
        (true, false) if !ranges.is_empty() => return Err("'all' excludes other ports".into()),
        (true, false) => Listed::All,
        (false, true) => Listed::Auto(ranges),
        (false, false) if ranges.is_empty() => {
            return Err("no port from which to exclude others: a range, 'all' or 'auto'".into());
        }
        (false, false) => Listed::Ranges(ranges),
    };
    Ok((listed, excluded))
}

/// Combines the ports of the host with those of the guest.
fn guest_ports(listed: Listed, guest: Option<&str>) -> Result<PublishedPorts, String> {
    let guest: Option<PortRange> = guest.map(str::parse).transpose()?;
    match (listed, guest) {
        (Listed::Ranges(ranges), guest) if ranges.len() == 1 => {
            let guest = guest.unwrap_or(ranges[0]);
            if guest.count() != ranges[0].count() {
                return Err("the two ranges differ in length".into());
            }
            Ok(PublishedPorts::Range {
                host: ranges[0],
                guest: guest.first,
            })
        }
        (Listed::Ranges(_), Some(_)) => {
            Err("a list of ports excludes guest ports: one value for each range".into())
        }
        (Listed::All, Some(_)) => Err("'all' excludes guest ports: they are the host's".into()),
        (Listed::Auto(_), Some(_)) => Err("'auto' excludes guest ports: they are the host's".into()),
        (Listed::Ranges(ranges), None) => Ok(PublishedPorts::List(ranges)),
        (Listed::All, None) => Ok(PublishedPorts::All),
        (Listed::Auto(ranges), None) => Ok(PublishedPorts::Auto(ranges)),
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            write!(f, "{}", Bracketed(address))?;
        }
        if let Some(interface) = &self.interface {
            write!(f, "%{interface}")?;
        }
        if self.address.is_some() || self.interface.is_some() {
            write!(f, ":")?;
        }
        let (ranges, word): (&[PortRange], _) = match &self.ports {
            PublishedPorts::Range { host, .. } => (std::slice::from_ref(host), None),
            PublishedPorts::List(ranges) => (ranges, None),
            PublishedPorts::All => (&[], Some("all")),
            PublishedPorts::Auto(ranges) => (ranges, Some("auto")),
        };
        let ranges = ranges.iter().map(ToString::to_string);
        let excluded = self.excluded.iter().map(|range| format!("~{range}"));
        let parts: Vec<_> = ranges.chain(word.map(str::to_owned)).chain(excluded).collect();
        write!(f, "{}", parts.join(","))?;
        if let Some(target) = self.target {
            write!(f, ":{}", Bracketed(target))?;
        }
        if let PublishedPorts::Range { host, guest } = self.ports {
            let last = guest + (host.last - host.first);
            write!(f, ":{}", PortRange { first: guest, last })?;
        }
        write!(f, "/{}", self.protocols)?;
        match self.path {
            PublishedPath::Shortest | PublishedPath::FromGuest => Ok(()),
            PublishedPath::Link => write!(f, ",via=link"),
            PublishedPath::GuestLoopback => write!(f, ",via=guest-loopback"),
        }
    }
}

/// An address in the syntax of options: an IPv6 address in brackets.
pub struct Bracketed(pub IpAddr);

impl fmt::Display for Bracketed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(address) => write!(f, "[{address}]"),
        }
    }
}

#[cfg(test)]
mod tests;
