//! The socket options that may be set. Both the level and the name are in registers, where a filter sees them; the value is
//! in memory, where none does.
//!
//! The list omits, among others: `IP_HDRINCL`, with which a raw ICMP socket sends packets of any protocol, from any address;
//! `SO_ATTACH_FILTER` and similar options, which run programs in the kernel; `SO_REUSEPORT`, which shares ports of other
//! processes; and memberships, by which the host receives groups that no other process has joined.

use libc::*;
use pontoon_sys::bind::IP_LOCAL_PORT_RANGE;

use super::Role;

/// A socket option that a forwarding process may set.
#[derive(Clone, Copy, Debug)]
pub struct SettableOption {
    /// The protocol level of setsockopt(2).
    pub level: c_int,
    /// The name of the option at that level.
    pub name: c_int,
    /// The code that needs it, and the purpose.
    pub reason: &'static str,
}

/// Returns the options that a process of this role may set.
pub fn settable(role: Role) -> impl Iterator<Item = &'static SettableOption> {
    let own: [&[SettableOption]; 2] = match role {
        Role::Engine => [ENGINE, &[]],
        Role::EngineOnInterface => [ENGINE, ON_INTERFACE],
        Role::Relay => [RELAY, &[]],
    };
    COMMON.iter().chain(own.into_iter().flatten())
}

const fn option(level: c_int, name: c_int, reason: &'static str) -> SettableOption {
    SettableOption { level, name, reason }
}

const COMMON: &[SettableOption] = &[
    option(SOL_IP, IP_TTL, "datagrams: TTL, as the sender's"),
    option(
        SOL_IPV6,
        IPV6_UNICAST_HOPS,
        "datagrams: hop limit, as the sender's",
    ),
    option(SOL_IP, IP_TOS, "datagrams: traffic class, as the sender's"),
    option(SOL_IPV6, IPV6_TCLASS, "datagrams: traffic class, as the sender's"),
];

const ENGINE: &[SettableOption] = &[
    option(SOL_SOCKET, SO_OOBINLINE, "TCP: urgent data is data"),
    option(SOL_TCP, TCP_NODELAY, "TCP: what is sent leaves at once"),
    option(SOL_SOCKET, SO_PEEK_OFF, "TCP: peeks behind what is in flight"),
    option(SOL_SOCKET, SO_KEEPALIVE, "TCP: whether an idle peer is there"),
    option(
        SOL_SOCKET,
        SO_LINGER,
        "TCP: a reset, by a time of 0, which no filter sees",
    ),
    option(
        SOL_IP,
        IP_BIND_ADDRESS_NO_PORT,
        "TCP: --outbound with an address, in both families",
    ),
    option(
        SOL_IP,
        IP_LOCAL_PORT_RANGE,
        "TCP: a share of the host's ephemeral ports, in both families",
    ),
    option(SOL_IPV6, IPV6_V6ONLY, "sockets: IPv6 is not IPv4"),
    option(SOL_SOCKET, SO_RCVBUF, "UDP: room for bursts"),
    option(SOL_UDP, UDP_GRO, "UDP: several datagrams in one receive"),
    option(SOL_IP, IP_RECVERR, "UDP, echo: the error queue"),
    option(SOL_IPV6, IPV6_RECVERR, "UDP, echo: the error queue"),
    option(SOL_IP, IP_RECVTTL, "UDP, echo: TTL of what is received"),
    option(
        SOL_IPV6,
        IPV6_RECVHOPLIMIT,
        "UDP, echo: hop limit of what is received",
    ),
    option(SOL_IP, IP_RECVTOS, "UDP, echo: traffic class of what is received"),
    option(
        SOL_IPV6,
        IPV6_RECVTCLASS,
        "UDP, echo: traffic class of what is received",
    ),
    option(SOL_IP, IP_MTU_DISCOVER, "UDP, echo: DF, as the guest's"),
    option(SOL_IPV6, IPV6_MTU_DISCOVER, "UDP, echo: DF, as the guest's"),
    option(SOL_IP, IP_PKTINFO, "published UDP ports: which address was asked"),
    option(
        SOL_IPV6,
        IPV6_RECVPKTINFO,
        "published UDP ports: which address was asked",
    ),
    option(SOL_SOCKET, SO_SNDBUF, "links over sockets: room for a burst"),
];

const ON_INTERFACE: &[SettableOption] = &[option(
    SOL_SOCKET,
    SO_BINDTODEVICE,
    "sockets: --outbound with an interface",
)];

const RELAY: &[SettableOption] = &[
    option(
        SOL_IP,
        IP_MULTICAST_TTL,
        "outputs: TTL, as the sender's or the rule's",
    ),
    option(
        SOL_IPV6,
        IPV6_MULTICAST_HOPS,
        "outputs: hop limit, as the sender's or the rule's",
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
