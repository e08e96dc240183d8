//! Cases about the addresses by which clients appear to the guest: one for each column of the table in
//! docs/addressing.md.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::{add_address, ip};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, netdevice, socket_with};

use crate::case::{Case, Context, Family};
use crate::guest::tcp;
use crate::network::Network;
use crate::server::stun;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for column in &COLUMNS {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let name = format!("addressing.clients-of-plan-{}.{}", column.name, protocol.name());
            cases.extend(Case::both(&name, 30, move |context, family| {
                clients(context, family, column, protocol)
            }));
        }
    }
    for (name, lacks) in [("ipv4", Family::V4), ("ipv6", Family::V6)] {
        cases.push(Case::new(
            &format!("addressing.clients-of-a-guest-without-{name}"),
            30,
            move |context| other_family(context, lacks),
        ));
    }
    cases
}

/// A column of the table: options, and the addresses by which clients appear with them, for IPv4 and IPv6. `own`, `other`,
/// `neighbour` and `remote` stand for the client's own address, `gateway` for the guest's gateway.
struct Column {
    name: &'static str,
    options: &'static [&'static str],
    loopback: [&'static str; 2],
    own: [&'static str; 2],
    other: &'static str,
}

const COLUMNS: [Column; 5] = [
    Column {
        name: "private",
        options: &[],
        loopback: ["gateway", "gateway"],
        own: ["itself", "itself"],
        other: "itself",
    },
    Column {
        name: "private-mapped",
        options: &[
            "--host-loopback=10.0.2.9",
            "--host-loopback=fd70:6f6e:746f::9",
            "--map-host=169.254.1.2",
            "--map-host=fd00:1::2",
        ],
        loopback: ["10.0.2.9", "fd70:6f6e:746f::9"],
        own: ["169.254.1.2", "fd00:1::2"],
        other: "itself",
    },
    Column {
        name: "host",
        options: &["--addressing", "host"],
        loopback: ["gateway", "gateway"],
        own: ["gateway", "gateway"],
        other: "gateway",
    },
    Column {
        name: "host-mapped",
        options: &[
            "--addressing",
            "host",
            "--map-host=169.254.1.2",
            "--map-host=fd00:1::2",
        ],
        loopback: ["gateway", "gateway"],
        own: ["169.254.1.2", "fd00:1::2"],
        other: "gateway",
    },
    Column {
        name: "host-mapped-loopback",
        options: &[
            "--addressing",
            "host",
            "--host-loopback=169.254.1.3",
            "--host-loopback=fd00:1::3",
        ],
        loopback: ["169.254.1.3", "fd00:1::3"],
        own: ["gateway", "gateway"],
        other: "gateway",
    },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// Returns the argument of `guest serve` for a server that sends each client the client's address.
    fn server(self, address: SocketAddr) -> String {
        match self {
            Self::Tcp => format!("tcp:{address}"),
            Self::Udp => format!("stun:{address}"),
        }
    }

    /// Returns the address by which a client at `from`, in the caller's namespace, appears to the server at `to`.
    fn seen(self, from: Option<IpAddr>, to: SocketAddr) -> Result<IpAddr> {
        match self {
            Self::Tcp => seen_by_tcp(from, to),
            Self::Udp => {
                let any = if to.is_ipv4() {
                    Ipv4Addr::UNSPECIFIED.into()
                } else {
                    Ipv6Addr::UNSPECIFIED.into()
                };
                let socket = UdpSocket::bind((from.unwrap_or(any), 0))?;
                socket.set_read_timeout(Some(PATIENCE))?;
                Ok(stun::mapped(&socket, to)?.ip())
            }
        }
    }
}

/// Timeout for a response.
const PATIENCE: Duration = Duration::from_secs(5);

fn seen_by_tcp(from: Option<IpAddr>, to: SocketAddr) -> Result<IpAddr> {
    let family = if to.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(from) = from {
        bind(&socket, &SocketAddr::new(from, 0))?;
    }
    connect(&socket, &to)?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    std::io::Write::write_all(&mut stream, b"peer\n")?;
    Ok(std::io::read_to_string(&mut stream)?.trim_end().parse()?)
}

/// The published port.
const PORT: u16 = 8080;

/// Tests each row of the table: a client in that place receives from the guest's server the address by which it
/// appears.
fn clients(context: &Context, family: Family, column: &Column, protocol: Protocol) -> Result<()> {
    let network = Network::with_routers(context, 1)?;
    let own = network.host_address(family);
    let gateway_of_network: IpAddr = family.pick([198, 51, 100, 2].into(), "2001:db8:1::2".parse()?);
    let other: IpAddr = family.pick([198, 51, 100, 9].into(), "2001:db8:1::9".parse()?);
    // The kernel still selects `own` as the source address for other hosts: for IPv4 because it was added first, for
    // IPv6 because `other` is deprecated.
    ip(&match family {
        Family::V4 => format!("address add {other}/24 dev net0"),
        Family::V6 => format!("address add {other}/64 dev net0 nodad valid_lft forever preferred_lft 0"),
    })?;
    let link_local = link_local(&network, family)?;
    // A UDP server at the unspecified address would reply from the address that the guest's kernel selects.
    let private = family.pick([10, 0, 2, 15].into(), "fd70:6f6e:746f::15".parse()?);
    let inside = match column.name.starts_with("host") {
        true => SocketAddr::new(own, 80),
        false => SocketAddr::new(private, 80),
    };
    let mut guest = network
        .run()
        .options(column.options)
        .options(["--publish", &format!("{PORT}:80/{}", protocol.name())])
        .shell(&format!(
            "ip {} route show default; exec $E2E guest serve {}",
            family.flag(),
            protocol.server(inside)
        ))
        .spawn()?;
    let route = guest.line()?;
    let gateway: IpAddr = route
        .split_whitespace()
        .nth(2)
        .context("the guest has no default route")?
        .parse()?;
    let _guest = guest.listening()?;
    let row = usize::from(family == Family::V6);
    let published = |address: IpAddr| SocketAddr::new(address, PORT);
    let check = |place: &str, wanted: &str, itself: IpAddr, seen: Result<IpAddr>| {
        let seen = seen.with_context(|| place.to_owned())?;
        let wanted = match wanted {
            "gateway" => gateway,
            "itself" => itself,
            address => address.parse()?,
        };
        ensure!(
            seen == wanted,
            "client {place}: seen as {seen} instead of {wanted}"
        );
        Ok(())
    };
    let loopback = family.loopback();
    let seen = protocol.seen(None, published(loopback));
    // The connection does not use the guest's interface: its client is a socket of the guest.
    let joined = inside.ip().to_string();
    let wanted = match protocol {
        Protocol::Tcp => joined.as_str(),
        Protocol::Udp => column.loopback[row],
    };
    check("on the loopback", wanted, loopback, seen)?;
    let seen = protocol.seen(Some(own), published(own));
    check("on the host's address", column.own[row], own, seen)?;
    let seen = protocol.seen(Some(other), published(own));
    check("on another address of the host", column.other, other, seen)?;
    let on_link = network.neighbour();
    let seen = on_link.enter(|| protocol.seen(None, published(own)));
    check("on the same network", "itself", gateway_of_network, seen)?;
    let seen = network.server().enter(|| protocol.seen(None, published(own)));
    let remote = network.server_address(family);
    check("behind a router", "itself", remote, seen)?;
    let (from, to) = link_local;
    let seen = on_link.enter(|| protocol.seen(from, to));
    check("with a link-local address", "gateway", own, seen)
}

/// Returns the link-local address that a client of the host's neighbour has to bind, if any, and the published port at
/// the host's link-local address.
fn link_local(network: &Network<'_>, family: Family) -> Result<(Option<IpAddr>, SocketAddr)> {
    match family {
        Family::V4 => {
            ip("address add 169.254.7.1/16 dev net0 scope link")?;
            network
                .neighbour()
                .enter(|| add_address("left", "169.254.7.2/16"))?;
            let to = SocketAddr::new([169, 254, 7, 1].into(), PORT);
            Ok((Some([169, 254, 7, 2].into()), to))
        }
        Family::V6 => {
            let host: Ipv6Addr = "fe80::7:1".parse()?;
            add_address("net0", &format!("{host}/64"))?;
            let scope = network.neighbour().enter(|| {
                let any = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
                Ok(netdevice::name_to_index(&any, "left")?)
            })?;
            Ok((None, SocketAddrV6::new(host, PORT, 0, scope).into()))
        }
    }
}

/// Tests that ports of a guest that lacks a family are not published for that family.
fn other_family(context: &Context, lacks: Family) -> Result<()> {
    let network = Network::new(context)?;
    let (option, has) = match lacks {
        Family::V4 => ("--no-ipv4", Family::V6),
        Family::V6 => ("--no-ipv6", Family::V4),
    };
    let inside = SocketAddr::new(has.unspecified(), 80);
    let _guest = network
        .run()
        .options([option, "--publish", &format!("{PORT}:80")])
        .guest(["serve", &Protocol::Tcp.server(inside)])
        .spawn()?
        .listening()?;
    let published = |family| SocketAddr::new(network.host_address(family), PORT);
    network.server().enter(|| {
        Protocol::Tcp.seen(None, published(has))?;
        tcp::command(published(lacks), &["refused"])
    })?;
    Ok(())
}
