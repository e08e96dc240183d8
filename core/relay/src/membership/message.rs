//! Parses and builds IGMP and MLD packets, including their IP headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use pontoon_wire::checksum::Sum;

/// A parsed IGMP or MLD message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A host's report or leave message.
    Reports {
        /// Source address of the report: the host's.
        from: IpAddr,
        /// Group records.
        records: Vec<Record>,
    },
    /// A query that another router has sent.
    Query {
        /// Source address of the query: the other router's.
        from: IpAddr,
        /// The group that is queried; `None` in a general query.
        group: Option<IpAddr>,
        /// The senders that are queried; empty in a query for a whole group.
        sources: Vec<IpAddr>,
    },
}

/// A group record of a host's report, or the equivalent of an older protocol version (RFC 3376 section 4.2.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Multicast group to which the record applies.
    pub group: IpAddr,
    /// The change of the host's source filter for the group.
    pub change: SourceChange,
}

/// A change of a host's source filter for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceChange {
    /// Datagrams of any sender are requested (EXCLUDE mode; the list of excluded senders is ignored).
    Any,
    /// Datagrams of these senders are requested (INCLUDE mode).
    Include {
        /// Senders. An empty list with `exclusive` is a leave.
        sources: Vec<IpAddr>,
        /// True if datagrams of all other senders are no longer requested (CHANGE_TO_INCLUDE_MODE).
        exclusive: bool,
    },
    /// Datagrams of these senders are no longer requested (BLOCK_OLD_SOURCES).
    Block(Vec<IpAddr>),
}

/// An IGMP or MLD query that this router sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The group that is queried; `None` in a general query.
    pub group: Option<IpAddr>,
    /// The senders that are queried; empty in a query for a whole group.
    pub sources: Vec<IpAddr>,
    /// Maximum response time: time within which hosts report (RFC 3376 section 4.1.1).
    max_response_time: Duration,
}

impl Query {
    /// Returns a general query, which asks for the memberships in all groups.
    #[must_use]
    pub fn general() -> Self {
        Self {
            group: None,
            sources: Vec::new(),
            max_response_time: Duration::from_secs(10),
        }
    }

    /// Returns a group-specific query.
    #[must_use]
    pub fn group(group: IpAddr) -> Self {
        Self::sources(group, Vec::new())
    }

    /// Returns a group-and-source-specific query.
    #[must_use]
    pub fn sources(group: IpAddr, sources: Vec<IpAddr>) -> Self {
        Self {
            group: Some(group),
            sources,
            max_response_time: Duration::from_secs(1),
        }
    }

    /// Returns the IP packet of the query with source address `own`, and its destination; `None` if the families
    /// differ.
    #[must_use]
    pub fn packet(&self, own: IpAddr) -> Option<(Vec<u8>, IpAddr)> {
        match own {
            IpAddr::V4(own) => self.v4(own),
            IpAddr::V6(own) => self.v6(own),
        }
    }

    /// Builds an IGMPv3 query (RFC 3376 section 4.1), in IPv4 with the router alert option (RFC 2113).
    fn v4(&self, own: Ipv4Addr) -> Option<(Vec<u8>, IpAddr)> {
        let group = match self.group {
            None => Ipv4Addr::UNSPECIFIED,
            Some(IpAddr::V4(group)) => group,
            Some(IpAddr::V6(_)) => return None,
        };
        let to = self.group.unwrap_or(IpAddr::V4(ALL_SYSTEMS));
        let IpAddr::V4(destination) = to else {
            return None;
        };
        let tenths = u8::try_from(self.max_response_time.as_millis() / 100).unwrap_or(u8::MAX >> 1);
        let mut message = vec![IGMP_QUERY, tenths, 0, 0];
        message.extend(group.octets());
        message.extend([ROBUSTNESS, QUERY_INTERVAL]);
        message.extend(u16::try_from(self.sources.len()).ok()?.to_be_bytes());
        for source in &self.sources {
            let IpAddr::V4(source) = source else {
                return None;
            };
            message.extend(source.octets());
        }
        let sum = Sum::new().add(&message).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());

        let total = u16::try_from(24 + message.len()).ok()?;
        // Version 4 and header length of six words, DSCP CS6 (internetwork control), ...
        let mut packet = vec![0x46, 0xc0];
        packet.extend(total.to_be_bytes());
        // ... DF, TTL 1, ...
        packet.extend([0, 0, 0x40, 0, 1, IGMP, 0, 0]);
        packet.extend(own.octets());
        packet.extend(destination.octets());
        // ... router alert option.
        packet.extend([0x94, 4, 0, 0]);
        let sum = Sum::new().add(&packet).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.append(&mut message);
        Some((packet, to))
    }

    /// Builds an MLDv2 query (RFC 3810 section 5.1), in IPv6 with the router alert option (RFC 2711).
    fn v6(&self, own: Ipv6Addr) -> Option<(Vec<u8>, IpAddr)> {
        let group = match self.group {
            None => Ipv6Addr::UNSPECIFIED,
            Some(IpAddr::V6(group)) => group,
            Some(IpAddr::V4(_)) => return None,
        };
        let to = match self.group {
            None => ALL_NODES,
            Some(_) => group,
        };
        let milliseconds = u16::try_from(self.max_response_time.as_millis()).unwrap_or(u16::MAX >> 1);
        let mut message = vec![MLD_QUERY, 0, 0, 0];
        message.extend(milliseconds.to_be_bytes());
        message.extend([0, 0]);
        message.extend(group.octets());
        message.extend([ROBUSTNESS, QUERY_INTERVAL]);
        message.extend(u16::try_from(self.sources.len()).ok()?.to_be_bytes());
        for source in &self.sources {
            let IpAddr::V6(source) = source else {
                return None;
            };
            message.extend(source.octets());
        }
        let sum = Sum::pseudo(own.into(), to.into(), ICMPV6, message.len()).add(&message);
        message[2..4].copy_from_slice(&sum.finish().to_be_bytes());

        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(u16::try_from(8 + message.len()).ok()?.to_be_bytes());
        packet.extend([HOP_BY_HOP, 1]);
        packet.extend(own.octets());
        packet.extend(to.octets());
        packet.extend([ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
        packet.append(&mut message);
        Some((packet, to.into()))
    }
}

/// Parses a packet that begins with the IP header; returns `None` if it is not a valid IGMP or MLD message.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Message> {
    match packet.first()? >> 4 {
        4 => igmp(packet),
        6 => mld(packet),
        _ => None,
    }
}

fn igmp(packet: &[u8]) -> Option<Message> {
    let header_len = usize::from(packet[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes(array(packet, 2)?));
    let header = packet.get(..header_len).filter(|header| header.len() >= 20)?;
    let message = packet.get(header_len..total)?;
    // RFC 3376 section 4: a TTL of 1. That does not prove that the message was sent on this link, because a remote host
    // can choose a TTL that routers decrement to 1. A group address as destination does, because routers do not route
    // it to this host.
    if header[9] != IGMP || header[8] != 1 || header[16] >> 4 != 0xe || Sum::new().add(message).finish() != 0
    {
        return None;
    }
    let from = IpAddr::V4(Ipv4Addr::from(array(header, 12)?));
    let group = IpAddr::V4(Ipv4Addr::from(array(message, 4)?));
    let one = |change| {
        Some(Message::Reports {
            from,
            records: vec![Record { group, change }],
        })
    };
    match message[0] {
        IGMP_QUERY => {
            let group = Some(group).filter(|group| !group.is_unspecified());
            let to = IpAddr::V4(Ipv4Addr::from(array(header, 16)?));
            if to != group.unwrap_or(IpAddr::V4(ALL_SYSTEMS)) {
                return None;
            }
            let count = message.get(10..12).map_or(0, count);
            Some(Message::Query {
                from,
                group,
                sources: addresses(message.get(12..).unwrap_or_default(), count, V4)?,
            })
        }
        IGMP_REPORT_1 | IGMP_REPORT_2 => one(SourceChange::Any),
        IGMP_LEAVE => one(LEAVE),
        IGMP_REPORT_3 => records(message, from, V4),
        _ => None,
    }
}

fn mld(packet: &[u8]) -> Option<Message> {
    let len = usize::from(u16::from_be_bytes(array(packet, 4)?));
    let body = packet.get(40..40 + len)?;
    // Hop limit 1, and a hop-by-hop options header with the router alert before the message (RFC 3810 section 5).
    if packet[7] != 1 || packet[6] != HOP_BY_HOP || *body.first()? != ICMPV6 {
        return None;
    }
    let message = body.get(8 + 8 * usize::from(*body.get(1)?)..)?;
    let (from, to) = (v6(packet, 8)?, v6(packet, 24)?);
    // RFC 2710 section 3, RFC 3810 section 5: a link-local source address proves that the message was sent on this
    // link.
    let IpAddr::V6(source) = from else {
        return None;
    };
    // A host that has no address yet reports from ::, and a router discards that report (RFC 3810 section 5.2.13): the
    // host reports again when it has an address.
    if !source.is_unicast_link_local() {
        return None;
    }
    if Sum::pseudo(from, to, ICMPV6, message.len()).add(message).finish() != 0 {
        return None;
    }
    if *message.first()? == MLD_REPORT_2 {
        return records(message, from, V6);
    }
    let group = v6(message, 8)?;
    let one = |change| {
        Some(Message::Reports {
            from,
            records: vec![Record { group, change }],
        })
    };
    match message[0] {
        MLD_QUERY => {
            let group = Some(group).filter(|group| !group.is_unspecified());
            if to != group.unwrap_or(IpAddr::V6(ALL_NODES)) {
                return None;
            }
            let count = message.get(26..28).map_or(0, count);
            Some(Message::Query {
                from,
                group,
                sources: addresses(message.get(28..).unwrap_or_default(), count, V6)?,
            })
        }
        MLD_REPORT_1 => one(SourceChange::Any),
        MLD_DONE => one(LEAVE),
        _ => None,
    }
}

/// Parses group records (RFC 3376 section 4.2.4, RFC 3810 section 5.2.5), whose layout is the same in IGMP and MLD:
/// type, number of words of auxiliary data, number of sources, group, sources, auxiliary data.
fn records(message: &[u8], from: IpAddr, bytes: usize) -> Option<Message> {
    let count = count(message.get(6..8)?);
    let mut rest = message.get(8..)?;
    let mut records = Vec::new();
    for _ in 0..count {
        let (kind, words) = (*rest.first()?, usize::from(*rest.get(1)?));
        let senders = self::count(rest.get(2..4)?);
        let group = address(rest.get(4..4 + bytes)?)?;
        let sources = addresses(rest.get(4 + bytes..)?, senders, bytes)?;
        rest = rest.get(4 + bytes * (1 + senders) + 4 * words..)?;
        let change = match kind {
            // MODE_IS_EXCLUDE and CHANGE_TO_EXCLUDE_MODE.
            2 | 4 => SourceChange::Any,
            1 | 3 => SourceChange::Include {
                sources,
                exclusive: kind == 3,
            },
            5 => SourceChange::Include {
                sources,
                exclusive: false,
            },
            6 => SourceChange::Block(sources),
            _ => continue,
        };
        records.push(Record { group, change });
    }
    Some(Message::Reports { from, records })
}

fn addresses(bytes: &[u8], count: usize, each: usize) -> Option<Vec<IpAddr>> {
    bytes
        .get(..count * each)?
        .chunks_exact(each)
        .map(address)
        .collect()
}

/// Parses an IP address of 4 or 16 bytes.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        V4 => Some(Ipv4Addr::from(array(bytes, 0)?).into()),
        _ => v6(bytes, 0),
    }
}

fn v6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    Some(Ipv6Addr::from(array::<16>(bytes, at)?).into())
}

/// Parses a big-endian 16-bit number of records or sources.
fn count(bytes: &[u8]) -> usize {
    array(bytes, 0).map_or(0, u16::from_be_bytes).into()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Change of the source filter that ends a membership: INCLUDE mode without senders.
const LEAVE: SourceChange = SourceChange::Include {
    sources: Vec::new(),
    exclusive: true,
};

/// Robustness variable and query interval in seconds, as a query carries them (RFC 3376 sections 4.1.6 and 4.1.7).
const ROBUSTNESS: u8 = 2;
const QUERY_INTERVAL: u8 = 125;

/// Length in bytes of an IPv4 address, followed by that of an IPv6 address.
const V4: usize = 4;
const V6: usize = 16;

/// Destinations of general queries (RFC 3376 section 4.1.12, RFC 3810 section 5.1.15). A query for a group is sent to the group.
const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const IGMP: u8 = 2;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;

const IGMP_QUERY: u8 = 0x11;
const IGMP_REPORT_1: u8 = 0x12;
const IGMP_REPORT_2: u8 = 0x16;
const IGMP_LEAVE: u8 = 0x17;
const IGMP_REPORT_3: u8 = 0x22;
const MLD_QUERY: u8 = 130;
const MLD_REPORT_1: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_REPORT_2: u8 = 143;
