use std::net::IpAddr;

use super::super::tests::{Received, execute};
use super::*;
use crate::membership::message::Query;

const HOST: u32 = 0;
const BROADCAST: u32 = 1;

/// Hardware types of Ethernet, `InfiniBand`, loopback and tun interfaces.
const ETHERNET: u32 = 1;
const INFINIBAND: u32 = 32;
const LOOPBACK: u32 = 772;
const TUN: u32 = 0xfffe;

/// Returns true if the filter of the query's family accepts the query in a frame to `to`.
fn is_accepted(query: &Query, hardware: u32, kind: u32, to: [u8; 6]) -> bool {
    let group = query.group.unwrap_or(IpAddr::from([224, 0, 0, 1]));
    let (own, program) = match group {
        IpAddr::V4(_) => ("10.0.0.1", igmp()),
        IpAddr::V6(_) => ("fe80::1", mld()),
    };
    let (bytes, _) = query.packet(own.parse().unwrap()).unwrap();
    let link_layer = match hardware {
        TUN => Vec::new(),
        _ => [&to[..], &[2, 0, 0, 0, 0, 1, 8, 0]].concat(),
    };
    let received = Received {
        kind,
        hardware,
        link_layer: &link_layer,
        bytes: &bytes,
    };
    execute(&program, received)
}

fn of_group(group: &str) -> Query {
    Query::group(group.parse().unwrap())
}

#[test]
fn query_is_accepted_only_in_a_frame_to_its_group() {
    for (query, to) in [
        (Query::general(), [1, 0, 0x5e, 0, 0, 1]),
        (of_group("239.129.2.3"), [1, 0, 0x5e, 1, 2, 3]),
        (of_group("ff02::1"), [0x33, 0x33, 0, 0, 0, 1]),
        (of_group("ff1e::1:f203:405"), [0x33, 0x33, 0xf2, 3, 4, 5]),
    ] {
        assert!(is_accepted(&query, ETHERNET, PACKET_MULTICAST, to), "{query:?}");
        assert!(!is_accepted(&query, ETHERNET, HOST, to), "{query:?}");
        for byte in 0..6 {
            for bit in 0..8 {
                let mut other = to;
                other[byte] ^= 1 << bit;
                let accepted = is_accepted(&query, ETHERNET, PACKET_MULTICAST, other);
                assert!(!accepted, "{query:?} to {other:x?}");
            }
        }
        assert!(!is_accepted(&query, ETHERNET, BROADCAST, [0xff; 6]), "{query:?}");
    }
}

/// Tests links on which each packet reaches the only other end, and the kernel sets the type of all packets to
/// `PACKET_HOST`.
#[test]
fn query_is_accepted_on_a_link_without_addresses() {
    for query in [Query::general(), of_group("239.1.1.1"), of_group("ff1e::1")] {
        for hardware in WITHOUT_ADDRESSES {
            assert!(is_accepted(&query, hardware, HOST, [0; 6]), "{hardware}");
        }
        for hardware in [INFINIBAND, LOOPBACK] {
            assert!(!is_accepted(&query, hardware, HOST, [0; 6]), "{hardware}");
            assert!(
                is_accepted(&query, hardware, PACKET_MULTICAST, [0; 6]),
                "{hardware}"
            );
        }
    }
}

#[test]
fn reports_are_accepted_in_frames_to_any_address() {
    // An IGMPv2 report, and an MLDv2 report behind 16 bytes of hop-by-hop options.
    let mut report = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, 7, 239, 1, 1, 1];
    report.extend([0x16, 0, 0, 0, 239, 1, 1, 1]);
    let mut mld_report = vec![0x60, 0, 0, 0, 0, 16, 0, 1];
    mld_report.extend([0; 32]);
    mld_report.extend([58, 1]);
    mld_report.extend([0; 14]);
    mld_report.extend([143, 0, 0, 0, 0, 0, 0, 0]);
    for (program, packet, protocol_at) in [(igmp(), report, 9), (mld(), mld_report, 40)] {
        let received = |bytes| Received {
            kind: HOST,
            hardware: ETHERNET,
            link_layer: &[2, 0, 0, 0, 0, 5],
            bytes,
        };
        assert!(execute(&program, received(&packet)));
        let mut other = packet.clone();
        other[protocol_at] = 17;
        assert!(!execute(&program, received(&other)));
        assert!(!execute(&program, received(&packet[..packet.len() - 8])));
    }
}
