//! Multicast on IP sockets: memberships of groups, and the interface and TTL of datagrams to groups (ip(7), ipv6(7),
//! RFC 3678).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::address::{Family, RawAddress};
use crate::option;

/// Size of `sockaddr_storage` in bytes.
const STORAGE: usize = 128;

/// Offset of the first `sockaddr_storage` in `group_source_req`, behind an int: the alignment of a long.
const BEGIN: usize = size_of::<usize>();

/// Joins a multicast group on an interface, for all sources or only for the source `from`. The kernel reports the
/// membership to the network by IGMPv3 or MLDv2.
///
/// # Errors
/// ENODEV: the interface does not exist. ENOBUFS: the socket has reached the limit of memberships
/// (`igmp_max_memberships`, `igmp_max_msf`), so another socket is needed. EADDRINUSE, EADDRNOTAVAIL: the socket has
/// joined the group already.
pub fn join(socket: impl AsFd, interface: u32, group: IpAddr, from: Option<IpAddr>) -> Result<(), Errno> {
    // struct group_source_req, which begins with struct group_req: interface, group, source.
    let mut request = [0; BEGIN + 2 * STORAGE];
    request[..4].copy_from_slice(&interface.to_ne_bytes());
    let mut put = |at: usize, address: IpAddr| {
        let raw = RawAddress::from(SocketAddr::new(address, 0));
        request[at..at + raw.len].copy_from_slice(&raw.bytes[..raw.len]);
    };
    put(BEGIN, group);
    let (name, len) = match from {
        None => (libc::MCAST_JOIN_GROUP, BEGIN + STORAGE),
        Some(from) => {
            put(BEGIN + STORAGE, from);
            (libc::MCAST_JOIN_SOURCE_GROUP, request.len())
        }
    };
    let level = match group {
        IpAddr::V4(_) => libc::SOL_IP,
        IpAddr::V6(_) => libc::SOL_IPV6,
    };
    option::set(socket, level, name, &request[..len])
}

/// Makes a socket receive datagrams only to groups that the socket itself has joined, not to groups that other sockets
/// of the host have joined (`IP_MULTICAST_ALL`, Linux 2.6.31; `IPV6_MULTICAST_ALL`, Linux 4.20).
///
/// # Errors
/// ENOPROTOOPT: not a socket of `family`, or the kernel is older than these versions.
pub fn only_joined(socket: impl AsFd, family: Family) -> Result<(), Errno> {
    match family {
        Family::V4 => option::set_int(socket, libc::SOL_IP, libc::IP_MULTICAST_ALL, 0),
        Family::V6 => option::set_int(socket, libc::SOL_IPV6, libc::IPV6_MULTICAST_ALL, 0),
    }
}

/// Sets the interface on which the socket sends multicast datagrams, and disables the copy to receivers on this host
/// (`IP_MULTICAST_LOOP`).
///
/// # Errors
/// ENODEV, EADDRNOTAVAIL: the interface does not exist.
pub fn send_from(socket: impl AsFd, interface: u32, family: Family) -> Result<(), Errno> {
    match family {
        Family::V4 => {
            // struct ip_mreqn: group, address, interface.
            let mut request = [0; 12];
            request[8..].copy_from_slice(&interface.to_ne_bytes());
            option::set(&socket, libc::SOL_IP, libc::IP_MULTICAST_IF, &request)?;
            option::set_int(&socket, libc::SOL_IP, libc::IP_MULTICAST_LOOP, 0)
        }
        Family::V6 => {
            option::set_int(
                &socket,
                libc::SOL_IPV6,
                libc::IPV6_MULTICAST_IF,
                interface.cast_signed(),
            )?;
            option::set_int(&socket, libc::SOL_IPV6, libc::IPV6_MULTICAST_LOOP, 0)
        }
    }
}

/// Sets the TTL or hop limit of multicast datagrams that the socket sends.
///
/// # Errors
/// ENOPROTOOPT: not a socket of `family`.
pub fn set_hop_limit(socket: impl AsFd, family: Family, value: u8) -> Result<(), Errno> {
    match family {
        Family::V4 => option::set_int(socket, libc::SOL_IP, libc::IP_MULTICAST_TTL, value.into()),
        Family::V6 => option::set_int(socket, libc::SOL_IPV6, libc::IPV6_MULTICAST_HOPS, value.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;
    use crate::udp;

    fn loopback() -> u32 {
        let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
        index.trim().parse().unwrap()
    }

    /// Joins a group on the loopback interface, and receives a datagram to it with the TTL that the sender has set.
    #[test]
    fn datagram_to_a_joined_group_is_received_with_its_ttl() {
        let group: IpAddr = "239.255.77.1".parse().unwrap();
        let receiver = UdpSocket::bind("0.0.0.0:0").unwrap();
        let to = SocketAddr::new(group, receiver.local_addr().unwrap().port());
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        only_joined(&receiver, Family::V4).unwrap();
        udp::enable_recv_info(&receiver, Family::V4).unwrap();
        join(&receiver, loopback(), group, Some("127.0.0.1".parse().unwrap())).unwrap();
        assert_eq!(
            join(&receiver, loopback(), group, Some("127.0.0.1".parse().unwrap())),
            Err(Errno::ADDRNOTAVAIL)
        );
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        send_from(&sender, loopback(), Family::V4).unwrap();
        // The loopback interface delivers a multicast datagram only as the copy to this host, so that copy is enabled.
        option::set_int(&sender, libc::SOL_IP, libc::IP_MULTICAST_LOOP, 1).unwrap();
        set_hop_limit(&sender, Family::V4, 9).unwrap();
        sender.send_to(b"hello", to).unwrap();
        let mut batch = crate::batch::Batch::new(1, 64);
        assert_eq!(batch.receive(&receiver), Ok(1));
        let (bytes, control) = batch.message(0);
        let hops = udp::Ancillary::decode(control).hop_limit;
        assert_eq!((&*bytes, hops), (&b"hello"[..], Some(9)));
    }

    #[test]
    fn join_reports_a_missing_interface() {
        for (family, group) in [(Family::V4, "239.255.77.2"), (Family::V6, "ff15::77:2")] {
            let Ok(socket) = UdpSocket::bind((family.unspecified(), 0)) else {
                crate::skipped("missing_namespaces_are_listed", family);
                continue;
            };
            let group = group.parse().unwrap();
            assert_eq!(join(&socket, 0x7fff_fff0, group, None), Err(Errno::NODEV));
            join(&socket, loopback(), group, None).unwrap();
            assert_eq!(join(&socket, loopback(), group, None), Err(Errno::ADDRINUSE));
            assert!(send_from(&socket, 0x7fff_fff0, family).is_err());
        }
    }
}
