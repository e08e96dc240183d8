//! Rules of pesto's protocol: their form in messages, and their translation from and into values of `--publish`.

use std::net::{IpAddr, Ipv6Addr};

use pontoon_engine::address_plan::AddressPlan;
use pontoon_engine::config::{Protocol, PublishedPath};

use crate::publish::port_range::PortRange;
use crate::publish::spec::{PublishedPorts, interface_name};
use crate::publish::{Ports, Publish};

/// Length of a rule in a message.
pub(super) const LENGTH: usize = 56;

/// Length of the field of an interface's name, whose last byte is zero.
pub(super) const NAME: usize = 16;

/// Flag of a rule for the unspecified addresses of both families.
const DUAL_STACK: u8 = 1;

/// Flag of a rule of which not all ports need be open.
const WEAK: u8 = 2;

/// Flag of a rule whose ports are open while the guest listens on them.
const SCAN: u8 = 4;

/// Range of ports of the host that leads to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    protocol: Protocol,
    /// Address to listen on; `None` means the unspecified addresses of both families.
    address: Option<IpAddr>,
    interface: Option<String>,
    ports: PortRange,
    /// Port to which the first one leads.
    to: u16,
    /// Address to which the ports lead; `None` means the guest's own.
    target: Option<IpAddr>,
    weak: bool,
    scan: bool,
}

impl Rule {
    /// Appends the rule in its form in messages.
    pub(super) fn write(&self, message: &mut Vec<u8>) {
        let address = |address: Option<IpAddr>| match address {
            None => Ipv6Addr::UNSPECIFIED,
            Some(IpAddr::V4(v4)) => v4.to_ipv6_mapped(),
            Some(IpAddr::V6(v6)) => v6,
        };
        message.extend(address(self.address).octets());
        message.extend(address(self.target).octets());
        let mut name = [0; NAME];
        for (octet, letter) in name
            .iter_mut()
            .zip(self.interface.iter().flat_map(|name| name.bytes()))
        {
            *octet = letter;
        }
        message.extend(name);
        for port in [self.ports.first, self.ports.last, self.to] {
            message.extend(port.to_be_bytes());
        }
        message.push(match self.protocol {
            Protocol::Tcp => TCP,
            Protocol::Udp => UDP,
        });
        let flags = [
            (self.address.is_none(), DUAL_STACK),
            (self.weak, WEAK),
            (self.scan, SCAN),
        ];
        let set = flags.into_iter().filter(|(is_set, _)| *is_set);
        message.push(set.map(|(_, flag)| flag).sum());
    }

    /// Parses a rule.
    ///
    /// # Errors
    /// A field has a value that the protocol excludes.
    pub(super) fn parse(bytes: &[u8; LENGTH]) -> Result<Self, String> {
        let octets = |at: usize| -> [u8; 16] { std::array::from_fn(|index| bytes[at + index]) };
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let address = |at| Ipv6Addr::from(octets(at)).to_canonical();
        let (first, last, to) = (port(48), port(50), port(52));
        let flags = bytes[55];
        let name = &bytes[32..32 + NAME];
        let (protocol, listens, target) = (bytes[54], address(0), address(16));
        if first == 0 || first > last {
            return Err(format!("invalid ports {first}-{last}"));
        }
        if to == 0 || to.checked_add(last - first).is_none() {
            return Err(format!("invalid port {to} of the guest"));
        }
        if flags & !(DUAL_STACK | WEAK | SCAN) != 0 {
            return Err(format!("invalid flags {flags:#x}"));
        }
        let is_dual = flags & DUAL_STACK != 0;
        let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        if is_dual && listens != any {
            return Err(format!("{listens} is not an address of both families"));
        }
        if name[NAME - 1] != 0 {
            return Err("an interface name without an end".to_owned());
        }
        let name = name.split(|octet| *octet == 0).next().unwrap_or_default();
        let name = std::str::from_utf8(name).map_err(|_| "an interface name that is not text".to_owned())?;
        Ok(Self {
            protocol: match protocol {
                TCP => Protocol::Tcp,
                UDP => Protocol::Udp,
                other => return Err(format!("protocol {other} is not TCP or UDP")),
            },
            address: (!is_dual).then_some(listens),
            interface: (!name.is_empty()).then(|| interface_name(name)).transpose()?,
            ports: PortRange { first, last },
            to,
            target: (!target.is_unspecified()).then_some(target),
            weak: flags & WEAK != 0,
            scan: flags & SCAN != 0,
        })
    }

    /// Returns the rules of a value of `--publish`.
    pub(super) fn of(value: &Publish, plan: &AddressPlan) -> Vec<Self> {
        let any = Ipv6Addr::UNSPECIFIED.into();
        let address = match (value.listens_at(), &plan.v4, &plan.v6) {
            (None, None, Some(_)) => Some(any),
            (None, Some(_), None) => Some(std::net::Ipv4Addr::UNSPECIFIED.into()),
            (address, _, _) => address,
        };
        let is_whole = matches!(&value.ports, PublishedPorts::Auto(ranges) if ranges.is_empty());
        let ranges = Ports::ranges(value);
        let of_protocol = |protocol| {
            ranges.iter().map(move |ports| Self {
                protocol,
                address,
                interface: value.interface.clone(),
                ports: *ports,
                to: value.guest_port(ports.first),
                target: value.target,
                weak: is_whole || value.ports == PublishedPorts::All,
                scan: value.is_auto(),
            })
        };
        value.protocols.iter().flat_map(of_protocol).collect()
    }

    /// Returns the value of `--publish` that has this rule. The data of clients on this host takes the path `path`, if it can.
    ///
    /// # Errors
    /// There is no such value.
    pub(super) fn value(&self, path: PublishedPath) -> Result<Publish, String> {
        let ports = match (self.weak, self.scan) {
            (false, false) => PublishedPorts::Range {
                host: self.ports,
                guest: self.to,
            },
            _ if self.to != self.ports.first => {
                return Err(format!("ports {} lead to other ports of the guest", self.ports));
            }
            (_, true) if self.target.is_some() => {
                return Err(format!(
                    "the guest's ports {} are not those of an address",
                    self.ports
                ));
            }
            (_, true) => PublishedPorts::Auto(vec![self.ports]),
            (true, false) => PublishedPorts::All,
        };
        if let (Some(address), Some(target)) = (self.address, self.target)
            && address.is_ipv4() != target.is_ipv4()
        {
            return Err(format!("{address} and {target} are of different families"));
        }
        if self.address.is_none()
            && let Some(target) = self.target
        {
            return Err(format!("an address of both families cannot lead to {target}"));
        }
        let has_path = self.protocol == Protocol::Tcp && self.target.is_none();
        Ok(Publish {
            protocols: self.protocol.into(),
            address: self.address,
            interface: self.interface.clone(),
            excluded: match ports {
                PublishedPorts::All => PortRange::ALL.without(&[self.ports]),
                _ => Vec::new(),
            },
            ports,
            target: self.target,
            path: if has_path { path } else { PublishedPath::Shortest },
        })
    }
}

/// Numbers of the protocols (IANA).
const TCP: u8 = 6;
const UDP: u8 = 17;
