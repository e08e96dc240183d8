use super::*;
use crate::Failure;
use crate::host::Problem;
use crate::test_world::{TROUBLE, problem};

/// Returns UDP endpoints after one datagram of the guest from `guest` to `to`.
fn talking(guest: &str, to: &str) -> Nat {
    let mut nat = Nat::new();
    nat.send(guest, to);
    nat.world.forget();
    nat
}

/// Checks that the engine has sent the guest one ICMP error about its datagram, and no other frame.
#[track_caller]
fn expect_error(nat: &mut Nat, icmp: &str, guest: &str, to: &str) {
    assert_eq!(nat.world.down(), [format!("icmp {icmp} about {guest} > {to}")]);
}

const REPORTED: [(&str, u64); 2] = [("frames_down", 1), ("icmp_errors_down", 1)];
const REPORTED_AND_SENT: [(&str, u64); 3] = [("frames_down", 1), ("udp_up", 1), ("icmp_errors_down", 1)];
const REPORTED_UNSENT: [(&str, u64); 3] = [
    ("frames_down", 1),
    ("udp_send_failed", 1),
    ("icmp_errors_down", 1),
];

#[test]
fn datagram_that_policy_refuses_opens_no_socket() {
    for (guest, to, answer) in [
        // The gateway exists, and has no open port.
        (GUEST, "10.0.2.2:7", "10.0.2.2 > 10.0.2.15 3/3 0"),
        (GUEST, "10.0.2.99:7", "10.0.2.2 > 10.0.2.15 3/1 0"),
        (GUEST, "169.254.169.254:80", "10.0.2.2 > 10.0.2.15 3/13 0"),
        (GUEST, "127.0.0.1:7", "10.0.2.2 > 10.0.2.15 3/13 0"),
        (GUEST, "192.168.7.1:7", "10.0.2.2 > 10.0.2.15 3/13 0"),
        (
            GUEST_V6,
            "[fd70:6f6e:746f::2]:7",
            "fd70:6f6e:746f::2 > fd70:6f6e:746f::15 1/4 0",
        ),
        (
            GUEST_V6,
            "[::ffff:127.0.0.1]:7",
            "fd70:6f6e:746f::2 > fd70:6f6e:746f::15 1/1 0",
        ),
    ] {
        let mut nat = Nat::new();
        nat.send(guest, to);
        assert_eq!(nat.world.calls(), [""; 0]);
        expect_error(&mut nat, answer, guest, to);
        assert_eq!(
            nat.world.moved(),
            [("frames_down", 1), ("policy_refused", 1), ("icmp_errors_down", 1)]
        );
    }
}

#[test]
fn multicast_destination_is_dropped_without_an_error() {
    let mut nat = Nat::new();
    for (guest, to) in [
        (GUEST, "224.0.0.251:5353"),
        (GUEST, "255.255.255.255:9"),
        (GUEST_V6, "[ff02::fb]:5353"),
    ] {
        nat.send(guest, to);
        assert_eq!(nat.world.moved(), [("policy_refused", 1)], "{to}");
    }
    assert_eq!((nat.world.calls(), nat.world.down()), (vec![], vec![]));
}

#[test]
fn hop_limit_of_one_is_answered_by_the_gateway() {
    for (guest, to, answer) in [
        (GUEST, "192.0.2.1:33434", "10.0.2.2 > 10.0.2.15 11/0 0"),
        (
            GUEST_V6,
            "[2001:db8::1]:33434",
            "fd70:6f6e:746f::2 > fd70:6f6e:746f::15 3/0 0",
        ),
    ] {
        let mut nat = Nat::new();
        let probe = |hop_limit| Sent {
            hop_limit,
            ..Sent::new(guest, to, b"probe")
        };
        nat.burst(&[probe(1)]);
        assert_eq!(nat.world.calls(), [""; 0]);
        expect_error(&mut nat, answer, guest, to);
        assert_eq!(nat.world.moved(), REPORTED);
        nat.burst(&[probe(2)]);
        assert_eq!(nat.world.calls()[1], format!("0: > {to} hop 1 5"));
    }
}

#[test]
fn icmp_errors_are_passed_on_to_the_guest() {
    let (v4, v6) = ("192.0.2.1:7", "[2001:db8::1]:7");
    for (guest, to, offender, (kind, code), speaker) in [
        // The peer itself reports that its port is closed.
        (GUEST, v4, Some("192.0.2.1"), (3, 3), "192.0.2.1"),
        (GUEST_V6, v6, Some("2001:db8::1"), (1, 4), "2001:db8::1"),
        // A router on the path reports the error.
        (GUEST, v4, Some("203.0.113.9"), (11, 0), "203.0.113.9"),
        (GUEST_V6, v6, Some("2001:db8::9"), (3, 0), "2001:db8::9"),
        // Errors of a host whose address the guest must not see, and of the host itself, have the gateway's address.
        (GUEST, v4, Some("127.0.0.1"), (3, 1), "10.0.2.2"),
        (GUEST, v4, Some("192.168.7.1"), (3, 1), "10.0.2.2"),
        (GUEST, v4, None, (3, 1), "10.0.2.2"),
    ] {
        let mut nat = talking(guest, to);
        nat.world
            .host
            .queue_problem(0, problem(to, offender, kind, code), b"hello");
        nat.event(0, TROUBLE);
        let guest_ip = addr(guest).ip();
        expect_error(
            &mut nat,
            &format!("{speaker} > {guest_ip} {kind}/{code} 0"),
            guest,
            to,
        );
        assert_eq!(nat.world.moved(), REPORTED);
    }
}

#[test]
fn quote_has_the_guests_original_destination() {
    let mut nat = Nat::new();
    nat.world.net.policy.host_loopback = vec!["192.0.2.77".parse().unwrap()];
    nat.send(GUEST, "192.0.2.77:7");
    nat.world.forget();
    let refused = problem("127.0.0.1:7", Some("127.0.0.1"), 3, 3);
    nat.world.host.queue_problem(0, refused, b"hello");
    nat.event(0, TROUBLE);
    expect_error(&mut nat, "192.0.2.77 > 10.0.2.15 3/3 0", GUEST, "192.0.2.77:7");
}

#[test]
fn queue_entry_that_is_not_an_error_is_dropped() {
    let mut nat = talking(GUEST, "192.0.2.1:7");
    for (destination, kind) in [("192.0.2.1:7", 5), ("192.0.2.1:7", 0), ("127.0.0.1:7", 3)] {
        let odd = problem(destination, Some("203.0.113.9"), kind, 0);
        nat.world.host.queue_problem(0, odd, b"hello");
    }
    nat.event(0, TROUBLE);
    assert_eq!((nat.world.down(), nat.world.moved()), (vec![], vec![]));
}

#[test]
fn long_error_queue_is_read_in_several_turns() {
    let mut nat = talking(GUEST, "192.0.2.1:7");
    let refused = problem("192.0.2.1:7", Some("192.0.2.1"), 3, 3);
    for _ in 0..100 {
        nat.world.host.queue_problem(0, refused, b"hello");
    }
    nat.event(0, TROUBLE);
    let flow = nat.world.host.flow(0);
    assert_eq!(nat.world.down().len(), 64);
    assert_eq!(nat.world.net.ready, [flow]);
    nat.world.net.ready.clear();
    nat.ready(flow);
    assert_eq!(nat.world.down().len(), 36);
    assert!(nat.world.net.ready.is_empty());
}

#[test]
fn send_that_returns_an_earlier_error_is_repeated() {
    let mut nat = talking(GUEST, "192.0.2.1:7");
    let refused = problem("192.0.2.1:7", Some("192.0.2.1"), 3, 3);
    nat.world.host.queue_problem(0, refused, b"hello");
    nat.world.host.sends.push_back(Err(Failure::Refused));
    nat.send(GUEST, "192.0.2.1:7");
    assert_eq!(
        nat.world.calls(),
        ["0: > 192.0.2.1:7 hop 63 5 Refused", "0: > 192.0.2.1:7 hop 63 5"]
    );
    expect_error(&mut nat, "192.0.2.1 > 10.0.2.15 3/3 0", GUEST, "192.0.2.1:7");
    assert_eq!(nat.world.moved(), REPORTED_AND_SENT);
}

#[test]
fn missing_route_is_reported_at_once() {
    for (failure, code) in [
        (Failure::NetUnreachable, 0),
        (Failure::HostUnreachable, 1),
        (Failure::Prohibited, 13),
    ] {
        let mut nat = Nat::new();
        nat.world.host.sends.extend([Err(failure); 2]);
        nat.send(GUEST, "192.0.2.1:7");
        expect_error(
            &mut nat,
            &format!("10.0.2.2 > 10.0.2.15 3/{code} 0"),
            GUEST,
            "192.0.2.1:7",
        );
        assert_eq!(nat.world.moved(), REPORTED_UNSENT);
    }
}

#[test]
fn full_socket_drops_without_an_error() {
    let mut nat = Nat::new();
    nat.world.host.sends.push_back(Err(Failure::WouldBlock));
    nat.burst(&vec![Sent::new(GUEST, "192.0.2.1:7", b"hello"); 3]);
    assert_eq!(nat.world.down(), [""; 0]);
    assert_eq!(nat.world.moved(), [("udp_send_failed", 3)]);
}

#[test]
fn refused_batch_is_sent_one_by_one() {
    for failure in [Failure::TooBig, Failure::Invalid] {
        let mut nat = Nat::new();
        let batch =
            |port, len| vec![Sent::new(&format!("10.0.2.15:{port}"), "192.0.2.1:7", &vec![0; len]); 3];
        let attempts = if failure == Failure::TooBig { 2 } else { 1 };
        nat.world.host.sends.extend(vec![Err(failure); attempts]);
        nat.burst(&batch(1, 100));
        nat.world.forget();
        // The same size again: the engine has stored that the host refuses it.
        nat.burst(&batch(1, 100));
        assert_eq!(nat.world.calls(), vec!["0: > 192.0.2.1:7 hop 63 100"; 3]);
        assert_eq!(nat.world.moved(), [("udp_up", 3)]);
        // Smaller datagrams are sent together if the first error was about size.
        nat.burst(&batch(1, 99));
        let smaller = match failure {
            Failure::TooBig => vec!["0: > 192.0.2.1:7 hop 63 297 by 99"],
            _ => vec!["0: > 192.0.2.1:7 hop 63 99"; 3],
        };
        assert_eq!(nat.world.calls(), smaller);
        // The limit does not apply to another endpoint.
        nat.world.forget();
        nat.burst(&batch(2, 100));
        assert_eq!(
            nat.world.calls(),
            ["1: udp v4", "1: > 192.0.2.1:7 hop 63 300 by 100"]
        );
        assert_eq!(nat.world.moved(), [("udp_up", 3), ("udp_batches_up", 1)]);
    }
}

#[test]
fn too_big_error_contains_the_path_mtu() {
    for (guest, to, kind_code) in [
        (GUEST, "192.0.2.1:7", "3/4"),
        (GUEST_V6, "[2001:db8::1]:7", "2/0"),
    ] {
        let mut nat = talking(guest, to);
        let local = Problem {
            mtu: Some(1_400),
            ..problem(to, None, 0, 0)
        };
        nat.world.host.queue_problem(0, local, b"");
        nat.world.host.sends.push_back(Err(Failure::TooBig));
        nat.burst(&[Sent {
            hop_limit: 31,
            ..Sent::new(guest, to, &[0; 1_450])
        }]);
        let (guest_ip, gateway) = match guest {
            GUEST => ("10.0.2.15", "10.0.2.2"),
            _ => ("fd70:6f6e:746f::15", "fd70:6f6e:746f::2"),
        };
        expect_error(
            &mut nat,
            &format!("{gateway} > {guest_ip} {kind_code} 1400"),
            guest,
            to,
        );
        assert_eq!(nat.world.moved(), REPORTED_UNSENT);
    }
}

/// The host's kernel does the same for its own programs, most of which do no path MTU discovery.
#[test]
fn first_datagrams_too_big_for_the_hosts_interface_are_fragmented() {
    for (guest, to, error, remote) in [
        (GUEST, "192.0.2.1:7", "10.0.2.2 > 10.0.2.15 3/4 1400", "192.0.2.1"),
        (
            GUEST_V6,
            "[2001:db8::1]:7",
            "fd70:6f6e:746f::2 > fd70:6f6e:746f::15 2/0 1400",
            "2001:db8::1",
        ),
    ] {
        let mut nat = talking(guest, to);
        let large = Sent::new(guest, to, &[0; 9_000]);
        let too_big = |nat: &mut Nat| {
            let local = Problem {
                mtu: Some(1_400),
                ..problem(to, None, 0, 0)
            };
            nat.world.forget();
            nat.world.host.dont_fragment.clear();
            nat.world.host.queue_problem(0, local, b"");
            nat.world.host.sends.push_back(Err(Failure::TooBig));
            nat.burst(std::slice::from_ref(&large));
        };
        for _ in 0..2 {
            too_big(&mut nat);
            assert_eq!(nat.world.host.dont_fragment, [true, false]);
            // The quoted packet is an echo reply, which no socket of the guest has sent.
            let guest_ip = addr(guest).ip();
            assert_eq!(
                nat.world.down(),
                [format!("icmp {error} about {guest_ip} > {remote} id 0 seq 0")]
            );
            assert_eq!(
                nat.world.moved(),
                [("frames_down", 1), ("udp_up", 1), ("icmp_errors_down", 1)]
            );
        }
        // A guest that still sends with DF uses path MTU discovery.
        nat.wait(2);
        too_big(&mut nat);
        assert_eq!(nat.world.host.dont_fragment, [true]);
        expect_error(&mut nat, error, guest, to);
        assert_eq!(nat.world.moved(), REPORTED_UNSENT);
    }
}

#[test]
fn datagram_too_big_without_df_is_dropped() {
    let mut nat = Nat::new();
    nat.world.host.sends.extend([Err(Failure::TooBig); 2]);
    nat.burst(&[Sent {
        dont_fragment: false,
        ..Sent::new(GUEST, "192.0.2.1:7", &[0; 1_450])
    }]);
    assert_eq!(nat.world.down(), [""; 0]);
    assert_eq!(nat.world.moved(), [("udp_send_failed", 1)]);
}

#[test]
fn too_big_error_of_a_router_is_passed_on_and_smaller_datagrams_are_sent() {
    let mut nat = talking(GUEST, "192.0.2.1:7");
    let router = Problem {
        mtu: Some(1_280),
        ..problem("192.0.2.1:7", Some("203.0.113.9"), 3, 4)
    };
    nat.world.host.queue_problem(0, router, b"hello");
    nat.world.host.sends.push_back(Err(Failure::TooBig));
    nat.send(GUEST, "192.0.2.1:7");
    expect_error(&mut nat, "203.0.113.9 > 10.0.2.15 3/4 1280", GUEST, "192.0.2.1:7");
    assert_eq!(nat.world.moved(), REPORTED_AND_SENT);
}

#[test]
fn send_error_without_a_queue_entry_is_repeated() {
    let mut nat = Nat::new();
    nat.world.host.sends.push_back(Err(Failure::Refused));
    nat.send(GUEST, "192.0.2.1:7");
    assert_eq!(nat.world.moved(), [("udp_up", 1)]);
    nat.world
        .host
        .sends
        .extend([Err(Failure::Refused), Err(Failure::Refused)]);
    nat.send(GUEST, "192.0.2.1:7");
    expect_error(&mut nat, "10.0.2.2 > 10.0.2.15 3/3 0", GUEST, "192.0.2.1:7");
}
