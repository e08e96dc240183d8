//! DHCPv6 server (RFC 8415): DNS configuration for a guest that has an address from the router advertisement, and one
//! address for a guest that requests one.

use core::net::{IpAddr, Ipv6Addr};

use arrayvec::ArrayVec;
use pontoon_wire::{Mac, frame};

use super::domains;
use super::reply::Reply;
use crate::address_plan::Ipv6Plan;
use crate::ctx::Net;
use crate::{Frame, Transmit};

/// Returns true if a DHCP message to the address `to` is for the engine.
pub(super) fn is_server(net: &Net, to: Ipv6Addr) -> bool {
    to == ALL_SERVERS
        || net
            .config
            .plan
            .v6
            .as_ref()
            .is_some_and(|own| to == own.router || to == own.gateway)
}

/// Answers a DHCPv6 message of the guest.
pub(super) fn handle<T: Transmit>(
    frame: &Frame<'_>,
    asker_mac: Mac,
    ip: &frame::Ip,
    udp: &frame::Udp,
    net: &mut Net,
    link: &mut T,
) {
    let (IpAddr::V6(client), Some(own)) = (ip.source, net.config.plan.v6.clone()) else {
        return;
    };
    let mut bytes = [0; LONGEST_REQUEST];
    let Some(request) = Dhcp6Message::parse(super::data(frame, udp, &mut bytes)) else {
        net.counters.malformed += 1;
        return;
    };
    let own_id = server_id(net.config.our_mac);
    let Some((kind, content)) = answer(&request, own_id, &own) else {
        return;
    };
    let mut datagram = ArrayVec::<u8, 1_024>::new();
    datagram.extend([0; UDP_HEADER]);
    datagram.push(kind);
    datagram.extend(request.transaction);
    if let Some(id) = request.client_id {
        option(&mut datagram, CLIENT_ID, id);
    }
    option(&mut datagram, SERVER_ID, &own_id);
    if kind == REPLY && request.kind == SOLICIT {
        option(&mut datagram, RAPID_COMMIT, &[]);
    }
    match content {
        ReplyContent::Address(ia) => option(&mut datagram, IA_NA, &association(ia, own.address.addr())),
        ReplyContent::Configuration => {}
        ReplyContent::Status(code) => option(&mut datagram, STATUS, &code.to_be_bytes()),
    }
    if let Some(dns) = own.dns.filter(|_| net.config.announces_dns()) {
        option(&mut datagram, DNS, &dns.octets());
    }
    let search = domains::encode(net.config.announced_search(), domains::LONGEST);
    if !search.is_empty() {
        option(&mut datagram, SEARCH, &search);
    }
    let fqdn = net.config.fqdn.as_slice();
    let fqdn = domains::encode(fqdn, domains::LONGEST);
    if !fqdn.is_empty() {
        // Flags: O and S are for servers that update the DNS (RFC 4704 section 4.1).
        let mut value = ArrayVec::<u8, { domains::LONGEST + 1 }>::new();
        value.push(0);
        value.extend(fqdn);
        option(&mut datagram, FQDN, &value);
    }
    let reply = Reply {
        to: asker_mac,
        source: own.router.into(),
        destination: client.into(),
        hop_limit: 64,
    };
    reply.udp(net, link, 547, 546, &mut datagram);
}

/// The content of a DHCPv6 reply besides client id, server id and DNS configuration.
enum ReplyContent {
    /// The guest's address, in an IA_NA option with this IAID (RFC 8415 section 21.4).
    Address([u8; 4]),
    /// DNS configuration only, without address and status code.
    Configuration,
    /// A status code (RFC 8415 section 21.13).
    Status(u16),
}

/// Returns message type and content of the reply; `None` if RFC 8415 section 16 requires to discard the request.
fn answer(request: &Dhcp6Message<'_>, own_id: ServerId, own: &Ipv6Plan) -> Option<(u8, ReplyContent)> {
    let names_this_server = request.server_id.is_some_and(|id| id == own_id);
    let names_none = request.server_id.is_none();
    let address = request
        .association
        .map_or(ReplyContent::Configuration, ReplyContent::Address);
    if request.kind != INFORMATION_REQUEST {
        request.client_id?;
    }
    match request.kind {
        SOLICIT if names_none && request.rapid_commit => Some((REPLY, address)),
        SOLICIT if names_none => Some((ADVERTISE, address)),
        REQUEST | RENEW if names_this_server => Some((REPLY, address)),
        REBIND if names_none => Some((REPLY, address)),
        CONFIRM if names_none => {
            let on_link = own.address.contains(&request.address?);
            Some((
                REPLY,
                ReplyContent::Status(if on_link { SUCCESS } else { NOT_ON_LINK }),
            ))
        }
        RELEASE | DECLINE if names_this_server => Some((REPLY, ReplyContent::Status(SUCCESS))),
        INFORMATION_REQUEST if (names_this_server || names_none) && request.association.is_none() => {
            Some((REPLY, ReplyContent::Configuration))
        }
        _ => None,
    }
}

/// A DHCPv6 message of the guest. Of several IA_NA options or addresses the first one is used, because there is only
/// one address to assign.
struct Dhcp6Message<'a> {
    kind: u8,
    transaction: [u8; 3],
    client_id: Option<&'a [u8]>,
    server_id: Option<&'a [u8]>,
    rapid_commit: bool,
    /// IAID of the first IA_NA option: an identity association for non-temporary addresses.
    association: Option<[u8; 4]>,
    /// The first address in the client's IA_NA option.
    address: Option<Ipv6Addr>,
}

impl<'a> Dhcp6Message<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let [kind, a, b, c, options @ ..] = bytes else {
            return None;
        };
        let mut request = Self {
            kind: *kind,
            transaction: [*a, *b, *c],
            client_id: None,
            server_id: None,
            rapid_commit: false,
            association: None,
            address: None,
        };
        for (code, value) in OptionIter(options) {
            match code {
                // RFC 8415 section 11.1: a DUID has at most 128 bytes besides its type.
                CLIENT_ID if value.len() <= 130 => request.client_id = Some(value),
                SERVER_ID => request.server_id = Some(value),
                RAPID_COMMIT => request.rapid_commit = true,
                IA_NA if request.association.is_none() => request.associate(value),
                _ => {}
            }
        }
        Some(request)
    }

    /// Parses an IA_NA option (RFC 8415 section 21.4): IAID, T1, T2, options.
    fn associate(&mut self, value: &[u8]) {
        let Some((id, rest)) = value.split_first_chunk::<4>() else {
            return;
        };
        self.association = Some(*id);
        self.address = OptionIter(rest.get(8..).unwrap_or_default())
            .find(|(code, _)| *code == IA_ADDRESS)
            .and_then(|(_, value)| value.first_chunk::<16>())
            .map(|octets| Ipv6Addr::from(*octets));
    }
}

/// Iterates over code and value of each option; a truncated option ends the list.
struct OptionIter<'a>(&'a [u8]);

impl<'a> Iterator for OptionIter<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[a, b, c, d], rest) = self.0.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([c, d])))?;
        self.0 = rest;
        Some((u16::from_be_bytes([a, b]), value))
    }
}

fn option<const N: usize>(message: &mut ArrayVec<u8, N>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).expect("the options are short");
    message.extend(code.to_be_bytes());
    message.extend(len.to_be_bytes());
    message.extend(value.iter().copied());
}

/// Encodes an IA_NA option with the guest's address and infinite lifetimes (RFC 8415 sections 21.4 and 21.6). T1 and T2
/// are infinite too; if they were 0, the client would choose when to renew.
fn association(id: [u8; 4], guest: Ipv6Addr) -> ArrayVec<u8, 40> {
    let mut address = ArrayVec::<u8, 24>::new();
    address.extend(guest.octets());
    address.extend(FOREVER); // preferred
    address.extend(FOREVER); // valid
    let mut association = ArrayVec::new();
    association.extend(id);
    association.extend(FOREVER); // T1
    association.extend(FOREVER); // T2
    option(&mut association, IA_ADDRESS, &address);
    association
}

type ServerId = [u8; 10];

/// Returns the server's DUID-LL, which contains the engine's Ethernet address (RFC 8415 section 11.4): type 3, hardware
/// type 1.
fn server_id(Mac([a, b, c, d, e, f]): Mac) -> ServerId {
    [0, 3, 0, 1, a, b, c, d, e, f]
}

const UDP_HEADER: usize = 8;
/// Number of bytes of a request that are parsed; the rest of a longer request is ignored.
const LONGEST_REQUEST: usize = 1_232;
/// Multicast address All_DHCP_Relay_Agents_and_Servers (RFC 8415 section 7.1).
const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const FOREVER: [u8; 4] = [0xff; 4];

/// Message types of DHCPv6 (RFC 8415 section 7.3).
const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const CONFIRM: u8 = 4;
const RENEW: u8 = 5;
const REBIND: u8 = 6;
const REPLY: u8 = 7;
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;
const INFORMATION_REQUEST: u8 = 11;

/// Option codes of DHCPv6 (RFC 8415 section 21, RFC 3646).
const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;
const STATUS: u16 = 13;
const RAPID_COMMIT: u16 = 14;
const DNS: u16 = 23;
const SEARCH: u16 = 24;
const FQDN: u16 = 39;

/// Status codes of DHCPv6 (RFC 8415 section 21.13).
const SUCCESS: u16 = 0;
const NOT_ON_LINK: u16 = 4;
