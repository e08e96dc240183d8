//! DHCPv4 server (RFC 2131) that assigns one address to the guest, with an infinite lease.

use core::net::{IpAddr, Ipv4Addr};

use arrayvec::ArrayVec;
use ipnet::{IpNet, Ipv4Net};
use pontoon_wire::smol::{DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr, EthernetAddress};
use pontoon_wire::{Mac, frame};

use super::domains;
use super::reply::Reply;
use crate::address_plan::{AddressPlan, Ipv4Plan};
use crate::ctx::Net;
use crate::{Frame, Transmit};

/// Returns true if a DHCP message to the address `to` is for the engine, the only DHCP server on this link.
pub(super) fn is_server(net: &Net, to: Ipv4Addr) -> bool {
    let own = net.config.plan.v4.as_ref();
    own.is_some_and(|own| to.is_broadcast() || to == own.gateway || to == own.address.broadcast())
}

/// Answers a DHCPv4 message of the guest.
pub(super) fn handle<T: Transmit>(frame: &Frame<'_>, udp: &frame::Udp, net: &mut Net, link: &mut T) {
    let mut bytes = [0; LONGEST_REQUEST];
    let Some(request) = Dhcp4Message::parse(super::data(frame, udp, &mut bytes)) else {
        net.counters.malformed += 1;
        return;
    };
    let Some(own) = net.config.plan.v4.clone() else {
        return;
    };
    let answer = match request.kind {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        // RFC 2131 section 4.3.2: the client has accepted another server's offer.
        DhcpMessageType::Request if request.server.is_some_and(|server| server != own.gateway) => return,
        DhcpMessageType::Request if request.wanted == own.address.addr() => DhcpMessageType::Ack,
        DhcpMessageType::Request => DhcpMessageType::Nak,
        DhcpMessageType::Inform => DhcpMessageType::Ack,
        // A release or a decline has no effect; messages of the other types are sent by servers only.
        DhcpMessageType::Decline
        | DhcpMessageType::Release
        | DhcpMessageType::Offer
        | DhcpMessageType::Ack
        | DhcpMessageType::Nak
        | DhcpMessageType::Unknown(_) => return,
    };
    reply(&request, answer, &own, net, link);
}

/// A DHCPv4 message of the guest, with the options that the server uses.
struct Dhcp4Message<'a> {
    kind: DhcpMessageType,
    transaction: u32,
    client_mac: Mac,
    /// The field `ciaddr`: the address that the client has configured, or unspecified.
    client: Ipv4Addr,
    /// The option Requested IP Address (RFC 2132 section 9.1).
    wanted: Ipv4Addr,
    server: Option<Ipv4Addr>,
    /// The option Client Identifier, returned unchanged (RFC 6842).
    client_id: Option<&'a [u8]>,
    broadcast: bool,
    secs: u16,
}

impl<'a> Dhcp4Message<'a> {
    /// Parses a message. `DhcpRepr::parse` is not used, because it accepts only client identifiers that are Ethernet
    /// addresses.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let packet = DhcpPacket::new_checked(bytes).ok()?;
        // Opcode 1 is a request of a client; hardware type 1 with addresses of 6 bytes is Ethernet.
        if bytes[..3] != [1, 1, 6] || packet.magic_number() != MAGIC {
            return None;
        }
        let mut kind = None;
        let mut wanted = None;
        let mut server = None;
        let mut client_id = None;
        let mut options = &bytes[OPTIONS_AT..];
        while let Some((code, value, rest)) = option(options) {
            options = rest;
            match (code, value) {
                (OPTION_KIND, &[value]) => kind = Some(DhcpMessageType::from(value)),
                (OPTION_WANTED, &[a, b, c, d]) => wanted = Some(Ipv4Addr::new(a, b, c, d)),
                (OPTION_SERVER, &[a, b, c, d]) => server = Some(Ipv4Addr::new(a, b, c, d)),
                (OPTION_CLIENT_ID, id) => client_id = Some(id),
                _ => {}
            }
        }
        Some(Self {
            kind: kind?,
            transaction: packet.transaction_id(),
            client_mac: Mac(packet.client_hardware_address().0),
            client: packet.client_ip(),
            wanted: wanted.unwrap_or(packet.client_ip()),
            server,
            client_id,
            broadcast: bytes[FLAGS_AT] & 0x80 != 0,
            secs: packet.secs(),
        })
    }
}

/// Returns code and value of the first option in `list`, and the rest of the list. Padding is skipped; a truncated
/// option ends the list.
fn option(mut list: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    while let [0, rest @ ..] = list {
        list = rest;
    }
    match list {
        [] | [255, ..] => None,
        [code, len, rest @ ..] => {
            let (value, rest) = rest.split_at_checked(usize::from(*len))?;
            Some((*code, value, rest))
        }
        [_] => None,
    }
}

fn reply<T: Transmit>(
    request: &Dhcp4Message<'_>,
    kind: DhcpMessageType,
    own: &Ipv4Plan,
    net: &mut Net,
    link: &mut T,
) {
    let mut datagram = [0; UDP_HEADER + LONGEST_REPLY];
    let len = write(request, kind, own, net, &mut datagram[UDP_HEADER..]);
    let (to, destination) = receiver(request, kind, own.address.addr());
    let reply = Reply {
        to,
        source: own.gateway.into(),
        destination: destination.into(),
        hop_limit: 64,
    };
    reply.udp(net, link, 67, 68, &mut datagram[..UDP_HEADER + len]);
}

/// Writes the reply into `into`, and returns its length.
fn write(
    request: &Dhcp4Message<'_>,
    kind: DhcpMessageType,
    own: &Ipv4Plan,
    net: &Net,
    into: &mut [u8],
) -> usize {
    let configures = kind != DhcpMessageType::Nak;
    let leases = configures && request.kind != DhcpMessageType::Inform;

    let dns = own.dns.map(|dns| dns.octets());
    let mtu = net.config.mtu.to_be_bytes();
    let hostname = net.config.hostname.as_deref().unwrap_or_default();
    let client_id = request.client_id.unwrap_or_default();
    // Each list takes the room that those before it leave.
    let mut room = LISTS_ROOM.saturating_sub(client_id.len());
    let fqdn = net
        .config
        .fqdn
        .as_deref()
        .and_then(|name| fqdn_option(name, room));
    room -= fqdn.as_ref().map_or(0, |fqdn| fqdn.len() + 2);
    let routes = classless_routes(own, &net.config.plan, room.saturating_sub(2));
    room -= if routes.is_empty() { 0 } else { routes.len() + 2 };
    let search = domains::encode(net.config.announced_search(), room.saturating_sub(2));
    let mut options = ArrayVec::<DhcpOption<'_>, 7>::new();
    let mut offer = |kind, data| options.push(DhcpOption { kind, data });
    if request.client_id.is_some() {
        offer(OPTION_CLIENT_ID, client_id);
    }
    if configures {
        offer(OPTION_MTU, &mtu);
        if let Some(dns) = dns.as_ref().filter(|_| net.config.announces_dns()) {
            offer(OPTION_DNS, dns);
        }
        if (1..=LONGEST_HOSTNAME).contains(&hostname.len()) {
            offer(OPTION_HOSTNAME, hostname.as_bytes());
        }
        if let Some(fqdn) = &fqdn {
            offer(OPTION_FQDN, fqdn);
        }
        if !routes.is_empty() {
            offer(OPTION_ROUTES, &routes);
        }
        if !search.is_empty() {
            offer(OPTION_SEARCH, &search);
        }
    }
    let repr = DhcpRepr {
        message_type: kind,
        transaction_id: request.transaction,
        secs: request.secs,
        client_hardware_address: EthernetAddress(request.client_mac.0),
        client_ip: if configures {
            request.client
        } else {
            Ipv4Addr::UNSPECIFIED
        },
        your_ip: if leases {
            own.address.addr()
        } else {
            Ipv4Addr::UNSPECIFIED
        },
        server_ip: Ipv4Addr::UNSPECIFIED,
        router: (configures && own.default_route).then_some(own.gateway),
        subnet_mask: configures.then_some(own.address.netmask()),
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: request.broadcast,
        requested_ip: None,
        client_identifier: None,
        server_identifier: Some(own.gateway),
        parameter_request_list: None,
        dns_servers: None,
        max_size: None,
        lease_duration: leases.then_some(u32::MAX),
        renew_duration: None,
        rebind_duration: None,
        additional_options: &options,
    };
    let len = repr.buffer_len().max(SHORTEST_REPLY);
    repr.emit(&mut DhcpPacket::new_unchecked(&mut into[..len]))
        .expect("the buffer has room for the longest options");
    len
}

/// Returns the client's fully qualified domain name as option 81 (RFC 4702 section 2): flags E (encoded as labels) and S (the
/// server would update the A record; there is none), two obsolete fields, the name. `None` if it is not a name, or has no
/// room.
fn fqdn_option(name: &str, room: usize) -> Option<ArrayVec<u8, OPTION_ROOM>> {
    let name = domains::encode(
        &[name.to_owned()],
        room.saturating_sub(2 + 3).min(OPTION_ROOM - 3),
    );
    let mut option = ArrayVec::new();
    option.extend([0b0101, 255, 255]);
    option.extend(name.iter().copied());
    (!name.is_empty()).then_some(option)
}

/// Returns the routes as option 121 (RFC 3442), as many as there is room for; none if the options for subnet mask and router
/// contain all of them. A client that accepts this option ignores the router option, so the default route is the first. A
/// gateway outside of the client's subnet is preceded by a route to it on the link.
fn classless_routes(own: &Ipv4Plan, plan: &AddressPlan, room: usize) -> ArrayVec<u8, OPTION_ROOM> {
    let is_near = |gateway: Ipv4Addr| own.address.contains(&gateway);
    let default = own
        .default_route
        .then_some((Ipv4Net::default(), Some(own.gateway)));
    let others = plan
        .routes
        .iter()
        .filter_map(|route| match (route.destination, route.gateway) {
            (IpNet::V4(net), Some(IpAddr::V4(gateway))) => Some((net, Some(gateway))),
            (IpNet::V4(net), None) => Some((net, None)),
            _ => None,
        });
    let mut routes = others.clone().peekable();
    let mut option = ArrayVec::new();
    if routes.peek().is_none() && (!own.default_route || is_near(own.gateway)) {
        return option;
    }
    for (net, gateway) in default.into_iter().chain(others) {
        let mut added = ArrayVec::<u8, 18>::new();
        if let Some(gateway) = gateway.filter(|gateway| !is_near(*gateway)) {
            add_route(&mut added, Ipv4Net::from(gateway), None);
        }
        add_route(&mut added, net, gateway);
        if option.len() + added.len() > room.min(OPTION_ROOM) {
            break;
        }
        option.extend(added);
    }
    option
}

/// Appends a destination descriptor and a router (RFC 3442): prefix length, significant octets, gateway or 0.0.0.0.
fn add_route(option: &mut ArrayVec<u8, 18>, net: Ipv4Net, gateway: Option<Ipv4Addr>) {
    let significant = usize::from(net.prefix_len().div_ceil(8));
    option.push(net.prefix_len());
    option.extend(net.network().octets().into_iter().take(significant));
    option.extend(gateway.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
}

/// Returns the Ethernet and IP destination address of a reply (RFC 2131 section 4.1).
fn receiver(request: &Dhcp4Message<'_>, kind: DhcpMessageType, lease: Ipv4Addr) -> (Mac, Ipv4Addr) {
    if kind == DhcpMessageType::Nak {
        (Mac::BROADCAST, Ipv4Addr::BROADCAST)
    } else if !request.client.is_unspecified() {
        (request.client_mac, request.client)
    } else if request.broadcast {
        (Mac::BROADCAST, Ipv4Addr::BROADCAST)
    } else {
        (request.client_mac, lease)
    }
}

const UDP_HEADER: usize = 8;
/// Number of bytes of a request that are parsed; the rest of a longer request is ignored.
const LONGEST_REQUEST: usize = 1_472;
/// Minimum length of a reply in bytes, because some clients drop shorter ones (RFC 1542 section 2.1).
const SHORTEST_REPLY: usize = 300;
/// Maximum length of a message in bytes that every client accepts (RFC 2131 section 2: an IP packet of 576 bytes).
const PROMISED: usize = 548;
/// Length in bytes of a reply without client identifier and lists: the fixed part and the end option, message type (3),
/// server, mask, router, lease and DNS (6 each), MTU (4), host name, and the header of the client identifier.
const WITHOUT_LISTS: usize = OPTIONS_AT + 1 + 3 + 5 * 6 + 4 + 2 + LONGEST_HOSTNAME + 2;
/// Room in bytes for FQDN, routes and search list with their headers, if the client identifier is empty.
const LISTS_ROOM: usize = PROMISED - WITHOUT_LISTS;
/// Maximum length of an option's value in bytes.
const OPTION_ROOM: usize = 255;
/// Maximum length of a reply in bytes. It exceeds [`PROMISED`] because a long client identifier has to be returned,
/// too.
const LONGEST_REPLY: usize = WITHOUT_LISTS + 255;
const LONGEST_HOSTNAME: usize = 63;

const FLAGS_AT: usize = 10;
const OPTIONS_AT: usize = 240;
const MAGIC: u32 = 0x6382_5363;

/// Option codes of DHCPv4 (RFC 2132, RFC 3397, RFC 3442, RFC 4702).
const OPTION_DNS: u8 = 6;
const OPTION_HOSTNAME: u8 = 12;
const OPTION_MTU: u8 = 26;
const OPTION_WANTED: u8 = 50;
const OPTION_KIND: u8 = 53;
const OPTION_SERVER: u8 = 54;
const OPTION_CLIENT_ID: u8 = 61;
const OPTION_FQDN: u8 = 81;
const OPTION_SEARCH: u8 = 119;
const OPTION_ROUTES: u8 = 121;
