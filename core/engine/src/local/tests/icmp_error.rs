use super::*;
use crate::local::icmp_error::{InvokingPacket, Reason, refuse, refuse_sent};

fn give_refused(net: &mut Net, speaker: &str, reason: Reason, bytes: &[u8]) -> Outcome {
    let before = net.counters;
    let mut link = FakeLink::new();
    with_frame(bytes, Segmentation::Whole, |frame, parsed| {
        refuse(net, &mut link, ip(speaker), reason, frame, parsed);
    });
    Outcome {
        handled: Handled::Yes,
        sent: link.take(),
        moved: moved(net, &before),
    }
}

#[track_caller]
fn only(outcome: Outcome) -> Vec<u8> {
    assert_eq!(outcome.moved, [("frames_down", 1), ("icmp_errors_down", 1)]);
    let [frame] = outcome.sent.try_into().unwrap();
    check(&frame);
    frame
}

#[test]
fn each_reason_has_its_type_and_code() {
    let mut net = net();
    let v4 = udp(("10.0.2.15", 4_000), ("192.0.2.1", 5_000), b"hello");
    let v6 = udp(("fd70:6f6e:746f::15", 4_000), ("2001:db8::1", 5_000), b"hello");
    let reported = Reason::Reported {
        kind: 3,
        code: 1,
        mtu: None,
    };
    for (reason, expected4, expected6) in [
        (Reason::NetUnreachable, [3, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]),
        (Reason::HostUnreachable, [3, 1, 0, 0, 0, 0], [1, 3, 0, 0, 0, 0]),
        (
            Reason::ProtocolUnreachable,
            [3, 2, 0, 0, 0, 0],
            [4, 1, 0, 0, 0, 6],
        ),
        (Reason::PortUnreachable, [3, 3, 0, 0, 0, 0], [1, 4, 0, 0, 0, 0]),
        (Reason::Prohibited, [3, 13, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]),
        (
            Reason::TooBig { mtu: 1_400 },
            [3, 4, 0, 0, 5, 0x78],
            [2, 0, 0, 0, 5, 0x78],
        ),
        (
            Reason::TooBig { mtu: 70_000 },
            [3, 4, 0, 0, 255, 255],
            [2, 0, 0, 1, 0x11, 0x70],
        ),
        (Reason::TimeExceeded, [11, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]),
        (reported, [3, 1, 0, 0, 0, 0], [3, 1, 0, 0, 0, 0]),
    ] {
        for (packet, gateway, guest, expected) in [
            (&v4, "10.0.2.2", "10.0.2.15", expected4),
            (&v6, "fd70:6f6e:746f::2", "fd70:6f6e:746f::15", expected6),
        ] {
            let frame = only(give_refused(&mut net, gateway, reason, packet));
            let (source, destination, _, message) = open(&frame);
            assert_eq!((source, destination), (ip(gateway), ip(guest)));
            assert_eq!(
                [
                    message[0], message[1], message[4], message[5], message[6], message[7]
                ],
                expected
            );
            assert_eq!(message[8..], packet[14..]);
        }
    }
}

#[test]
fn error_of_another_family_is_from_the_gateway() {
    let mut net = net();
    let packet = udp(("10.0.2.15", 4_000), ("192.0.2.1", 5_000), b"hello");
    for (speaker, shown) in [("198.51.100.7", "198.51.100.7"), ("2001:db8::7", "10.0.2.2")] {
        let frame = only(give_refused(&mut net, speaker, Reason::TimeExceeded, &packet));
        assert_eq!(open(&frame).0, ip(shown));
    }
}

#[test]
fn quote_has_the_length_of_the_rfcs() {
    let mut net = net();
    for (packet, len) in [
        (
            udp(("10.0.2.15", 4_000), ("192.0.2.1", 5_000), &[7; 3_000]),
            14 + 576,
        ),
        (
            udp(("fd70:6f6e:746f::15", 4_000), ("2001:db8::1", 5_000), &[7; 3_000]),
            14 + 1_280,
        ),
    ] {
        let frame = only(give_refused(
            &mut net,
            "10.0.2.2",
            Reason::PortUnreachable,
            &packet,
        ));
        assert_eq!(frame.len(), len);
        let (.., message) = open(&frame);
        assert_eq!(message[8..], packet[14..][..message.len() - 8]);
    }
    // Ethernet padding is not quoted.
    let mut padded = udp(("10.0.2.15", 4_000), ("192.0.2.1", 5_000), b"x");
    padded.extend([0; 17]);
    let frame = only(give_refused(
        &mut net,
        "10.0.2.2",
        Reason::PortUnreachable,
        &padded,
    ));
    assert_eq!(open(&frame).3[8..], padded[14..][..29]);
}

#[test]
fn packets_that_must_not_be_answered_cause_no_error() {
    let mut net = net();
    let fragment = |offset| {
        let place = frame::Fragment {
            id: 1,
            offset,
            more: true,
        };
        let ip = emit::Ip {
            source: ip("10.0.2.15"),
            destination: ip("192.0.2.1"),
            hop_limit: 64,
            traffic_class: 0,
            dont_fragment: false,
            ident: 0,
        };
        [
            emit::fragment(ether(), ip, protocol::UDP, place, 16).bytes(),
            &[0; 16],
        ]
        .concat()
    };
    for packet in [
        icmp4("10.0.2.15", "192.0.2.1", &[3, 3, 0, 0, 0, 0, 0, 0]),
        icmp4("10.0.2.15", "192.0.2.1", &[11, 0, 0, 0, 0, 0, 0, 0]),
        icmp6("fd70:6f6e:746f::15", "2001:db8::1", &[1, 4, 0, 0, 0, 0, 0, 0]),
        icmp6("fd70:6f6e:746f::15", "2001:db8::1", &[137, 0, 0, 0, 0, 0, 0, 0]),
        udp(("10.0.2.15", 1), ("224.0.0.251", 5_353), b""),
        udp(("10.0.2.15", 1), ("255.255.255.255", 9), b""),
        udp(("fd70:6f6e:746f::15", 1), ("ff02::fb", 5_353), b""),
        udp(("0.0.0.0", 1), ("192.0.2.1", 9), b""),
        udp(("224.0.0.1", 1), ("192.0.2.1", 9), b""),
        udp(("::", 1), ("2001:db8::1", 9), b""),
        fragment(8),
    ] {
        let outcome = give_refused(&mut net, "10.0.2.2", Reason::Prohibited, &packet);
        assert_eq!((outcome.sent, outcome.moved), (vec![], vec![]), "{packet:?}");
    }
    only(give_refused(
        &mut net,
        "10.0.2.2",
        Reason::Prohibited,
        &fragment(0),
    ));
    let echo = icmp4("10.0.2.15", "192.0.2.1", &[8, 0, 0, 0, 0, 0, 0, 0]);
    only(give_refused(&mut net, "10.0.2.2", Reason::Prohibited, &echo));
}

#[test]
fn quote_is_built_from_stored_headers() {
    let mut net = net();
    for (guest, remote, protocol, upper) in [
        (
            "10.0.2.15:4000",
            "192.0.2.1:5000",
            protocol::UDP,
            b"\x0f\xa0\x13\x88\x0b\xc0\0\0",
        ),
        (
            "10.0.2.15:4000",
            "192.0.2.1:5000",
            protocol::TCP,
            b"\x0f\xa0\x13\x88\0\0\0\0",
        ),
        (
            "10.0.2.15:4000",
            "192.0.2.1:5000",
            protocol::ICMP,
            b"\x08\0\0\0\x0f\xa0\x13\x88",
        ),
        (
            "[fd70:6f6e:746f::15]:4000",
            "[2001:db8::1]:5000",
            protocol::UDP,
            b"\x0f\xa0\x13\x88\x0b\xc0\0\0",
        ),
        (
            "[fd70:6f6e:746f::15]:4000",
            "[2001:db8::1]:5000",
            protocol::ICMPV6,
            b"\x80\0\0\0\x0f\xa0\x13\x88",
        ),
    ] {
        let before = net.counters;
        let mut link = FakeLink::new();
        let sent = InvokingPacket {
            protocol,
            source: guest.parse().unwrap(),
            destination: remote.parse().unwrap(),
            payload_len: 3_000,
        };
        let known = [7; 100];
        refuse_sent(
            &mut net,
            &mut link,
            ip("198.51.100.7"),
            Reason::HostUnreachable,
            sent,
            &known,
        );
        let frame = only(Outcome {
            handled: Handled::Yes,
            sent: link.take(),
            moved: moved(&net, &before),
        });
        let (_, destination, _, message) = open(&frame);
        assert_eq!(destination, sent.source.ip());
        // The quote is the beginning of an IP packet with the length that was sent.
        let quote = [
            &[0; 12][..],
            if sent.source.is_ipv4() {
                &[8, 0]
            } else {
                &[0x86, 0xdd]
            },
            &message[8..],
        ]
        .concat();
        let whole = 14 + if sent.source.is_ipv4() { 20 } else { 40 } + 8 + 3_000;
        let mut padded = quote.clone();
        padded.resize(whole.max(quote.len()), 0);
        if protocol != protocol::TCP {
            let frame::Body::Ip(ip, _) = frame::parse(&padded, padded.len()).unwrap().body else {
                panic!("the quote is no IP packet");
            };
            assert_eq!(
                (ip.source, ip.destination),
                (sent.source.ip(), sent.destination.ip())
            );
            assert_eq!((ip.protocol, ip.payload_len), (protocol, 3_008));
        }
        let at = quote.len() - known.len();
        assert_eq!(quote[at..], known);
        assert_eq!(quote[at - 8..at], *upper);
    }
}

#[test]
fn invalid_stored_headers_are_not_quoted() {
    let mut net = net();
    let before = net.counters;
    let mut link = FakeLink::new();
    for (destination, payload_len) in [("[2001:db8::1]:5000", 5), ("192.0.2.1:5000", 65_508)] {
        let sent = InvokingPacket {
            protocol: protocol::UDP,
            source: "10.0.2.15:4000".parse().unwrap(),
            destination: destination.parse().unwrap(),
            payload_len,
        };
        refuse_sent(
            &mut net,
            &mut link,
            ip("10.0.2.2"),
            Reason::PortUnreachable,
            sent,
            b"hello",
        );
    }
    assert!(link.take().is_empty());
    assert_eq!(moved(&net, &before), []);
}
