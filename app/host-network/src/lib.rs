//! The host's network, for programs that run an engine: limits, raw sockets, addresses and resolvers, the choice of the guest's
//! address plan, and published ports with their sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;

use pontoon_process::descriptor;
use pontoon_process::error::{Context as _, Error};
use pontoon_worker::Outbound;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, connect_unspec, ipproto, netdevice, socket, socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit};

pub mod address_plan;
pub mod address_watch;
pub mod addressing;
pub mod file_watch;
pub mod forward;
pub mod interface;
pub mod listeners;
pub mod network;
pub mod publish;
pub mod resolv;
mod subnets;

use publish::port_range::PortRange;

/// Returns the addresses from which the host sends to other hosts: IPv4, IPv6. No packet is sent: connecting a UDP socket only
/// selects a route. The destinations are documentation addresses (RFC 5737, RFC 3849), which only default routes lead to.
pub fn source_addresses() -> [Option<IpAddr>; 2] {
    let toward = |destination: IpAddr| -> io::Result<IpAddr> {
        let any: IpAddr = match destination {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((destination, 9))?;
        Ok(socket.local_addr()?.ip())
    };
    [
        Ipv4Addr::new(192, 0, 2, 1).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    ]
    .map(|destination| toward(destination).ok().filter(is_of_network))
}

/// Returns false for a link-local or loopback IPv6 address, which the kernel selects if the host has no other.
fn is_of_network(source: &IpAddr) -> bool {
    match source {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
    }
}

/// Limit on concurrent flows of all workers together.
pub const MOST_FLOWS: u64 = 131_072;

/// Number of descriptors of the engine that are not used for flows: logs, raw sockets, and a reserve.
const RESERVED: u64 = 54;

/// Number of descriptors of each worker besides its flows and listeners: its queue, epoll, inbox, sockets opened ahead, and
/// a reserve.
const OF_WORKER: u64 = 10;

/// Returns the number of flows for which the descriptor limit leaves room besides the workers' own descriptors and the
/// `sockets` of published ports, of which each worker may have a copy.
#[must_use]
pub fn max_flows(limit: Rlimit, sockets: usize, workers: u8) -> u32 {
    let taken = u64::try_from(sockets)
        .unwrap_or(u64::MAX)
        .saturating_add(OF_WORKER)
        .saturating_mul(workers.into())
        .saturating_add(RESERVED);
    let room = limit
        .maximum
        .map_or(MOST_FLOWS, |most| most.saturating_sub(taken));
    u32::try_from(room.min(MOST_FLOWS)).unwrap_or(u32::MAX)
}

/// Checks that the descriptor limit leaves room for flows besides the workers' own descriptors and the `sockets` of published
/// ports.
///
/// # Errors
/// It leaves no room.
pub fn check_descriptors(sockets: usize, workers: u8) -> Result<(), Error> {
    let limit = getrlimit(Resource::Nofile);
    match (max_flows(limit, sockets, workers), limit.maximum) {
        (0, Some(most)) => {
            let text = format!("the limit of {most} descriptors leaves no room for flows");
            Err(Error::new(text).with_fix(&descriptor::more()))
        }
        _ => Ok(()),
    }
}

/// Returns the default limit on UDP ports of the host in each address family: a quarter of the ephemeral ports, so that
/// enough remain for other programs of the host, such as resolvers.
#[must_use]
pub fn max_udp_ports() -> u32 {
    share_of_ports(ephemeral_ports())
}

/// Returns the ephemeral ports of the caller's network namespace, which the kernel chooses for sockets that name no port.
#[must_use]
pub fn ephemeral_ports() -> PortRange {
    parse_range(&std::fs::read_to_string(PORT_RANGE).unwrap_or_default())
}

fn share_of_ports(ephemeral: PortRange) -> u32 {
    (u32::from(ephemeral.count()) / 4).max(1)
}

/// Returns the port range in `text`, or the kernel's default range if `text` cannot be parsed.
fn parse_range(text: &str) -> PortRange {
    let mut words = text
        .split_ascii_whitespace()
        .map_while(|word| word.parse::<u16>().ok());
    match (words.next(), words.next()) {
        (Some(first @ 1..), Some(last)) if first <= last => PortRange { first, last },
        _ => PortRange {
            first: 32_768,
            last: 60_999,
        },
    }
}

/// File with the first and last ephemeral port of the network namespace, for both address families (`ip-sysctl` of the
/// kernel).
const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Opens raw ICMP and ICMPv6 sockets; an element is `None` if the caller lacks CAP_NET_RAW, or the host the family.
///
/// # Errors
/// No descriptor or no memory is free.
pub fn open_raw_icmp() -> io::Result<[Option<OwnedFd>; 2]> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let open = |family, protocol| match socket_with(family, SocketType::RAW, flags, Some(protocol)) {
        Ok(socket) => Ok(Some(socket)),
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => Err(error),
        Err(_) => Ok(None),
    };
    Ok([
        open(AddressFamily::INET, ipproto::ICMP)?,
        open(AddressFamily::INET6, ipproto::ICMPV6)?,
    ])
}

/// Replaces raw ICMP sockets, which the old engine may have connected, shut down or bound, or whose options it may have set. If the
/// caller has no CAP_NET_RAW any more, they are disconnected.
///
/// # Errors
/// No descriptor or no memory is free.
pub fn replace_raw_icmp(sockets: &mut [Option<OwnedFd>; 2]) -> io::Result<()> {
    for (old, new) in sockets.iter_mut().zip(open_raw_icmp()?) {
        match (old, new) {
            (Some(old), Some(new)) => *old = new,
            (Some(old), None) => {
                if let Err(error) = connect_unspec(old) {
                    tracing::warn!("cannot disconnect a raw ICMP socket: {error}");
                }
            }
            (None, _) => {}
        }
    }
    Ok(())
}

/// Checks that the host can send from the address or interface of `--outbound`.
///
/// # Errors
/// The host has no such address or interface.
pub fn check_outbound(outbound: &Outbound) -> Result<(), Error> {
    let v4 = outbound.v4.map(IpAddr::V4);
    for address in v4.into_iter().chain(outbound.v6.map(IpAddr::V6)) {
        UdpSocket::bind((address, 0)).map_err(|error| {
            Error::io(format_args!("cannot send from {address}"), &error)
                .advise("an address of this host, see 'ip addr'")
        })?;
    }
    if let Some(name) = &outbound.interface {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).context("cannot open a socket")?;
        netdevice::name_to_index(&socket, name).map_err(|error| {
            Error::io(format_args!("cannot send from {name}"), &error.into())
                .advise("an interface of this host, see 'ip link'")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_a_fourth_of_the_ephemeral_ports() {
        let share = |text| share_of_ports(parse_range(text));
        assert_eq!(share("32768\t60999\n"), 7_058);
        assert_eq!(share("1024 65535"), 16_128);
        assert_eq!(share("40000 40001"), 1);
        for unreadable in ["", "1", "2 1", "x y"] {
            assert_eq!(share(unreadable), 7_058);
        }
    }

    #[test]
    fn flows_fit_the_descriptor_limit() {
        let limit = |maximum| Rlimit {
            current: Some(1024),
            maximum,
        };
        assert_eq!(max_flows(limit(None), 10, 1), 131_072);
        assert_eq!(max_flows(limit(Some(1 << 20)), 10, 1), 131_072);
        assert_eq!(max_flows(limit(Some(20_000)), 10, 1), 19_926);
        assert_eq!(max_flows(limit(Some(20_000)), 10, 4), 19_866);
        assert_eq!(max_flows(limit(Some(70)), 10, 1), 0);
    }
}
