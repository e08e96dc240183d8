//! Segments that nobody sane sends, in every state, and guests and hosts that fall silent. With exact counters.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;

use pontoon_engine::config::{Protocol, Published};
use pontoon_engine::{Config, FlowId, Instant, Kind, Readiness, WorkerId};
use pontoon_testkit::app::{Outcome, Script};
use pontoon_testkit::frames::{Packet, Segment};
use pontoon_testkit::host::HostPlan;
use pontoon_testkit::settings::{GUEST_V4, config};
use pontoon_testkit::transcript::{ACK, DOWN, FIN, Given, PLAIN, PORT, PSH, RST, SYN, UP};
use pontoon_wire::frame::Flags;

const FIRST: FlowId = FlowId {
    kind: Kind::Tcp,
    worker: WorkerId(0),
    index: 0,
    generation: 0,
};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn guest_syn() -> Segment {
    Segment {
        flags: SYN,
        seq: 1000,
        mss: Some(1460),
        ..UP
    }
}

fn segment(flags: Flags, seq: u32, ack: u32) -> Segment {
    Segment {
        flags,
        seq,
        ack,
        ..UP
    }
}

/// Our SYN-ACK is out.
fn syn_received() -> Given {
    let mut given = Given::server();
    given.up(guest_syn());
    given.down(Segment {
        flags: SYN.and(ACK),
        ack: 1001,
        mss: Some(1460),
        ..DOWN
    });
    given.forget_counters();
    given
}

const CLIENT: SocketAddr = SocketAddr::V4(core::net::SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 5000));

/// A client of a published port came: our SYN is out.
fn syn_sent() -> (Given, Segment) {
    let published = Published {
        protocol: Protocol::Tcp,
        host: (Ipv4Addr::UNSPECIFIED, 8080).into(),
        guest_port: 80,
    };
    let config = Config {
        published: vec![published],
        ..config(1500)
    };
    let mut given = Given::new(config, PLAIN, HostPlan::default());
    given
        .host
        .connect_in(0, CLIENT, 7, Script::SINK, Instant(1_000_000_000));
    given.pass(millis(1));
    let guest: SocketAddr = (GUEST_V4, 80).into();
    given.down(Segment {
        flags: SYN,
        mss: Some(1460),
        window_scale: Some(8),
        sack_permitted: true,
        ..Segment::between(CLIENT, guest)
    });
    given.forget_counters();
    (given, Segment::between(guest, CLIENT))
}

/// Both directions are closed, ours first. The next numbers are 1002 and 2.
fn time_wait() -> Given {
    let mut given = Given::open(Script::source(0));
    given.pass(millis(1));
    given.up(segment(FIN.and(ACK), 1001, 2));
    assert_eq!(given.take().len(), 2, "our FIN, our last acknowledgement");
    assert_eq!((given.engine.flows(), given.host.open()), (1, 0));
    given.forget_counters();
    given
}

#[track_caller]
fn ignores(given: &mut Given, segment: Segment) {
    given.up(segment);
    given.quiet();
    given.counted(|counters| counters.frames_up += 1);
}

#[track_caller]
fn challenges(given: &mut Given, segment: Segment) {
    given.up(segment);
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

#[track_caller]
fn ends(given: &mut Given, segment: Segment) {
    given.up(segment);
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.tcp_reset_by_guest += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn oddities_before_the_handshake_ends() {
    let mut given = syn_received();
    ignores(&mut given, segment(PSH, 1001, 0));
    ignores(&mut given, segment(ACK, 900_000, 1));
    ignores(&mut given, segment(RST, 900_000, 0));
    ignores(&mut given, segment(RST, 1000, 0));
    for ack in [0, 2] {
        given.up(segment(ACK, 1001, ack));
        given.down(Segment {
            flags: RST,
            seq: ack,
            ..DOWN
        });
        given.quiet();
        given.counted(|counters| {
            counters.frames_up += 1;
            counters.frames_down += 1;
        });
    }
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
    ends(&mut given, segment(RST, 1001, 0));
}

/// RFC 5961 section 3.2 and 4.2.
#[test]
fn intruders_before_the_handshake_ends_are_challenged() {
    let mut given = syn_received();
    challenges(&mut given, segment(RST, 1002, 0));
    challenges(&mut given, segment(SYN, 1001, 0));
    challenges(&mut given, segment(SYN.and(ACK), 1001, 1));
    ignores(&mut given, segment(ACK, 1001, 1));
    challenges(&mut given, segment(SYN.and(ACK), 1001, 1));
}

#[test]
fn a_handshake_may_end_with_data_and_fin() {
    let mut given = syn_received();
    given.up(Segment {
        payload: Given::guest_bytes(0, 10),
        ..segment(FIN.and(ACK), 1001, 1)
    });
    given.down(Segment {
        seq: 1,
        ack: 1012,
        ..DOWN
    });
    given.quiet();
}

#[test]
fn oddities_while_our_syn_is_out() {
    let (mut given, up) = syn_sent();
    let of = |flags, seq, ack| Segment {
        flags,
        seq,
        ack,
        ..up.clone()
    };
    // A reset that acknowledges nothing, or something else; a SYN of the guest's own; no SYN at all.
    for odd in [
        of(RST, 500, 0),
        of(RST.and(ACK), 500, 2),
        of(RST.and(ACK), 500, 0),
        of(SYN, 500, 0),
        of(ACK, 500, 1),
        of(PSH, 500, 0),
    ] {
        ignores(&mut given, odd);
    }
    for flags in [ACK, SYN.and(ACK)] {
        given.up(of(flags, 500, 2));
        given.down(Segment {
            flags: RST,
            seq: 2,
            ..Segment::between(up.to, up.from)
        });
        given.quiet();
        given.counted(|counters| {
            counters.frames_up += 1;
            counters.frames_down += 1;
        });
    }
    assert_eq!((given.engine.flows(), given.host.open()), (1, 1));
    ends(&mut given, of(RST.and(ACK), 500, 1));
    given.pass(millis(1));
    assert_eq!(given.host.outcomes()[&7], Some(Outcome::Reset));
}

#[test]
fn a_syn_ack_completes_our_handshake() {
    let (mut given, up) = syn_sent();
    given.up(Segment {
        flags: SYN.and(ACK),
        seq: 500,
        ack: 1,
        ..up.clone()
    });
    given.down(Segment {
        seq: 1,
        ack: 501,
        ..Segment::between(up.to, up.from)
    });
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
    });
}

#[test]
fn oddities_in_time_wait() {
    let mut given = time_wait();
    ignores(&mut given, segment(ACK, 1002, 2));
    ignores(&mut given, segment(RST, 1001, 0));
    ignores(&mut given, segment(RST, 1003, 0));
    let data = Segment {
        payload: vec![0],
        ..segment(ACK, 1001, 2)
    };
    // An old SYN, a SYN-ACK, old data, an old FIN: all acknowledged once more.
    for late in [
        segment(SYN, 1002, 0),
        segment(SYN.and(ACK), 5000, 2),
        data,
        segment(FIN.and(ACK), 1001, 2),
    ] {
        given.up(late);
        given.down(Segment {
            seq: 2,
            ack: 1002,
            ..DOWN
        });
        given.quiet();
        given.counted(|counters| {
            counters.frames_up += 1;
            counters.frames_down += 1;
        });
    }
    ends(&mut given, segment(RST, 1002, 0));
}

/// The host refuses the second connection here, so that what opened it shows.
#[test]
fn a_later_syn_ends_time_wait() {
    let mut given = time_wait();
    given.up(segment(SYN, 1003, 0));
    let [Packet::Tcp(answer)] = &given.take()[..] else {
        panic!("one answer is due");
    };
    assert_eq!((answer.flags, answer.ack), (RST.and(ACK), 1004));
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 1;
        counters.tcp_opened += 1;
        counters.tcp_connect_failed += 1;
    });
    assert_eq!(given.engine.flows(), 0);
}

#[test]
fn a_segment_without_ack_says_nothing() {
    let mut given = Given::open(Script::SINK);
    ignores(&mut given, segment(PSH, 1001, 0));
    ignores(&mut given, segment(FIN, 1001, 0));
}

#[test]
fn acknowledgements_from_the_past_are_challenged() {
    let mut given = Given::open(Script::SINK);
    ignores(&mut given, segment(ACK, 1001, 0));
    ignores(&mut given, segment(ACK, 1001, 1_u32.wrapping_sub(0xffff)));
    challenges(&mut given, segment(ACK, 1001, 0_u32.wrapping_sub(0xffff)));
}

#[test]
fn a_fin_beyond_the_window_is_no_end_and_a_second_one_is_the_same() {
    let mut given = Given::open(Script::SINK);
    // The window that a fresh connection offers is below 64 KiB.
    let beyond = |at: u32, len| Segment {
        payload: Given::guest_bytes(u64::from(at), len),
        ..segment(FIN.and(ACK), 1001 + at, 1)
    };
    let mut edge = 1001;
    for at in (0..60_000).step_by(1400) {
        given.up(beyond(at, 1400));
        let Some(Packet::Tcp(answer)) = given.take().pop() else {
            panic!("an acknowledgement is due");
        };
        assert!(answer.ack <= 1001 + at + 1401);
        edge = answer.ack;
        if edge == 1001 + at + 1401 {
            break;
        }
    }
    assert_eq!(edge, 2402, "the first FIN is in the window, and the end");
    given.pass(millis(1));
    given.take();
    given.up(segment(FIN.and(ACK), 2401, 1));
    given.take();
    assert_eq!(given.host.outcomes()[&PORT], Some(Outcome::Closed));
}

#[test]
fn a_fin_that_does_not_fit_is_not_taken() {
    let mut given = Given::open(Script::SINK);
    // Half a window does until the other half is used: the edge stays where the SYN-ACK put it, 32 KiB on.
    given.up(Segment {
        payload: Given::guest_bytes(32_000, 1400),
        ..segment(FIN.and(ACK), 33_001, 1)
    });
    let [Packet::Tcp(answer)] = &given.take()[..] else {
        panic!("one answer is due");
    };
    assert_eq!(answer.ack, 1001);
    let mut at = 0;
    while at < 33_400 {
        let len = 1400.min(33_400 - at);
        given.up(Segment {
            payload: Given::guest_bytes(at as u64, len),
            ..segment(ACK, 1001 + at as u32, 1)
        });
        at += len;
    }
    let Some(Packet::Tcp(last)) = given.take().pop() else {
        panic!("an answer is due");
    };
    assert_eq!(last.ack, 1001 + 33_400, "all data, no FIN");
}

#[test]
fn a_burst_of_more_parts_than_one_send_gathers() {
    let mut given = Given::open(Script::SINK);
    given.burst_up((0..700).map(|at| Segment {
        payload: Given::guest_bytes(at, 1),
        ..segment(ACK, 1001 + at as u32, 1)
    }));
    let Some(Packet::Tcp(last)) = given.take().pop() else {
        panic!("an answer is due");
    };
    assert_eq!(last.ack, 1701);
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 700;
        counters.frames_down += 3;
    });
}

/// The slot that a reset frees is the next connection's, in the same burst.
#[test]
fn a_slot_may_change_hands_within_a_burst() {
    let mut given = Given::open(Script::SINK);
    let data = Segment {
        payload: Given::guest_bytes(0, 10),
        ..segment(ACK, 1001, 1)
    };
    let again = Segment {
        from: (GUEST_V4, 40_001).into(),
        to: (pontoon_testkit::settings::SERVER_V4, PORT + 1).into(),
        ..guest_syn()
    };
    let remote = pontoon_testkit::host::Remote {
        answer: pontoon_testkit::host::Answer::Now,
        script: Script::SINK,
    };
    given.host.serve(PORT + 1, remote);
    given.burst_up([data, segment(RST, 1011, 0), again.clone()]);
    let [Packet::Tcp(answer)] = &given.take()[..] else {
        panic!("a SYN-ACK is due");
    };
    assert_eq!((answer.flags, answer.to), (SYN.and(ACK), again.from));
    given.counted(|counters| {
        counters.frames_up += 3;
        counters.frames_down += 1;
        counters.tcp_reset_by_guest += 1;
        counters.tcp_opened += 1;
    });
}

#[test]
fn sack_blocks_that_cannot_be_show_no_hole() {
    let mut given = Given::open(Script {
        send: 14_600,
        ..Script::SINK
    });
    given.pass(millis(1));
    let sent = given.take();
    let Some(Packet::Tcp(first)) = sent.first() else {
        panic!("{sent:?}");
    };
    let at = |offset: u32| first.seq.wrapping_add(offset);
    given.forget_counters();
    for (begin, end) in [(5000, 5000), (9000, 5000), (1460, 14_601), (20_000, 30_000)] {
        given.up(Segment {
            sack: vec![(at(begin), at(end))],
            window: 0xfff0,
            ..segment(ACK, 1001, 1)
        });
    }
    given.quiet();
    given.counted(|counters| counters.frames_up += 4);
}

/// RFC 9293 section 3.8.3.
#[test]
fn a_guest_that_never_acknowledges_is_given_up() {
    let mut given = Given::open(Script {
        send: 1000,
        ..Script::SINK
    });
    given.pass(Duration::from_secs(100));
    assert_eq!(given.engine.flows(), 1);
    given.forget_counters();
    given.take();
    given.pass(Duration::from_secs(3000));
    let Some(Packet::Tcp(last)) = given.take().pop() else {
        panic!("a reset is due");
    };
    assert_eq!((last.flags, last.ack), (RST.and(ACK), 1001));
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(Outcome::Reset));
    assert_eq!(given.engine.counters().tcp_reset_by_host, 1);
    assert_eq!(given.engine.counters().tcp_timeouts, 12);
}

#[test]
fn a_guest_that_shuts_its_window_and_falls_silent_is_given_up() {
    let mut given = Given::open(Script::source(100));
    for at in 0..2 {
        given.up(Segment {
            window: if at == 0 { 1000 } else { 0 },
            payload: Given::guest_bytes(at, 1),
            ..segment(ACK, 1001 + at as u32, 1)
        });
    }
    given.take();
    given.pass(Duration::from_secs(100));
    assert_eq!(given.engine.flows(), 1);
    given.pass(Duration::from_secs(3000));
    // An old number, so that the guest answers.
    let probe = Segment {
        seq: 0,
        ack: 1003,
        ..DOWN
    };
    for _ in 0..12 {
        given.down(probe.clone());
    }
    given.down(Segment {
        flags: RST.and(ACK),
        seq: 1,
        window: 0,
        ..probe
    });
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
    assert_eq!(given.host.outcomes()[&PORT], Some(Outcome::Reset));
}

#[test]
fn a_host_that_closes_and_then_resets() {
    let mut given = Given::open(Script {
        patience: Duration::from_secs(2),
        ..Script::source(100)
    });
    given.pass(Duration::from_secs(1));
    given.up(segment(ACK, 1001, 102));
    given.take();
    given.forget_counters();
    given.pass(Duration::from_secs(2));
    given.down(Segment {
        flags: RST.and(ACK),
        seq: 102,
        ack: 1001,
        ..DOWN
    });
    given.quiet();
    given.counted(|counters| {
        counters.frames_down += 1;
        counters.tcp_reset_by_host += 1;
    });
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn an_event_about_an_error_that_is_none_ends_nothing() {
    for script in [Script::SINK, Script::source(0)] {
        let mut given = Given::open(script);
        given.pass(millis(1));
        given.take();
        given.forget_counters();
        let error = Readiness {
            error: true,
            ..Readiness::default()
        };
        given.event(FIRST, error);
        given.pass(millis(1));
        given.quiet();
        given.counted(|_| {});
        assert_eq!(given.engine.flows(), 1);
    }
}

/// Linux says that there is something to read, too; the end alone would do.
#[test]
fn an_event_about_the_end_alone_is_enough() {
    let mut given = Given::open(Script::source(0));
    given.host.tick(Instant(1_000_000_000) + millis(1));
    assert!(!given.host.events().is_empty(), "the host's own event, lost");
    let end = Readiness {
        end: true,
        ..Readiness::default()
    };
    given.event(FIRST, end);
    given.pass(Duration::ZERO);
    given.down(Segment {
        flags: FIN.and(ACK),
        seq: 1,
        ack: 1001,
        ..DOWN
    });
    given.quiet();
}

/// Two events before the flow's next turn line it up for one.
#[test]
fn a_flow_is_lined_up_once() {
    let mut given = Given::serving(Script {
        send: 250_000,
        ..Script::SINK
    });
    given.up(Segment {
        window_scale: Some(8),
        ..guest_syn()
    });
    given.down(Segment {
        flags: SYN.and(ACK),
        ack: 1001,
        mss: Some(1460),
        window_scale: Some(8),
        ..DOWN
    });
    given.up(segment(ACK, 1001, 1));
    given.host.tick(Instant(1_000_000_000) + millis(1));
    let ready = Readiness {
        readable: true,
        ..Readiness::default()
    };
    given.event(FIRST, ready);
    given.event(FIRST, ready);
    given.pass(millis(2));
    let bytes: usize = given
        .take()
        .iter()
        .map(|packet| match packet {
            Packet::Tcp(segment) => segment.payload.len(),
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!(bytes, 250_000);
}

#[test]
fn data_to_the_guest_is_counted_by_the_frame() {
    let mut given = Given::open(Script {
        send: 4380,
        ..Script::SINK
    });
    given.pass(millis(1));
    assert_eq!(given.take().len(), 3);
    given.counted(|counters| counters.frames_down += 3);
}

/// An acknowledgement moves the timer that was set before: what it left in flight has all the time of its own.
#[test]
fn a_timer_that_was_put_off_sends_nothing_again() {
    let mut given = Given::open(Script {
        send: 2920,
        ..Script::SINK
    });
    given.pass(millis(1));
    assert_eq!(given.take().len(), 2);
    given.pass(millis(5));
    given.forget_counters();
    ignores(&mut given, segment(ACK, 1001, 1461));
    given.pass(millis(150));
    given.quiet();
    given.counted(|_| {});
    given.pass(millis(1500));
    assert!(!given.take().is_empty());
}

#[test]
fn after_the_probe_of_a_tail_the_timeout_takes_its_time() {
    let mut given = Given::open(Script {
        send: 2920,
        ..Script::SINK
    });
    given.pass(millis(1));
    assert_eq!(given.take().len(), 2);
    given.forget_counters();
    given.pass(millis(150));
    let [Packet::Tcp(probe)] = &given.take()[..] else {
        panic!("one probe is due");
    };
    assert_eq!(probe.payload, Given::server_bytes(1460, 1460));
    given.counted(|counters| {
        counters.frames_down += 1;
        counters.tcp_retransmits += 1;
    });
}
