use pontoon_wire::checksum::Sum;
use proptest::prelude::*;

use super::*;
use crate::test_world::{FakeLink, GUEST_MAC, OUR_MAC, addr, moved, net};

const META: DatagramMeta = DatagramMeta {
    hop_limit: 57,
    traffic_class: 0xb8,
    dont_fragment: false,
};

/// Returns the datagram that the guest reassembles from the frames: IP header fields and UDP datagram.
fn whole(frames: &[Vec<u8>]) -> (frame::Ip, Vec<u8>) {
    let mut first = None;
    let mut content: Vec<u8> = vec![];
    for (at, bytes) in frames.iter().enumerate() {
        let parsed = frame::parse(bytes, bytes.len()).unwrap();
        assert_eq!((parsed.source, parsed.destination), (OUR_MAC, GUEST_MAC));
        let frame::Body::Ip(ip, _) = parsed.body else {
            panic!("not an IP packet");
        };
        assert_eq!(ip.payload_offset + ip.payload_len, bytes.len());
        assert_eq!(
            (ip.hop_limit, ip.traffic_class, ip.protocol),
            (57, 0xb8, protocol::UDP)
        );
        let first = *first.get_or_insert(ip);
        assert_eq!((ip.source, ip.destination), (first.source, first.destination));
        if frames.len() > 1 {
            let place = ip.fragment.unwrap();
            assert_eq!(place.id, first.fragment.unwrap().id);
            assert_eq!(place.offset as usize, content.len());
            assert_eq!(place.more, at + 1 < frames.len());
        }
        content.extend(&bytes[ip.payload_offset..]);
    }
    (first.unwrap(), content)
}

#[test]
fn datagram_within_the_mtu_is_one_frame() {
    let mut net = net();
    for (from, to, most, dont_fragment) in [
        ("192.0.2.1:53", "10.0.2.15:4000", 1_472, false),
        ("192.0.2.1:53", "10.0.2.15:4000", 1_472, true),
        ("[2001:db8::1]:53", "[fd70:6f6e:746f::15]:4000", 1_452, true),
    ] {
        for (len, frames) in [(0, 1), (1, 1), (most, 1), (most + 1, 2)] {
            let before = net.counters;
            let mut link = FakeLink::new();
            let meta = DatagramMeta {
                dont_fragment,
                ..META
            };
            datagram(&mut net, &mut link, addr(from), addr(to), meta, &vec![7; len]);
            let sent = link.take();
            assert_eq!(sent.len(), frames);
            assert_eq!(
                moved(&net, &before),
                [("frames_down", frames as u64), ("udp_down", 1)]
            );
            let (ip, content) = whole(&sent);
            // Fragments have DF clear, because the datagram arrived in fragments.
            assert_eq!(
                ip.dont_fragment,
                ip.source.is_ipv6() || (dont_fragment && frames == 1)
            );
            assert_eq!(content[8..], vec![7; len]);
        }
    }
}

#[test]
fn identification_differs_between_fragmented_datagrams() {
    let mut net = net();
    let mut link = FakeLink::new();
    for _ in 0..2 {
        let (from, to) = (addr("192.0.2.1:53"), addr("10.0.2.15:4000"));
        datagram(&mut net, &mut link, from, to, META, &[7; 2_000]);
    }
    let sent = link.take();
    let (a, b) = (whole(&sent[..2]).0, whole(&sent[2..]).0);
    assert_ne!(a.fragment.unwrap().id, b.fragment.unwrap().id);
}

#[test]
fn datagram_longer_than_a_packet_is_refused() {
    let mut net = net();
    for (from, to, len) in [
        ("192.0.2.1:53", "10.0.2.15:4000", 65_508),
        ("[2001:db8::1]:53", "[fd70:6f6e:746f::15]:4000", 65_528),
        ("[2001:db8::1]:53", "10.0.2.15:4000", 5),
    ] {
        let before = net.counters;
        let mut link = FakeLink::new();
        datagram(&mut net, &mut link, addr(from), addr(to), META, &vec![7; len]);
        assert!(link.take().is_empty());
        assert_eq!(moved(&net, &before), [("link_refused", 1)]);
    }
}

#[test]
fn refused_fragment_ends_the_datagram() {
    let mut net = net();
    for len in [100, 3_000] {
        let before = net.counters;
        let mut link = FakeLink::new();
        link.room = 0;
        let (from, to) = (addr("192.0.2.1:53"), addr("10.0.2.15:4000"));
        datagram(&mut net, &mut link, from, to, META, &vec![7; len]);
        assert_eq!(moved(&net, &before), [("link_refused", 1)]);
    }
}

proptest! {
    #[test]
    fn fragments_reassemble_to_the_datagram(
        len in 0..65_508_usize,
        mtu in prop_oneof![576..1_600_usize, Just(65_520)],
        v6: bool,
        seed: u8,
    ) {
        let (from, to): (SocketAddr, SocketAddr) = match v6 {
            true => (addr("[2001:db8::1]:53"), addr("[fd70:6f6e:746f::15]:4000")),
            false => (addr("192.0.2.1:53"), addr("10.0.2.15:4000")),
        };
        let payload: Vec<u8> = (0..len).map(|at| (at * 31 + usize::from(seed)).to_le_bytes()[0]).collect();
        let mut net = net();
        let before = net.counters;
        let mut link = FakeLink::new();
        link.limits.mtu = mtu;
        datagram(&mut net, &mut link, from, to, META, &payload);
        let sent = link.take();
        prop_assert_eq!(moved(&net, &before), [("frames_down", sent.len() as u64), ("udp_down", 1)]);
        let (ip, content) = whole(&sent);
        prop_assert_eq!(&content[8..], &payload);
        prop_assert_eq!(&content[..6], &[&[0, 53, 15, 160][..], &u16::try_from(8 + len).unwrap().to_be_bytes()].concat());
        let sum = Sum::pseudo(ip.source, ip.destination, protocol::UDP, content.len()).add(&content);
        prop_assert_eq!(sum.finish(), 0);
        prop_assert_ne!(&content[6..8], &[0, 0]);
    }
}
