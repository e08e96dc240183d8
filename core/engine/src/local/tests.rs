//! Transcripts of the local services: frames from the guest, replies, and the exact changes of counters.

mod arp;
mod dhcp4;
mod dhcp6;
mod echo;
mod icmp_error;
mod ndp;

use core::net::IpAddr;

use pontoon_wire::checksum::Sum;
use pontoon_wire::vnet::Segmentation;
use pontoon_wire::{emit, frame, protocol};
use proptest::prelude::*;

use super::{Handled, handle, solicit_guest};
use crate::ctx::Net;
use crate::test_world::{FakeLink, GUEST_MAC, OUR_MAC, ether, ip, moved, net, with_frame};

/// The result of handling one frame.
#[derive(Debug, PartialEq)]
struct Outcome {
    handled: Handled,
    sent: Vec<Vec<u8>>,
    moved: Vec<(&'static str, u64)>,
}

impl Outcome {
    /// Checks that the frame was answered by one frame, and returns the answer.
    #[track_caller]
    fn answer(self) -> Vec<u8> {
        assert_eq!(self.handled, Handled::Yes);
        assert_eq!(self.moved, [("frames_down", 1)]);
        let [frame] = self.sent.try_into().unwrap();
        check(&frame);
        frame
    }

    /// Checks that the frame was handled and not answered.
    #[track_caller]
    fn silence(self) {
        assert_eq!(
            self,
            Self {
                handled: Handled::Yes,
                sent: vec![],
                moved: vec![]
            }
        );
    }

    /// Checks that the frame was counted as malformed.
    #[track_caller]
    fn malformed(self) {
        assert_eq!(
            self,
            Self {
                handled: Handled::Yes,
                sent: vec![],
                moved: vec![("malformed", 1)]
            }
        );
    }

    /// Checks that the frame is not for a local service.
    #[track_caller]
    fn elsewhere(self) {
        assert_eq!(
            self,
            Self {
                handled: Handled::No,
                sent: vec![],
                moved: vec![]
            }
        );
    }
}

fn give(net: &mut Net, bytes: &[u8]) -> Outcome {
    give_to(net, &mut FakeLink::new(), bytes)
}

fn give_to(net: &mut Net, link: &mut FakeLink, bytes: &[u8]) -> Outcome {
    let before = net.counters;
    let handled = with_frame(bytes, Segmentation::Whole, |frame, parsed| {
        handle(frame, parsed, net, link)
    });
    Outcome {
        handled,
        sent: link.take(),
        moved: moved(net, &before),
    }
}

/// Returns a packet of the guest. The checksum at the offset `checksum_at` of `content` is computed.
fn packet(from: &str, to: &str, hop_limit: u8, protocol: u8, checksum_at: usize, content: &[u8]) -> Vec<u8> {
    let (source, destination) = (ip(from), ip(to));
    let mut content = content.to_vec();
    let sum = match protocol {
        protocol::ICMP => Sum::new(),
        _ => Sum::pseudo(source, destination, protocol, content.len()),
    };
    let sum = sum.add(&content).finish();
    content[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let ip = emit::Ip {
        source,
        destination,
        hop_limit,
        traffic_class: 0,
        dont_fragment: true,
        ident: 0,
    };
    let head = emit::ip(ether(), ip, protocol, content.len());
    [head.bytes(), &content].concat()
}

fn icmp4(from: &str, to: &str, message: &[u8]) -> Vec<u8> {
    packet(from, to, 64, protocol::ICMP, 2, message)
}

fn icmp6(from: &str, to: &str, message: &[u8]) -> Vec<u8> {
    packet(from, to, 255, protocol::ICMPV6, 2, message)
}

fn udp(from: (&str, u16), to: (&str, u16), payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + payload.len()).unwrap();
    let header = [
        from.1.to_be_bytes(),
        to.1.to_be_bytes(),
        len.to_be_bytes(),
        [0; 2],
    ]
    .concat();
    packet(from.0, to.0, 64, protocol::UDP, 6, &[&header, payload].concat())
}

/// Checks that a frame from the engine has its source address, consistent lengths and valid checksums.
#[track_caller]
fn check(bytes: &[u8]) {
    let parsed = frame::parse(bytes, bytes.len()).unwrap();
    assert_eq!(parsed.source, OUR_MAC);
    let frame::Body::Ip(ip, _) = parsed.body else {
        return;
    };
    assert_eq!(ip.payload_offset + ip.payload_len, bytes.len());
    if ip.fragment.is_none() {
        assert_eq!(upper_sum(&ip, &bytes[ip.payload_offset..]), 0);
    }
}

/// Returns 0 if the checksum in `content` is correct.
fn upper_sum(ip: &frame::Ip, content: &[u8]) -> u16 {
    match ip.protocol {
        protocol::ICMP => Sum::new(),
        protocol => Sum::pseudo(ip.source, ip.destination, protocol, content.len()),
    }
    .add(content)
    .finish()
}

/// Returns addresses, hop limit and content of a frame from the engine.
fn open(bytes: &[u8]) -> (IpAddr, IpAddr, u8, &[u8]) {
    let frame::Body::Ip(ip, _) = frame::parse(bytes, bytes.len()).unwrap().body else {
        panic!("not an IP packet: {bytes:?}");
    };
    (
        ip.source,
        ip.destination,
        ip.hop_limit,
        &bytes[ip.payload_offset..],
    )
}

#[test]
fn membership_reports_are_dropped() {
    let mut net = net();
    let igmp = [0x22, 0, 0, 0, 0, 0, 0, 0];
    give(&mut net, &packet("10.0.2.15", "224.0.0.22", 1, 2, 2, &igmp)).silence();
    for kind in [130, 131, 132, 143] {
        give(
            &mut net,
            &icmp6("fe80::15", "ff02::16", &[kind, 0, 0, 0, 0, 0, 0, 0]),
        )
        .silence();
    }
}

#[test]
fn other_traffic_is_not_handled() {
    let mut net = net();
    for frame in [
        icmp4("10.0.2.15", "8.8.8.8", &[8, 0, 0, 0, 0, 1, 0, 1]),
        icmp4("10.0.2.15", "10.0.2.2", &[0, 0, 0, 0, 0, 1, 0, 1]),
        icmp6("fd70:6f6e:746f::15", "2001:db8::1", &[128, 0, 0, 0, 0, 1, 0, 1]),
        udp(("10.0.2.15", 68), ("192.0.2.1", 67), &[0; 300]),
        udp(("10.0.2.15", 5_353), ("224.0.0.251", 5_353), b"mdns"),
        udp(("10.0.2.15", 5_000), ("10.0.2.3", 53), b"dns"),
        udp(("fe80::15", 546), ("2001:db8::1", 547), &[11, 0, 0, 0]),
    ] {
        give(&mut net, &frame).elsewhere();
    }
}

#[test]
fn reply_that_the_link_refuses_is_counted() {
    let mut net = net();
    let mut link = FakeLink::new();
    link.room = 0;
    for frame in [
        arp::request("10.0.2.15", "10.0.2.2"),
        icmp4("10.0.2.15", "10.0.2.2", &[8, 0, 0, 0, 0, 1, 0, 1]),
    ] {
        let outcome = give_to(&mut net, &mut link, &frame);
        assert_eq!(
            outcome,
            Outcome {
                handled: Handled::Yes,
                sent: vec![],
                moved: vec![("link_refused", 1)]
            }
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn random_content_never_panics(
        service in 0..7_usize,
        kind: u8,
        content in proptest::collection::vec(any::<u8>(), 8..700),
    ) {
        let mut net = net();
        let mut typed = content.clone();
        typed[0] = kind;
        let bytes = match service {
            0 => arp::frame(&content),
            1 => icmp4("10.0.2.15", "10.0.2.2", &typed),
            2 => {
                typed[0] = 128 + kind % 16;
                icmp6("fe80::15", "ff02::2", &typed)
            }
            3 => udp(("0.0.0.0", 68), ("255.255.255.255", 67), &content),
            4 => udp(("0.0.0.0", 68), ("255.255.255.255", 67), &dhcp4::with_options(&content)),
            5 => udp(("fe80::15", 546), ("ff02::1:2", 547), &content),
            _ => {
                typed[0] = kind % 12;
                udp(("fe80::15", 546), ("ff02::1:2", 547), &typed)
            }
        };
        for sent in give(&mut net, &bytes).sent {
            check(&sent);
        }
    }

    #[test]
    fn random_frames_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 14..300), kind in 0..3_usize) {
        bytes[12..14].copy_from_slice([&[8, 6], &[8, 0], &[0x86, 0xdd]][kind]);
        if frame::parse(&bytes, bytes.len()).is_ok() {
            give(&mut net(), &bytes);
        }
    }
}

#[test]
fn a_guests_ethernet_address_is_requested_in_both_families() {
    let (mut net, mut link) = (net(), FakeLink::new());
    let before = net.counters;
    solicit_guest(&mut net, &mut link);
    assert_eq!(moved(&net, &before), [("frames_down", 2)]);
    let [request, solicitation] = link.take().try_into().unwrap();
    let IpAddr::V4(guest) = ip("10.0.2.15") else {
        unreachable!()
    };
    assert_eq!(request[..6], [0xff; 6]);
    assert_eq!(request[6..14], [&OUR_MAC.0[..], &[8, 6]].concat());
    assert_eq!(request[14..22], [0, 1, 8, 0, 6, 4, 0, 1]);
    assert_eq!(
        request[28..42],
        [&[10, 0, 2, 2][..], &[0; 6], &guest.octets()].concat()
    );
    check(&solicitation);
    // RFC 2464 section 7, RFC 4291 section 2.7.1.
    assert_eq!(solicitation[..6], [0x33, 0x33, 0xff, 0, 0, 0x15]);
    let (source, destination, hop_limit, message) = open(&solicitation);
    assert_eq!(
        (source, destination, hop_limit),
        (ip("fe80::2"), ip("ff02::1:ff00:15"), 255)
    );
    let IpAddr::V6(guest) = ip("fd70:6f6e:746f::15") else {
        unreachable!()
    };
    assert_eq!(message[..2], [135, 0]);
    assert_eq!(message[8..24], guest.octets());
    assert_eq!(message[24..], [&[1, 1][..], &OUR_MAC.0].concat());
}
