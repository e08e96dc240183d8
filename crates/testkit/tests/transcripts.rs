//! Single packets of the TCP engine, with exact counters: RFC 9293, 5961, 2018, 793's corner cases.

use core::time::Duration;

use pontoon_engine::Failure;
use pontoon_testkit::app::{Outcome, Script};
use pontoon_testkit::frames::{Packet, Segment, URG};
use pontoon_testkit::host::{Answer, HostPlan, Remote};
use pontoon_testkit::settings::config;
use pontoon_testkit::transcript::{ACK, DOWN, FIN, Given, PLAIN, PORT, RST, SYN, UP};

fn guest_syn() -> Segment {
    Segment {
        flags: SYN,
        seq: 1000,
        mss: Some(1460),
        ..UP
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn refused_is_a_reset_at_once() {
    let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
    given.up(guest_syn());
    given.down(Segment {
        flags: RST.and(ACK),
        ack: 1001,
        ..DOWN
    });
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn unreachable_is_icmp_then_a_reset() {
    let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
    let answer = Answer::Fail(Failure::HostUnreachable);
    given.host.serve(
        PORT,
        Remote {
            answer,
            script: Script::SINK,
        },
    );
    given.up(guest_syn());
    let out = given.take();
    let [Packet::Icmp(icmp), Packet::Tcp(reset)] = &out[..] else {
        panic!("{out:?}");
    };
    assert_eq!((icmp.kind, icmp.code), (3, 1), "host unreachable");
    assert_eq!((reset.flags, reset.seq, reset.ack), (RST.and(ACK), 0, 1001));
    assert_eq!(given.engine.flows(), 0);
}

#[test]
fn a_syn_is_answered_only_when_the_host_connection_stands() {
    let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
    let answer = Answer::After(millis(50));
    given.host.serve(
        PORT,
        Remote {
            answer,
            script: Script::SINK,
        },
    );
    given.up(guest_syn());
    given.pass(millis(49));
    given.quiet();
    // A SYN that is sent again meanwhile opens nothing.
    given.up(guest_syn());
    given.pass(millis(2));
    given.down(Segment {
        flags: SYN.and(ACK),
        ack: 1001,
        mss: Some(1460),
        ..DOWN
    });
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
}

#[test]
fn a_lost_syn_ack_is_sent_again_by_timer_and_by_a_second_syn() {
    let mut given = Given::server();
    let syn_ack = Segment {
        flags: SYN.and(ACK),
        ack: 1001,
        mss: Some(1460),
        ..DOWN
    };
    given.up(guest_syn());
    given.down(syn_ack.clone());
    given.up(guest_syn());
    given.down(syn_ack.clone());
    given.quiet();
    given.pass(Duration::from_secs(2));
    given.down(syn_ack);
}

#[test]
fn data_is_acknowledged_and_in_order() {
    let mut given = Given::open(Script::SINK);
    let payload = Given::guest_bytes(0, 100);
    given.up(Segment {
        seq: 1001,
        ack: 1,
        payload,
        ..UP
    });
    given.down(Segment {
        seq: 1,
        ack: 1101,
        ..DOWN
    });
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
    });
}

#[test]
fn data_ahead_of_its_turn_is_kept_and_reported() {
    let mut given = Given::open(Script::SINK);
    let data = |at: u64| Segment {
        seq: 1001 + at as u32,
        ack: 1,
        payload: Given::guest_bytes(at, 100),
        ..UP
    };
    given.up(data(200));
    given.down(Segment {
        seq: 1,
        ack: 1001,
        sack: vec![(1201, 1301)],
        ..DOWN
    });
    given.up(data(0));
    given.down(Segment {
        seq: 1,
        ack: 1101,
        sack: vec![(1201, 1301)],
        ..DOWN
    });
    given.up(data(100));
    given.down(Segment {
        seq: 1,
        ack: 1301,
        ..DOWN
    });
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 3;
        counters.frames_down += 3;
        counters.tcp_out_of_order += 1;
    });
}

#[test]
fn urgent_data_goes_in_line() {
    let mut given = Given::open(Script::SINK);
    let payload = Given::guest_bytes(0, 10);
    given.up(Segment {
        seq: 1001,
        ack: 1,
        flags: ACK.and(URG),
        urgent: 5,
        payload,
        ..UP
    });
    given.down(Segment {
        seq: 1,
        ack: 1011,
        ..DOWN
    });
    given.quiet();
}

#[test]
fn an_inexact_reset_is_challenged_and_an_exact_one_obeyed() {
    let mut given = Given::open(Script::SINK);
    given.up(Segment {
        seq: 1002,
        flags: RST,
        ack: 0,
        ..UP
    });
    given.down(Segment {
        seq: 1,
        ack: 1001,
        ..DOWN
    });
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
        counters.tcp_challenges += 1;
    });
    given.up(Segment {
        seq: 1001 + 0x4000_0000,
        flags: RST,
        ack: 0,
        ..UP
    });
    given.quiet();
    given.counted(|counters| counters.frames_up += 1);
    assert_eq!(given.engine.flows(), 1);
    given.up(Segment {
        seq: 1001,
        flags: RST,
        ack: 0,
        ..UP
    });
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.tcp_reset_by_guest += 1;
    });
    given.pass(millis(10));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(Outcome::Reset));
}

#[test]
fn a_syn_on_an_open_connection_is_challenged() {
    for seq in [1001, 1002, 5] {
        let mut given = Given::open(Script::SINK);
        given.up(Segment {
            seq,
            flags: SYN,
            ack: 0,
            mss: Some(1460),
            ..UP
        });
        given.down(Segment {
            seq: 1,
            ack: 1001,
            ..DOWN
        });
        given.quiet();
        given.counted(|counters| {
            counters.frames_up += 1;
            counters.frames_down += 1;
            counters.tcp_challenges += 1;
        });
        assert_eq!(given.engine.flows(), 1);
    }
}

#[test]
fn an_acknowledgement_of_the_future_is_challenged() {
    let mut given = Given::open(Script::SINK);
    let payload = Given::guest_bytes(0, 10);
    given.up(Segment {
        seq: 1001,
        ack: 2,
        payload,
        ..UP
    });
    given.down(Segment {
        seq: 1,
        ack: 1001,
        ..DOWN
    });
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
        counters.tcp_challenges += 1;
    });
}

#[test]
fn a_keepalive_probe_is_answered_and_passed_on() {
    for payload in [vec![], vec![0x5a]] {
        let mut given = Given::open(Script::SINK);
        given.up(Segment {
            seq: 1000,
            ack: 1,
            payload,
            ..UP
        });
        given.down(Segment {
            seq: 1,
            ack: 1001,
            ..DOWN
        });
        given.quiet();
        assert!(given.host.reports().all(|report| report.keepalive));
    }
}

#[test]
fn a_segment_to_nothing_is_reset() {
    let mut given = Given::server();
    given.up(Segment {
        seq: 5,
        ack: 77,
        payload: vec![1],
        ..UP
    });
    given.down(Segment {
        flags: RST,
        seq: 77,
        ..DOWN
    });
    given.up(Segment {
        seq: 5,
        ack: 77,
        flags: RST,
        ..UP
    });
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 2;
        counters.frames_down += 1;
        counters.tcp_unknown += 1;
    });
}

#[test]
fn the_guest_may_close_first_with_data_and_fin_in_one() {
    let mut given = Given::open(Script::SINK);
    let payload = Given::guest_bytes(0, 10);
    given.up(Segment {
        seq: 1001,
        ack: 1,
        flags: ACK.and(FIN),
        payload,
        ..UP
    });
    given.down(Segment {
        seq: 1,
        ack: 1012,
        ..DOWN
    });
    given.quiet();
    given.pass(millis(1));
    given.down(Segment {
        seq: 1,
        ack: 1012,
        flags: ACK.and(FIN),
        ..DOWN
    });
    given.quiet();
    given.up(Segment {
        seq: 1012,
        ack: 2,
        ..UP
    });
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(Outcome::Closed));
}

#[test]
fn the_host_may_close_first_and_time_wait_acknowledges_again() {
    let mut given = Given::open(Script::source(100));
    given.pass(millis(1));
    let payload = Given::server_bytes(0, 100);
    given.down(Segment {
        seq: 1,
        ack: 1001,
        flags: ACK.and(FIN),
        payload,
        ..DOWN
    });
    given.quiet();
    given.up(Segment {
        seq: 1001,
        ack: 102,
        ..UP
    });
    given.quiet();
    let fin = Segment {
        seq: 1001,
        ack: 102,
        flags: ACK.and(FIN),
        ..UP
    };
    given.up(fin.clone());
    given.down(Segment {
        seq: 102,
        ack: 1002,
        ..DOWN
    });
    given.quiet();
    assert_eq!(
        (given.engine.flows(), given.host.open()),
        (1, 0),
        "TIME_WAIT without a socket"
    );
    // Our acknowledgement was lost.
    given.up(fin);
    given.down(Segment {
        seq: 102,
        ack: 1002,
        ..DOWN
    });
    given.quiet();
    given.pass(Duration::from_secs(120));
    given.quiet();
    assert_eq!(given.engine.flows(), 0);
}

#[test]
fn a_lost_fin_is_sent_again() {
    let mut given = Given::open(Script::source(0));
    given.pass(millis(1));
    let fin = Segment {
        seq: 1,
        ack: 1001,
        flags: ACK.and(FIN),
        ..DOWN
    };
    given.down(fin.clone());
    given.quiet();
    given.pass(Duration::from_secs(2));
    given.down(fin);
}

#[test]
fn a_shut_window_is_probed_and_reopens() {
    let mut given = Given::serving(Script::source(1000));
    given.up(guest_syn());
    given.down(Segment {
        flags: SYN.and(ACK),
        ack: 1001,
        mss: Some(1460),
        ..DOWN
    });
    given.up(Segment {
        seq: 1001,
        ack: 1,
        window: 0,
        ..UP
    });
    given.pass(millis(1));
    given.quiet();
    given.pass(Duration::from_secs(5));
    let probes = given.take();
    assert!((2..=20).contains(&probes.len()), "{probes:?}");
    for probe in probes {
        let Packet::Tcp(probe) = probe else {
            panic!("{probe:?}")
        };
        assert!(probe.payload.len() <= 1, "{probe:?}");
    }
    given.up(Segment {
        seq: 1001,
        ack: 1,
        window: 5000,
        ..UP
    });
    let payload = Given::server_bytes(0, 1000);
    given.down(Segment {
        seq: 1,
        ack: 1001,
        flags: ACK.and(FIN),
        payload,
        ..DOWN
    });
    given.quiet();
}

/// RFC 9293 section 3.8.6: a sender must be robust against a window that shrinks, and probe one that shrinks to nothing.
#[test]
fn a_window_that_shuts_over_data_in_flight_is_probed() {
    let mut given = Given::open(Script {
        send: 1000,
        ..Script::SINK
    });
    given.pass(millis(1));
    assert_eq!(given.take().len(), 1);
    let shut = Segment {
        seq: 1002,
        ack: 1,
        window: 0,
        payload: Given::guest_bytes(1, 1),
        ..UP
    };
    given.up(Segment {
        seq: 1001,
        ack: 1,
        payload: Given::guest_bytes(0, 1),
        ..UP
    });
    given.up(shut);
    given.take();
    given.pass(Duration::from_secs(10));
    let probes = given.take();
    assert!((2..=20).contains(&probes.len()), "{probes:?}");
    given.up(Segment {
        seq: 1003,
        ack: 1,
        window: 5000,
        ..UP
    });
    given.pass(Duration::from_secs(60));
    let payload = Given::server_bytes(0, 1000);
    given.down(Segment {
        seq: 1,
        ack: 1003,
        payload,
        ..DOWN
    });
}

/// A guest that already has what was sent would take an acknowledgement with an old number for an old segment, and
/// ignore what it says (RFC 9293 section 3.10.7.4).
#[test]
fn an_acknowledgement_carries_the_next_number_even_after_a_timeout() {
    let mut given = Given::open(Script {
        send: 4380,
        ..Script::SINK
    });
    given.pass(millis(1));
    assert_eq!(given.take().len(), 3);
    given.pass(Duration::from_secs(5));
    given.take();
    let payload = Given::guest_bytes(0, 10);
    given.up(Segment {
        seq: 1001,
        ack: 1,
        payload,
        ..UP
    });
    given.down(Segment {
        seq: 4381,
        ack: 1011,
        ..DOWN
    });
}

#[test]
fn a_hole_that_sack_shows_is_filled_and_nothing_else() {
    let mut given = Given::open(Script {
        send: 14_600,
        ..Script::SINK
    });
    given.pass(millis(1));
    let sent = given.take();
    assert_eq!(sent.len(), 10);
    let ack = Segment {
        seq: 1001,
        ack: 1,
        ..UP
    };
    given.up(Segment {
        sack: vec![(1461, 2921)],
        ..ack.clone()
    }
    .relative_to(&sent));
    given.up(Segment {
        sack: vec![(1461, 4381)],
        ..ack.clone()
    }
    .relative_to(&sent));
    given.up(Segment {
        sack: vec![(1461, 14_601)],
        ..ack
    }
    .relative_to(&sent));
    let payload = Given::server_bytes(0, 1460);
    given.down(Segment {
        seq: 1,
        ack: 1001,
        payload,
        ..DOWN
    });
    given.quiet();
}

/// SACK blocks are absolute on the wire.
trait Relative {
    fn relative_to(self, sent: &[Packet]) -> Self;
}

impl Relative for Segment {
    fn relative_to(mut self, sent: &[Packet]) -> Self {
        let Some(Packet::Tcp(first)) = sent.first() else {
            panic!("{sent:?}");
        };
        for (left, right) in &mut self.sack {
            *left = left.wrapping_add(first.seq).wrapping_sub(1);
            *right = right.wrapping_add(first.seq).wrapping_sub(1);
        }
        self
    }
}
