use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;

/// Returns an IPv4 packet built by etherparse, an independent library.
fn v4_packet(payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ipv4([10, 0, 0, 1], [239, 1, 1, 1], 17).udp(4000, 5001);
    let mut packet = Vec::new();
    builder.write(&mut packet, payload).unwrap();
    packet
}

fn v6_packet(payload: &[u8]) -> Vec<u8> {
    let (from, to) = ([0x20; 16], [0xff; 16]);
    let builder = PacketBuilder::ipv6(from, to, 17).udp(4000, 5001);
    let mut packet = Vec::new();
    builder.write(&mut packet, payload).unwrap();
    packet
}

fn refused(packet: &[u8]) -> DatagramError {
    Datagram::parse(packet, ChecksumState::Unverified).unwrap_err()
}

/// Changes bytes of an IPv4 packet and updates its header checksum.
fn changed(mut packet: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut packet);
    packet[10..12].fill(0);
    let sum = Sum::new().add(&packet[..20]).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn ipv4_datagram_is_parsed() {
    let mut packet = changed(v4_packet(b"hello"), |packet| packet[1] = 0xb9);
    packet.extend([0; 13]);
    let datagram = Datagram::parse(&packet, ChecksumState::Unverified).unwrap();
    let expected = Datagram {
        from: "10.0.0.1".parse().unwrap(),
        from_port: 4000,
        to: "239.1.1.1".parse().unwrap(),
        to_port: 5001,
        hops: 17,
        class: 0xb9,
        payload: 28..33,
    };
    assert_eq!(datagram, expected);
}

/// A rule for any port matches a datagram to port 0, but the kernel sends nothing to port 0.
#[test]
fn datagram_to_port_0_is_malformed() {
    for (mut packet, at) in [(v4_packet(b"hello"), 20), (v6_packet(b"hello"), 40)] {
        packet[at + 2..at + 4].fill(0);
        let parsed = Datagram::parse(&packet, ChecksumState::Verified);
        assert_eq!(parsed, Err(DatagramError::Malformed));
    }
}

#[test]
fn ipv6_datagram_behind_extension_headers_is_parsed() {
    let mut packet = v6_packet(b"hello");
    packet[0] = 0x6b;
    packet[1] = 0x90;
    let plain = Datagram::parse(&packet, ChecksumState::Unverified).unwrap();
    assert_eq!((plain.class, plain.hops, plain.payload), (0xb9, 17, 48..53));

    packet[6] = HOP_BY_HOP;
    let next = [protocol::UDP, 1, 5, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    packet.splice(40..40, next);
    packet[5] += 16;
    let behind = Datagram::parse(&packet, ChecksumState::Unverified).unwrap();
    assert_eq!((behind.to_port, behind.payload), (5001, 64..69));
}

#[test]
fn damaged_packets_are_refused() {
    let packet = v4_packet(b"hello");
    for at in [0, 8, 12, 16, 20, 22, 26, 28, 32] {
        let mut damaged = packet.clone();
        damaged[at] ^= 0x10;
        assert!(
            Datagram::parse(&damaged, ChecksumState::Unverified).is_err(),
            "byte {at}"
        );
    }
    let mut damaged = packet.clone();
    damaged[30] ^= 1;
    assert_eq!(refused(&damaged), DatagramError::Checksum);
    assert!(Datagram::parse(&damaged, ChecksumState::Verified).is_ok());

    let mut unsummed = packet;
    unsummed[26..28].fill(0);
    assert!(Datagram::parse(&unsummed, ChecksumState::Unverified).is_ok());
    let mut unsummed = v6_packet(b"hello");
    unsummed[46..48].fill(0);
    assert_eq!(refused(&unsummed), DatagramError::Checksum);
}

#[test]
fn fragments_and_other_protocols_are_refused() {
    for flags in [0x20, 0x01] {
        let fragment = changed(v4_packet(b"hello"), |packet| packet[6] = flags);
        assert_eq!(refused(&fragment), DatagramError::Fragment);
    }
    let whole = changed(v4_packet(b"hello"), |packet| packet[6] = 0x40);
    assert!(Datagram::parse(&whole, ChecksumState::Unverified).is_ok());
    let tcp = changed(v4_packet(b"hello"), |packet| packet[9] = 6);
    assert_eq!(refused(&tcp), DatagramError::Malformed);
    let mut fragment = v6_packet(b"hello");
    fragment[6] = FRAGMENT;
    assert_eq!(refused(&fragment), DatagramError::Fragment);
    fragment[6] = 58;
    assert_eq!(refused(&fragment), DatagramError::Malformed);
}

#[test]
fn truncated_packets_are_refused() {
    for packet in [v4_packet(b"hello"), v6_packet(b"hello")] {
        for len in 0..packet.len() {
            assert_eq!(refused(&packet[..len]), DatagramError::Malformed, "{len} bytes");
        }
    }
}

proptest! {
    #[test]
    fn parse_never_panics_and_payload_is_in_the_packet(mut packet in prop::collection::vec(any::<u8>(), 0..120), version in 3..8_u8) {
        if let Some(first) = packet.first_mut() {
            *first = version << 4 | (*first & 0xf);
        }
        if let Ok(datagram) = Datagram::parse(&packet, ChecksumState::Verified) {
            prop_assert!(packet.get(datagram.payload).is_some());
        }
    }
}
