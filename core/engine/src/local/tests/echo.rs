use super::*;
use crate::config::LinkService;

#[test]
fn echo_to_the_gateway_is_answered() {
    let mut net = net();
    for to in ["10.0.2.2", "10.0.2.3"] {
        let answer = give(
            &mut net,
            &icmp4("10.0.2.15", to, b"\x08\0\0\0\x12\x34\0\x01hello"),
        )
        .answer();
        let (source, destination, hop_limit, message) = open(&answer);
        assert_eq!((source, destination, hop_limit), (ip(to), ip("10.0.2.15"), 64));
        assert_eq!(message[..2], [0, 0]);
        assert_eq!(message[4..], *b"\x12\x34\0\x01hello");
    }
    for to in ["fd70:6f6e:746f::2", "fd70:6f6e:746f::3", "fe80::2"] {
        let answer = give(
            &mut net,
            &icmp6("fd70:6f6e:746f::15", to, b"\x80\0\0\0\x12\x34\0\x01hello"),
        )
        .answer();
        let (source, destination, hop_limit, message) = open(&answer);
        assert_eq!(
            (source, destination, hop_limit),
            (ip(to), ip("fd70:6f6e:746f::15"), 64)
        );
        assert_eq!(message[..2], [129, 0]);
        assert_eq!(message[4..], *b"\x12\x34\0\x01hello");
    }
}

#[test]
fn reply_larger_than_the_mtu_is_fragmented() {
    for (request, len) in [
        (
            icmp4(
                "10.0.2.15",
                "10.0.2.2",
                &[&[8, 0, 0, 0, 0, 1, 0, 1][..], &[7; 65_507]].concat(),
            ),
            65_515,
        ),
        (
            icmp6(
                "fd70:6f6e:746f::15",
                "fd70:6f6e:746f::2",
                &[&[128, 0, 0, 0, 0, 1, 0, 1][..], &[7; 65_527]].concat(),
            ),
            65_535,
        ),
    ] {
        let outcome = give(&mut net(), &request);
        assert_eq!(outcome.handled, Handled::Yes);
        let mut whole: Vec<u8> = vec![];
        for bytes in &outcome.sent {
            check(bytes);
            let frame::Body::Ip(ip, frame::Transport::Fragment) =
                frame::parse(bytes, bytes.len()).unwrap().body
            else {
                panic!("not a fragment");
            };
            let place = ip.fragment.unwrap();
            assert_eq!(place.offset as usize, whole.len());
            whole.extend(&bytes[ip.payload_offset..]);
            assert_eq!(place.more, whole.len() < len);
        }
        assert_eq!(whole.len(), len);
        assert_eq!(outcome.moved, [("frames_down", outcome.sent.len() as u64)]);
    }
}

#[test]
fn disabled_icmp_does_not_answer_for_the_gateway() {
    let mut net = net();
    net.config.disabled = [LinkService::Icmp].into_iter().collect();
    give(
        &mut net,
        &icmp4("10.0.2.15", "10.0.2.2", b"\x08\0\0\0\x12\x34\0\x01hello"),
    )
    .silence();
    give(
        &mut net,
        &icmp6("fe80::15", "fe80::2", b"\x80\0\0\0\x12\x34\0\x01hello"),
    )
    .silence();
    // Neighbor discovery uses ICMPv6, too, and stays enabled: without it, the guest would have no IPv6.
    give(
        &mut net,
        &icmp6("fe80::15", "ff02::2", &[133, 0, 0, 0, 0, 0, 0, 0]),
    )
    .answer();
}
