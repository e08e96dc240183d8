//! Socket options that a sandboxed process may set. A filter can check level and name of an option, which are in
//! registers, but not its value, which is in memory.
//!
//! The list omits, among others: `IP_HDRINCL`, with which a raw ICMP socket could send packets of any protocol from any
//! address; `SO_ATTACH_FILTER` and similar options, which run programs in the kernel; `SO_REUSEPORT`, which shares
//! ports with other processes; memberships of multicast groups, which no other process of the host has joined.

use libc::*;
use pontoon_sys::bind::IP_LOCAL_PORT_RANGE;

use super::Role;

/// A socket option that a sandboxed process may set.
#[derive(Clone, Copy, Debug)]
pub struct SettableOption {
    /// Protocol level of the option (argument 1 of setsockopt(2)).
    pub level: c_int,
    /// Name of the option at that level (argument 2 of setsockopt(2)).
    pub name: c_int,
    /// Component that sets the option, and its purpose.
    pub reason: &'static str,
}

/// Returns the options that a process with this role may set.
pub fn settable(role: Role) -> impl Iterator<Item = &'static SettableOption> {
    let lists: [&[SettableOption]; 3] = match role {
        Role::Engine => [COMMON, ENGINE, &[]],
        Role::EngineOnInterface => [COMMON, ENGINE, ON_INTERFACE],
        Role::Relay => [COMMON, RELAY, &[]],
        Role::SocketHelper => [SOCKET_HELPER, &[], &[]],
    };
    lists.into_iter().flatten()
}

const fn option(level: c_int, name: c_int, reason: &'static str) -> SettableOption {
    SettableOption { level, name, reason }
}

const COMMON: &[SettableOption] = &[
    option(
        SOL_IP,
        IP_TTL,
        "datagrams: sends with the TTL of the guest's or sender's datagram",
    ),
    option(
        SOL_IPV6,
        IPV6_UNICAST_HOPS,
        "datagrams: sends with the hop limit of the guest's or sender's datagram",
    ),
    option(
        SOL_IP,
        IP_TOS,
        "datagrams: sends with the TOS of the guest's or sender's datagram",
    ),
    option(
        SOL_IPV6,
        IPV6_TCLASS,
        "datagrams: sends with the traffic class of the guest's or sender's datagram",
    ),
];

const ENGINE: &[SettableOption] = &[
    option(SOL_SOCKET, SO_OOBINLINE, "TCP: receives urgent data inline"),
    option(
        SOL_TCP,
        TCP_NODELAY,
        "TCP: sends data without delay (no Nagle's algorithm)",
    ),
    option(
        SOL_SOCKET,
        SO_PEEK_OFF,
        "TCP: peeks behind the data in flight to the guest",
    ),
    option(SOL_SOCKET, SO_KEEPALIVE, "TCP: probes idle peers"),
    option(SOL_TCP, TCP_KEEPIDLE, "TCP: times of the probes"),
    option(SOL_TCP, TCP_KEEPINTVL, "TCP: times of the probes"),
    option(SOL_TCP, TCP_KEEPCNT, "TCP: times of the probes"),
    option(
        SOL_SOCKET,
        SO_LINGER,
        "TCP: resets the connection, with a timeout of 0 (a filter cannot check the value)",
    ),
    option(
        SOL_IP,
        IP_BIND_ADDRESS_NO_PORT,
        "TCP: --outbound with an address, IPv4 and IPv6",
    ),
    option(
        SOL_IP,
        IP_LOCAL_PORT_RANGE,
        "TCP: limits source ports to a share of the host's ephemeral ports, IPv4 and IPv6",
    ),
    option(
        SOL_IPV6,
        IPV6_V6ONLY,
        "sockets: IPv6 sockets send and receive no IPv4",
    ),
    option(
        SOL_SOCKET,
        SO_RCVBUF,
        "UDP: enlarges the receive buffer for bursts",
    ),
    option(SOL_UDP, UDP_GRO, "UDP: receives several datagrams in one call"),
    option(SOL_IP, IP_RECVERR, "UDP, echo: enables the error queue"),
    option(SOL_IPV6, IPV6_RECVERR, "UDP, echo: enables the error queue"),
    option(
        SOL_IP,
        IP_RECVTTL,
        "UDP, echo: reports the TTL of received packets",
    ),
    option(
        SOL_IPV6,
        IPV6_RECVHOPLIMIT,
        "UDP, echo: reports the hop limit of received packets",
    ),
    option(
        SOL_IP,
        IP_RECVTOS,
        "UDP, echo: reports the TOS of received packets",
    ),
    option(
        SOL_IPV6,
        IPV6_RECVTCLASS,
        "UDP, echo: reports the traffic class of received packets",
    ),
    option(
        SOL_IP,
        IP_MTU_DISCOVER,
        "UDP, echo: sets DF as in the guest's packet",
    ),
    option(
        SOL_IPV6,
        IPV6_MTU_DISCOVER,
        "UDP, echo: forbids fragmentation as the guest's packet does",
    ),
    option(
        SOL_IP,
        IP_PKTINFO,
        "published UDP ports: reports the address to which a client has sent",
    ),
    option(
        SOL_IPV6,
        IPV6_RECVPKTINFO,
        "published UDP ports: reports the address to which a client has sent",
    ),
    option(
        SOL_SOCKET,
        SO_SNDBUF,
        "links over sockets: enlarges the send buffer for a burst",
    ),
];

const ON_INTERFACE: &[SettableOption] = &[option(
    SOL_SOCKET,
    SO_BINDTODEVICE,
    "sockets: --outbound with an interface",
)];

const SOCKET_HELPER: &[SettableOption] = &[
    option(SOL_SOCKET, SO_OOBINLINE, "TCP: receives urgent data inline"),
    option(
        SOL_TCP,
        TCP_NODELAY,
        "TCP: sends data without delay (no Nagle's algorithm)",
    ),
];

const RELAY: &[SettableOption] = &[
    option(
        SOL_IP,
        IP_MULTICAST_TTL,
        "outputs: TTL of the sender's datagram or of the rule",
    ),
    option(
        SOL_IPV6,
        IPV6_MULTICAST_HOPS,
        "outputs: hop limit of the sender's datagram or of the rule",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::ROLES;
    use super::*;

    #[test]
    fn options_occur_once_and_have_a_reason() {
        for role in ROLES {
            let mut seen = BTreeSet::new();
            for option in settable(role) {
                assert!(seen.insert((option.level, option.name)), "twice: {option:?}");
                assert!(!option.reason.is_empty(), "no reason: {option:?}");
            }
        }
    }

    #[test]
    fn permitted_options_do_not_change_the_purpose_of_a_socket() {
        let never = [
            (SOL_IP, IP_HDRINCL),
            (SOL_IPV6, IPV6_HDRINCL),
            (SOL_SOCKET, SO_ATTACH_FILTER),
            (SOL_SOCKET, SO_DETACH_FILTER),
            (SOL_SOCKET, SO_ATTACH_BPF),
            (SOL_SOCKET, SO_REUSEPORT),
            (SOL_UDP, UDP_ENCAP),
            (SOL_TCP, TCP_ULP),
            (SOL_IP, IP_ADD_MEMBERSHIP),
        ];
        for option in ROLES.into_iter().flat_map(settable) {
            assert!(!never.contains(&(option.level, option.name)), "{option:?}");
            assert!(
                ![SOL_RAW, SOL_ICMPV6, SOL_PACKET].contains(&option.level),
                "{option:?}"
            );
        }
    }
}
