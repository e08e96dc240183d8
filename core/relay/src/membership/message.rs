//! Parses and builds IGMP and MLD packets, including their IP headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use pontoon_wire::checksum::Sum;

mod parse;

pub use parse::parse;

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
        /// The group, the senders and the maximum response time of the query.
        query: Query,
        /// S flag, "Suppress Router-Side Processing" (RFC 3376 section 4.1.5, RFC 3810 section 5.1.7): routers that receive
        /// the query do not change timers. False in older protocol versions, which do not have it.
        suppress: bool,
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

/// An IGMP or MLD query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The group that is queried; `None` in a general query.
    pub group: Option<IpAddr>,
    /// The senders that are queried; empty in a query for a whole group.
    pub sources: Vec<IpAddr>,
    /// Maximum response time: time within which hosts report (RFC 3376 section 4.1.1, RFC 3810 section 5.1.3).
    pub(super) max_response_time: Duration,
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

/// Robustness variable and query interval in seconds, as a query carries them (RFC 3376 sections 4.1.6 and 4.1.7).
const ROBUSTNESS: u8 = 2;
const QUERY_INTERVAL: u8 = 125;

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
