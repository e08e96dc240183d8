//! Parses IGMP and MLD packets. A packet that hosts discard is refused: a query that no host answers would otherwise end
//! the memberships of those hosts, or this router's role as querier.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use pontoon_wire::checksum::Sum;

use super::*;

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
    if header[9] != IGMP || header[8] != 1 || header[16] >> 4 != 0xe {
        return None;
    }
    // A fragment is not a whole message: it has an offset, or more fragments follow.
    let is_fragment = u16::from_be_bytes(array(header, 6)?) & 0x3fff != 0;
    if is_fragment || [header, message].map(|bytes| Sum::new().add(bytes).finish()) != [0, 0] {
        return None;
    }
    let source = Ipv4Addr::from(array(header, 12)?);
    let options = ipv4_options(&header[20..])?;
    if !can_be_source(source) {
        return None;
    }
    let from = IpAddr::V4(source);
    let group = IpAddr::V4(Ipv4Addr::from(array(message, 4)?));
    match message[0] {
        IGMP_QUERY => {
            let to = IpAddr::V4(Ipv4Addr::from(array(header, 16)?));
            // Hosts should ignore queries of IGMPv2 and IGMPv3 without the router alert option (RFC 3376 section 9.1). Linux
            // hosts respond to them, and not all queriers set it, so they are accepted here.
            igmp_query(message, to)
                .filter(|_| !options.others)
                .map(|(query, suppress)| Message::Query {
                    from,
                    query,
                    suppress,
                })
        }
        IGMP_REPORT_1 | IGMP_REPORT_2 => Some(one_record(from, group, SourceChange::Any)),
        IGMP_LEAVE => Some(one_record(from, group, LEAVE)),
        IGMP_REPORT_3 => records(message, from, V4),
        _ => None,
    }
}

/// Parses an IGMP query whose IP destination is `to`, and its S flag. The length distinguishes the versions, and a query
/// of another length is ignored (RFC 3376 section 7.1).
fn igmp_query(message: &[u8], to: IpAddr) -> Option<(Query, bool)> {
    let group = Ipv4Addr::from(array(message, 4)?);
    let code = message[1];
    match message.len() {
        // IGMPv1: hosts ignore the group and report within 10 seconds (RFC 1112 appendix I, RFC 3376 section 7.2.1).
        8 if code == 0 => query(Ipv4Addr::UNSPECIFIED.into(), to, Vec::new(), RESPONSE_TIME_1),
        8 => query(
            group.into(),
            to,
            Vec::new(),
            Duration::from_millis(100) * code.into(),
        ),
        12.. => {
            let sources = addresses(&message[12..], count(&message[10..]), V4)?;
            // RFC 3376 section 4.1.1: tenths of a second, from 128 on as a floating-point number.
            let tenths = match u32::from(code) {
                code @ 128.. => (code & 0xf | 0x10) << ((code >> 4 & 7) + 3),
                code => code,
            };
            query(group.into(), to, sources, Duration::from_millis(100) * tenths)
        }
        _ => None,
    }
    .map(|query| (query, message.get(8).is_some_and(|flags| flags & SUPPRESS != 0)))
}

fn mld(packet: &[u8]) -> Option<Message> {
    let len = usize::from(u16::from_be_bytes(array(packet, 4)?));
    let body = packet.get(40..40 + len)?;
    // Hop limit 1, and a hop-by-hop options header before the message (RFC 3810 section 5).
    if packet[7] != 1 || packet[6] != HOP_BY_HOP || *body.first()? != ICMPV6 {
        return None;
    }
    let header_len = 8 + 8 * usize::from(*body.get(1)?);
    let options = hop_by_hop_options(body.get(2..header_len)?)?;
    // Hosts and routers drop messages without the router alert option (RFC 3810 sections 6.2 and 7.4).
    if !options.router_alert {
        return None;
    }
    let message = body.get(header_len..)?;
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
    match message[0] {
        MLD_QUERY => mld_query(message, to)
            .filter(|_| !options.others)
            .map(|(query, suppress)| Message::Query {
                from,
                query,
                suppress,
            }),
        MLD_REPORT_1 => Some(one_record(from, group, SourceChange::Any)),
        MLD_DONE => Some(one_record(from, group, LEAVE)),
        _ => None,
    }
}

/// Parses an MLD query whose IP destination is `to`, and its S flag. The length distinguishes the versions, and a query
/// of another length is ignored (RFC 3810 section 8.1).
fn mld_query(message: &[u8], to: IpAddr) -> Option<(Query, bool)> {
    let group = v6(message, 8)?;
    let code = u32::from(u16::from_be_bytes(array(message, 4)?));
    let milliseconds = |count: u32| Duration::from_millis(count.into());
    match message.len() {
        24 => query(group, to, Vec::new(), milliseconds(code)),
        28.. => {
            let sources = addresses(&message[28..], count(&message[26..]), V6)?;
            // RFC 3810 section 5.1.3: from 32768 on, a floating-point number.
            let code = match code {
                0x8000.. => (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3),
                _ => code,
            };
            query(group, to, sources, milliseconds(code))
        }
        _ => None,
    }
    .map(|query| (query, message.get(24).is_some_and(|flags| flags & SUPPRESS != 0)))
}

/// Returns the query for `group`, which is unspecified in a general query. Returns `None` for a query that hosts may not
/// receive or that they discard: a general query that is not sent to all hosts or that names senders, and a query for a
/// group that is not sent to the group.
fn query(group: IpAddr, to: IpAddr, sources: Vec<IpAddr>, max_response_time: Duration) -> Option<Query> {
    let is_sent_to_hosts = match group {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => to == IpAddr::V4(ALL_SYSTEMS) && sources.is_empty(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => to == IpAddr::V6(ALL_NODES) && sources.is_empty(),
        group => to == group && group.is_multicast(),
    };
    is_sent_to_hosts.then_some(Query {
        group: Some(group).filter(|group| !group.is_unspecified()),
        sources,
        max_response_time,
    })
}

/// Returns true if a host accepts an IGMP message from the address (RFC 1122 section 3.2.1.3). Hosts that have no address
/// yet report from 0.0.0.0 (RFC 3376 section 4.2.13).
fn can_be_source(source: Ipv4Addr) -> bool {
    let is_this_network = source.octets()[0] == 0 && !source.is_unspecified();
    !(source.is_loopback() || source.is_multicast() || source.is_broadcast() || is_this_network)
}

/// Options of an IPv4 header or of an IPv6 hop-by-hop options header.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    /// True if there is a router alert option for MLD (RFC 2711 section 2.1) or for every router (RFC 2113).
    router_alert: bool,
    /// True if there are options other than router alert and padding. A query with such an option, for example a source
    /// route, is refused, because some hosts discard it.
    others: bool,
}

/// Parses the options of an IPv4 header; returns `None` if a length is invalid (RFC 1122 section 3.2.1.8).
fn ipv4_options(mut bytes: &[u8]) -> Option<Options> {
    let mut options = Options::default();
    while let Some(kind) = bytes.first() {
        let len = match kind {
            // End of option list, no operation.
            0 => break,
            1 => 1,
            _ => usize::from(*bytes.get(1)?),
        };
        let (option, rest) = bytes.split_at_checked(len).filter(|_| len > 0)?;
        match option {
            [1] => {}
            [0x94, 4, 0, 0] => options.router_alert = true,
            [_, _, ..] => options.others = true,
            _ => return None,
        }
        bytes = rest;
    }
    Some(options)
}

/// Parses the options of a hop-by-hop options header. Returns `None` if a length is invalid, or if there is an unknown
/// option with which a packet is discarded (RFC 8200 section 4.2).
fn hop_by_hop_options(mut bytes: &[u8]) -> Option<Options> {
    let mut options = Options::default();
    let mut padding = 0;
    while let Some(kind) = bytes.first() {
        let len = match kind {
            0 => 1,
            _ => 2 + usize::from(*bytes.get(1)?),
        };
        let (option, rest) = bytes.split_at_checked(len)?;
        bytes = rest;
        if let 0 | 1 = kind {
            padding += len;
            // Hosts may discard padding of more than 7 bytes or other than zeros (RFC 4942 section 2.1.9.5).
            options.others |= padding > 7 || option.iter().skip(2).any(|byte| *byte != 0);
            continue;
        }
        padding = 0;
        match option {
            [5, 2, 0, 0] => options.router_alert = true,
            [5, 2, ..] => options.others = true,
            [5, ..] => return None,
            [kind, ..] if *kind >= 0x40 => return None,
            _ => options.others = true,
        }
    }
    Some(options)
}

fn one_record(from: IpAddr, group: IpAddr, change: SourceChange) -> Message {
    Message::Reports {
        from,
        records: vec![Record { group, change }],
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

/// Lengths in bytes of an IPv4 and of an IPv6 address.
const V4: usize = 4;
const V6: usize = 16;

/// S flag of a query (RFC 3376 section 4.1.5, RFC 3810 section 5.1.7).
const SUPPRESS: u8 = 8;

/// Maximum response time of an IGMPv1 query, which does not state it (RFC 3376 section 4.1.1 and 7.2.1).
const RESPONSE_TIME_1: Duration = Duration::from_secs(10);
