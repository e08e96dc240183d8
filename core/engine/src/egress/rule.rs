//! Parses and displays the text of egress rules.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pontoon_names::HostName;
use crate::state::record_enum;

/// An egress rule: an action, and the destinations to which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressRule {
    /// The rule's action, `allow` or `deny`.
    pub action: Action,
    /// Destinations to which the rule applies.
    pub to: Match,
}

/// Action of an egress rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The guest may reach the destinations of the rule.
    Allow,
    /// The guest may not reach the destinations of the rule.
    Deny,
}

/// Protocols of packets to which an egress rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EgressProtocol {
    /// TCP connections.
    Tcp,
    /// UDP datagrams.
    Udp,
    /// ICMP and ICMPv6 echo requests.
    Icmp,
}

record_enum! { EgressProtocol { 0 = Tcp, 1 = Udp, 2 = Icmp } }

/// Proof that a connection leads to the domain of an egress rule, and not to another one with the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The ClientHello of TLS names a host that the rule's target matches.
    Tls,
    /// As [`Self::Tls`], and the ClientHello has no extension encrypted_client_hello.
    TlsStrict,
}

/// Destinations of an egress rule: `TARGET[:PORT[-END]][/tcp|/udp|/icmp|/tls|/tls-strict]`, where TARGET is a network, an
/// address, a domain, `*.` and a domain, or `*`. An IPv6 address with ports is in brackets. A rule with `/tls` or
/// `/tls-strict` has a domain and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Addresses or domain names that the rule matches.
    pub target: Target,
    /// First and last port of a range; `None` matches any port, and ICMP.
    pub ports: Option<(u16, u16)>,
    /// Protocol that the rule matches; `None` matches all protocols or, with ports, TCP and UDP.
    pub protocol: Option<EgressProtocol>,
    /// Proof that the rule requires of a connection; its protocol is then TCP.
    pub proof: Option<Proof>,
}

/// Addresses or domain names that an egress rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All IP addresses (`*` in the text of a rule).
    Any,
    /// The IP addresses of a network.
    Net(IpNet),
    /// The addresses of the names that this pattern matches.
    Name(Pattern),
}

/// Domain names that an egress rule matches, in lower case without a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// This domain name only.
    Exactly(String),
    /// Names below this domain, of any number of labels, but not the domain itself.
    Below(String),
}

impl Match {
    /// Returns true if the rule matches this protocol and port; the address is not compared.
    #[must_use]
    pub fn is_for(&self, protocol: EgressProtocol, port: Option<u16>) -> bool {
        let of_protocol = match (self.protocol, self.ports) {
            (Some(of), _) => of == protocol,
            (None, Some(_)) => protocol != EgressProtocol::Icmp,
            (None, None) => true,
        };
        let of_port = match (self.ports, port) {
            (Some((first, last)), Some(port)) => (first..=last).contains(&port),
            (Some(_), None) | (None, _) => true,
        };
        of_protocol && of_port
    }
}

impl Pattern {
    /// Returns true if the pattern matches `name`, which is in lower case without a trailing dot.
    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exactly(own) => own == name,
            Self::Below(parent) => name
                .strip_suffix(parent.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        }
    }
}

impl FromStr for EgressRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (action, to) = match text.split_once(' ') {
            Some(("allow", to)) => (Action::Allow, to),
            Some(("deny", to)) => (Action::Deny, to),
            Some(_) | None => {
                return Err(format!(
                    "'{text}' is not a rule (the form is: allow TARGET or deny TARGET)"
                ));
            }
        };
        Self::new(action, to.parse()?)
    }
}

impl EgressRule {
    /// Creates a rule.
    ///
    /// # Errors
    /// A deny rule requires a proof. The connection would not be denied without it.
    pub fn new(action: Action, to: Match) -> Result<Self, String> {
        match (to.proof, action) {
            (Some(_), Action::Deny) => Err(format!("'deny {to}': a deny rule requires no proof")),
            (Some(_), Action::Allow) | (None, _) => Ok(Self { action, to }),
        }
    }
}

impl FromStr for Match {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, protocol, proof) = match text.rsplit_once('/') {
            Some((text, "tcp")) => (text, Some(EgressProtocol::Tcp), None),
            Some((text, "udp")) => (text, Some(EgressProtocol::Udp), None),
            Some((text, "icmp")) => (text, Some(EgressProtocol::Icmp), None),
            Some((text, "tls")) => (text, Some(EgressProtocol::Tcp), Some(Proof::Tls)),
            Some((text, "tls-strict")) => (text, Some(EgressProtocol::Tcp), Some(Proof::TlsStrict)),
            Some(_) | None => (text, None, None),
        };
        let (target, ports) = split_ports(text)?;
        if ports.is_some() && protocol == Some(EgressProtocol::Icmp) {
            return Err("ICMP has no ports".into());
        }
        let (target, ports): (Target, _) = (target.parse()?, ports.map(parse_ports).transpose()?);
        if let Some(proof) = proof
            && (!matches!(target, Target::Name(_)) || ports.is_none())
        {
            return Err(format!("'/{proof}' needs a domain and a port"));
        }
        Ok(Self {
            target,
            ports,
            protocol,
            proof,
        })
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Net(address.to_canonical().into()));
        }
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(Self::Net(plain(net.trunc())));
        }
        let pattern = match text.strip_prefix("*.") {
            Some(parent) => domain(parent).map(Pattern::Below),
            None => domain(text).map(Pattern::Exactly),
        };
        pattern
            .map(Self::Name)
            .ok_or_else(|| format!("'{text}' is neither a network, an address nor a domain"))
    }
}

/// Converts an IPv4-mapped network (RFC 4291 section 2.5.5.2) to IPv4, because no packet has an IPv4-mapped address.
fn plain(net: IpNet) -> IpNet {
    match net {
        IpNet::V6(v6) if v6.prefix_len() >= MAPPED => {
            let v4 = v6.addr().to_ipv4_mapped();
            v4.and_then(|v4| Ipv4Net::new(v4, v6.prefix_len() - MAPPED).ok())
                .map_or(net, IpNet::V4)
        }
        IpNet::V4(_) | IpNet::V6(_) => net,
    }
}

/// Prefix length of `::ffff:0:0/96`, the IPv4-mapped addresses.
const MAPPED: u8 = 96;

/// Splits the text of a destination into target and ports.
fn split_ports(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inner, after) = rest.split_once(']').ok_or("a bracket is not closed")?;
        return match (inner.contains(':'), after.strip_prefix(':')) {
            (true, Some(ports)) => Ok((inner, Some(ports))),
            (true, None) if after.is_empty() => Ok((inner, None)),
            _ => Err(format!("'{text}' is not [IPV6]:PORTS")),
        };
    }
    match text.split_once(':') {
        Some((target, ports)) if !ports.contains(':') => Ok((target, Some(ports))),
        // The text is an IPv6 address or network without ports.
        Some(_) if text.parse::<Ipv6Addr>().is_ok() || text.parse::<Ipv6Net>().is_ok() => Ok((text, None)),
        Some(_) => Err(format!("'{text}': an IPv6 address with ports goes in brackets")),
        None => Ok((text, None)),
    }
}

fn parse_ports(text: &str) -> Result<(u16, u16), String> {
    let port = |text: &str| match text.parse() {
        Ok(port @ 1..) => Ok(port),
        _ => Err(format!("'{text}' is not a port (1 to 65535)")),
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u16, u16) = (port(first)?, port(last)?);
    if last < first {
        return Err(format!("'{text}' ends before it begins"));
    }
    Ok((first, last))
}

/// Parses a domain name, and returns it in its normal form.
fn domain(text: &str) -> Option<String> {
    text.parse::<HostName>().ok().map(String::from)
}

impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.action, self.to)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.target, self.ports) {
            (Target::Net(net @ IpNet::V6(_)), Some(_)) => write!(f, "[{}]", short(net))?,
            (Target::Net(net), _) => write!(f, "{}", short(net))?,
            (Target::Any, _) => f.write_str("*")?,
            (Target::Name(Pattern::Exactly(name)), _) => f.write_str(name)?,
            (Target::Name(Pattern::Below(parent)), _) => write!(f, "*.{parent}")?,
        }
        match self.ports {
            Some((first, last)) if first == last => write!(f, ":{first}")?,
            Some((first, last)) => write!(f, ":{first}-{last}")?,
            None => {}
        }
        match (self.proof, self.protocol) {
            (Some(proof), _) => write!(f, "/{proof}"),
            (None, Some(protocol)) => write!(f, "/{protocol}"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "tls",
            Self::TlsStrict => "tls-strict",
        })
    }
}

impl fmt::Display for EgressProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}

/// Returns the text of a network; one with a single address is displayed as that address.
fn short(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() {
        return net.addr().to_string();
    }
    net.to_string()
}
