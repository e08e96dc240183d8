use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{oracle, protocol};

mod frames;

use frames::*;

#[test]
fn ethernet_padding_is_ignored() {
    let mut frame = ipv4(protocol::UDP, &udp(b"abc"));
    frame.resize(60, 0xee);
    let Ok(ParsedFrame {
        body: Body::Ip(ip, Transport::Udp(udp)),
        ..
    }) = parse(&frame, 60)
    else {
        panic!("no UDP");
    };
    assert_eq!((ip.payload_offset, ip.payload_len), (34, 11));
    assert_eq!((udp.payload_offset, udp.payload_len), (42, 3));
}

#[test]
fn payload_may_lie_beyond_the_head() {
    let frame = ipv4(protocol::TCP, &[&tcp(&[])[..], &[7; 60_000]].concat());
    let Ok(ParsedFrame {
        body: Body::Ip(_, Transport::Tcp(tcp)),
        ..
    }) = parse(&frame[..HEAD], frame.len())
    else {
        panic!("no TCP");
    };
    assert_eq!((tcp.payload_offset, tcp.payload_len), (54, 60_000));
    // A frame that is one byte shorter contradicts the length in the IP header.
    let short = frame.len() - 1;
    assert_eq!(parse(&frame[..HEAD], short), Err(FrameError::Truncated(short)));
}

#[test]
fn udp_super_frame_is_one_datagram() {
    let frame = ipv4(protocol::UDP, &udp(&[1; 40 * 1472]));
    let Ok(ParsedFrame {
        body: Body::Ip(_, Transport::Udp(udp)),
        ..
    }) = parse(&frame[..HEAD], frame.len())
    else {
        panic!("no UDP");
    };
    assert_eq!(udp.payload_len, 40 * 1472);
}

#[test]
fn udp_length_limits_the_data() {
    let with_length = |length: u16| {
        let mut datagram = udp(b"0123456789");
        datagram[4..6].copy_from_slice(&length.to_be_bytes());
        let frame = ipv4(protocol::UDP, &datagram);
        parse(&frame, frame.len()).map(|frame| match frame.body {
            Body::Ip(_, Transport::Udp(udp)) => udp.payload_len,
            other => panic!("{other:?}"),
        })
    };
    let wrong = Err(FrameError::Transport(protocol::UDP));
    assert_eq!(with_length(0), wrong);
    assert_eq!(with_length(7), wrong);
    assert_eq!(with_length(8), Ok(0));
    assert_eq!(with_length(15), Ok(7));
    assert_eq!(with_length(18), Ok(10));
    assert_eq!(with_length(19), wrong);
}

#[test]
fn inconsistent_ipv4_headers_are_refused() {
    let good = ipv4(protocol::UDP, &udp(b"abc"));
    let refused = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        set_ipv4_checksum(&mut frame);
        parse(&frame, frame.len()).unwrap_err()
    };
    assert_eq!(refused(14, 0x65), FrameError::IpHeader, "version 6");
    assert_eq!(refused(14, 0x44), FrameError::IpHeader, "four words");
    assert_eq!(
        refused(14, 0x4f),
        FrameError::IpHeader,
        "header longer than the packet"
    );
    assert_eq!(refused(17, 0), FrameError::IpHeader, "total length 0");
    assert_eq!(
        refused(17, 19),
        FrameError::IpHeader,
        "total length below the header's"
    );
    assert_eq!(refused(17, 27), FrameError::Truncated(14 + 27), "UDP header cut");
    assert_eq!(
        refused(17, 32),
        FrameError::Truncated(good.len()),
        "total length beyond the frame's end"
    );
    let mut frame = good.clone();
    frame[24] ^= 1;
    assert_eq!(parse(&frame, frame.len()), Err(FrameError::IpHeader), "checksum");
}

#[test]
fn arp_is_parsed_and_other_ethertypes_are_refused() {
    assert_eq!(parse(&[0; 13], 13), Err(FrameError::Truncated(13)));
    assert_eq!(parse(&[], 0), Err(FrameError::Truncated(0)));
    let tagged = ethernet(0x8100, &[0; 50]);
    assert_eq!(parse(&tagged, 64), Err(FrameError::EtherType(0x8100)));
    let arp = ethernet(0x0806, &[0; 28]);
    assert_eq!(parse(&arp, 42).unwrap().body, Body::Arp);
}

#[test]
fn transport_behind_ipv6_extension_headers_is_parsed() {
    let chain = [
        Extension::HopByHop(1),
        Extension::Destination(0),
        Extension::Routing(2),
        Extension::Authentication(4),
        Extension::Fragment {
            id: 9,
            offset: 0,
            more: false,
        },
        Extension::Destination(2),
    ];
    let frame = ipv6(&chain, protocol::UDP, &udp(b"abc"));
    let Ok(ParsedFrame {
        body: Body::Ip(ip, Transport::Udp(udp)),
        ..
    }) = parse(&frame, frame.len())
    else {
        panic!("no UDP");
    };
    assert_eq!(ip.fragment, None, "an atomic fragment is whole");
    assert_eq!(ip.protocol, protocol::UDP);
    assert_eq!(
        (udp.source_port, udp.destination_port, udp.payload_len),
        (4444, 5555, 3)
    );
}

#[test]
fn fragments_are_not_parsed_further() {
    for (offset, more) in [(0, true), (1448, true), (1448, false)] {
        let extension = Extension::Fragment {
            id: 0xdead_beef,
            offset,
            more,
        };
        let frame = ipv6(&[Extension::HopByHop(0), extension], protocol::UDP, &[0; 16]);
        let Ok(ParsedFrame {
            body: Body::Ip(ip, transport),
            ..
        }) = parse(&frame, frame.len())
        else {
            panic!("refused");
        };
        assert_eq!(transport, Transport::Fragment);
        assert_eq!(ip.protocol, protocol::UDP);
        assert_eq!((ip.payload_offset, ip.payload_len), (14 + 40 + 8 + 8, 16));
        let id = 0xdead_beef;
        assert_eq!(
            ip.fragment,
            Some(Fragment {
                id,
                offset: offset.into(),
                more
            })
        );
    }
}

#[test]
fn invalid_extension_header_chains_are_refused() {
    let atomic = Extension::Fragment {
        id: 1,
        offset: 0,
        more: false,
    };
    let piece = Extension::Fragment {
        id: 1,
        offset: 8,
        more: false,
    };
    let refused = |chain: &[Extension]| {
        let frame = ipv6(chain, protocol::UDP, &udp(b""));
        parse(&frame[..frame.len().min(HEAD)], frame.len()).unwrap_err()
    };
    assert_eq!(
        refused(&[Extension::Destination(0), Extension::HopByHop(0)]),
        FrameError::IpHeader
    );
    assert_eq!(refused(&[atomic, piece]), FrameError::IpHeader);
    assert_eq!(refused(&[piece, atomic]), FrameError::IpHeader);
    assert_eq!(refused(&[Extension::Authentication(0)]), FrameError::IpHeader);
    assert_eq!(
        refused(&[Extension::Destination(255)]),
        FrameError::TooManyHeaders
    );
    assert_eq!(
        refused(&[Extension::Destination(0); 40]),
        FrameError::TooManyHeaders
    );

    let mut routed = ipv6(&[Extension::Routing(2)], protocol::UDP, &udp(b""));
    routed[14 + 40 + 3] = 1;
    assert_eq!(
        parse(&routed, routed.len()),
        Err(FrameError::IpHeader),
        "segments left"
    );

    let mut cut = ipv6(&[Extension::Destination(0)], protocol::UDP, &[]);
    cut[14 + 40 + 1] = 1; // a length of 16 bytes, of which 8 are present
    assert_eq!(parse(&cut, cut.len()), Err(FrameError::Truncated(62)));

    let mut jumbo = ipv6(&[], protocol::TCP, &tcp(&[]));
    jumbo[18..20].copy_from_slice(&[0, 0]);
    assert_eq!(parse(&jumbo, jumbo.len()), Err(FrameError::Truncated(54)));
}

#[test]
fn tcp_options_are_parsed() {
    let parsed = |flags: u8, list: &[u8]| {
        let mut segment = tcp(list);
        segment[13] = flags;
        let frame = ipv4(protocol::TCP, &segment);
        match parse(&frame, frame.len()).unwrap().body {
            Body::Ip(_, Transport::Tcp(tcp)) => tcp.options,
            other => panic!("{other:?}"),
        }
    };
    let syn = Flags::SYN.0;
    let linux = [2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let all = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        ..TcpOptions::default()
    };
    assert_eq!(parsed(syn, &linux), all);
    assert_eq!(
        parsed(Flags::ACK.0, &linux),
        TcpOptions::default(),
        "SYN options in a segment without SYN are skipped"
    );
    assert_eq!(parsed(syn, &[3, 3, 255, 0]).window_scale, Some(14), "clamped");
    assert_eq!(
        parsed(syn, &[0, 2, 4, 5]).mss,
        None,
        "options after the end of the list are ignored"
    );
    assert_eq!(
        parsed(syn, &[3, 3, 2, 99, 1, 4, 2, 0]).window_scale,
        Some(2),
        "options before a malformed one are kept"
    );
    assert_eq!(parsed(syn, &[99, 0, 4, 2]), TcpOptions::default(), "length 0");
    assert_eq!(parsed(syn, &[1, 1, 1, 2]), TcpOptions::default(), "no length");
    assert_eq!(
        parsed(syn, &[2, 3, 9, 4, 2, 0, 0, 0]),
        TcpOptions {
            sack_permitted: true,
            ..TcpOptions::default()
        },
        "an MSS option of a wrong length is skipped"
    );

    let mut sack = vec![1, 1, 5, 34];
    sack.extend(1..=32);
    assert_eq!(
        parsed(Flags::ACK.0, &sack).sack,
        [
            Some((0x0102_0304, 0x0506_0708)),
            Some((0x090a_0b0c, 0x0d0e_0f10)),
            Some((0x1112_1314, 0x1516_1718)),
            Some((0x191a_1b1c, 0x1d1e_1f20)),
        ]
    );
}

#[test]
fn tcp_header_length_is_checked() {
    let with_offset = |words: u8| {
        let mut segment = tcp(&[]);
        segment[12] = words << 4;
        let frame = ipv4(protocol::TCP, &segment);
        parse(&frame, frame.len())
    };
    assert!(with_offset(5).is_ok());
    let wrong = Err(FrameError::Transport(protocol::TCP));
    assert_eq!(with_offset(4), wrong);
    assert_eq!(with_offset(6), wrong);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn parser_agrees_with_etherparse_on_valid_frames(frame in valid(), padding in 0..30_usize) {
        let mut frame = frame;
        frame.resize(frame.len() + padding, 0xee);
        let expected = oracle::parse(&frame);
        prop_assert!(expected.is_some(), "etherparse accepts each generated frame");
        prop_assert_eq!(parse(&frame[..frame.len().min(HEAD)], frame.len()).ok(), expected);
    }

    #[test]
    fn parser_agrees_with_etherparse_on_corrupted_frames(
        frame in valid(),
        changes in vec((0..120_usize, any::<u8>()), 1..4),
        keep in 0..400_usize,
    ) {
        let mut frame = frame;
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(keep.max(14));
        set_ipv4_checksum(&mut frame);
        let parsed = parse(&frame[..frame.len().min(HEAD)], frame.len());
        if let (Ok(parsed), Some(expected)) = (parsed, oracle::parse(&frame)) {
            prop_assert!(agree(parsed, expected), "{parsed:?}\n{expected:?}");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..HEAD), len in 0..70_000_usize) {
        let _ = parse(&bytes, len);
    }

    #[test]
    fn parsed_offsets_lie_in_the_frame(frame in valid(), change in any::<(u8, u8)>(), len in 0..600_usize) {
        let mut frame = frame;
        if let Some(byte) = frame.get_mut(usize::from(change.0)) {
            *byte = change.1;
        }
        set_ipv4_checksum(&mut frame);
        let len = len.min(frame.len());
        if let Ok(ParsedFrame { body: Body::Ip(ip, transport), .. }) = parse(&frame[..len.min(HEAD)], len) {
            let end = ip.payload_offset + ip.payload_len;
            prop_assert!(end <= len);
            let data = match transport {
                Transport::Tcp(tcp) => tcp.payload_offset + tcp.payload_len,
                Transport::Udp(udp) => udp.payload_offset + udp.payload_len,
                Transport::Icmp(icmp) => icmp.payload_offset + icmp.payload_len,
                Transport::Fragment | Transport::Other => end,
            };
            prop_assert!(data <= end);
        }
    }
}

/// Compares two parses of a corrupted frame, except where etherparse differs by design: it stops at an unknown TCP
/// option, continues behind a fragment header into data, supports IPv4's authentication header, and treats a length of
/// 0 (UDP, IPv6) as the rest of the frame.
fn agree(parsed: ParsedFrame, expected: ParsedFrame) -> bool {
    let (Body::Ip(parsed_ip, parsed), Body::Ip(expected_ip, expected)) = (parsed.body, expected.body) else {
        return parsed == expected;
    };
    if parsed_ip.fragment.is_some() && parsed_ip.fragment == expected_ip.fragment {
        return true;
    }
    if parsed_ip.source.is_ipv4() && parsed_ip.protocol == AUTHENTICATION {
        return true;
    }
    if parsed_ip.source.is_ipv6() && parsed_ip.payload_len == 0 {
        return true;
    }
    let without_options = |transport| match transport {
        Transport::Tcp(tcp) => Transport::Tcp(Tcp {
            options: TcpOptions::default(),
            ..tcp
        }),
        other => other,
    };
    parsed_ip == expected_ip && without_options(parsed) == without_options(expected)
}
