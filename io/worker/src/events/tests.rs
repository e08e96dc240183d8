//! Tests of the rings: wrapping, full rings, reservations, and words that no worker writes.

use std::net::SocketAddr;
use std::time::Duration;

use pontoon_engine::egress::{DecisionGround, EgressProtocol, UnprovenCause};
use pontoon_engine::flow_dump::Traffic;
use pontoon_engine::flow_events::{CloseReason, FlowEnds, NamePart, RefusalReason};
use pontoon_engine::policy::Refusal;
use pontoon_engine::{Failure, FlowId, Instant, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// A writer, its doorbell, and a reader that uses them.
struct Pair {
    writer: EventWriter,
    doorbell: Doorbell,
    reader: EventReader,
}

impl Pair {
    /// Returns rings with room for `spare` records beyond those that refusals leave free.
    fn new(spare: u64) -> Self {
        let setup = EventSetup {
            rings: EventRings::with_capacity(2, KEPT_FOR_FLOWS + spare).unwrap(),
            ..EventSetup::new(1, 1).unwrap()
        };
        let event = Arc::new(setup.doorbell.try_clone().unwrap());
        let (writer, doorbell) = connect(&setup.rings, WorkerId(1), &event, 7, None).unwrap();
        let reader = EventReader::new(setup);
        reader.set_used(true);
        Self {
            writer,
            doorbell,
            reader,
        }
    }

    /// Returns rings of `capacity` records.
    fn small(capacity: u64) -> Self {
        let mut pair = Self::new(capacity);
        let setup = EventSetup {
            rings: EventRings::with_capacity(2, capacity).unwrap(),
            ..pair.reader.setup.try_clone().unwrap()
        };
        let event = Arc::new(setup.doorbell.try_clone().unwrap());
        (pair.writer, pair.doorbell) = connect(&setup.rings, WorkerId(1), &event, 7, None).unwrap();
        pair.reader = EventReader::new(setup);
        pair.reader.set_used(true);
        pair
    }

    fn read(&mut self) -> Vec<Found> {
        let mut all = Vec::new();
        while self.reader.read(64, |found| all.push(found)) {}
        all
    }

    /// Returns the slots of the flows of the events that the reader finds; a loss is `None`.
    fn slots(&mut self) -> Vec<Option<u32>> {
        let slot = |found| match found {
            Found::Event(record) => Some(record.event.flow.map_or(0, |flow| flow.index)),
            Found::Lost(_) => None,
        };
        self.read().into_iter().map(slot).collect()
    }

    fn is_notified(&self) -> bool {
        let doorbell = self.reader.doorbell();
        let mut fds = [PollFd::from_borrowed_fd(doorbell, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn event(slot: u32, kind: FlowEventKind) -> FlowEvent {
    let flow = FlowId {
        kind: Kind::Tcp,
        worker: WorkerId(1),
        index: slot,
        generation: 3,
    };
    let is_refused = matches!(kind, FlowEventKind::Refused { .. });
    FlowEvent {
        at: Instant(5),
        flow: (!is_refused).then_some(flow),
        ends: FlowEnds {
            protocol: EgressProtocol::Tcp,
            guest: addr("10.0.2.15:4000"),
            remote: Some(addr("192.0.2.1:80")),
            came_in: false,
        },
        kind,
    }
}

const OPENED: FlowEventKind = FlowEventKind::Opened { target: None };
const REFUSED: FlowEventKind = FlowEventKind::Refused {
    reason: RefusalReason::Limit,
};

fn closed(announced: bool) -> FlowEventKind {
    FlowEventKind::Closed {
        reason: CloseReason::GuestFin,
        traffic: Traffic { up: 1, down: 2 },
        age: Duration::from_millis(1),
        announced,
    }
}

/// Reports `count` events of this kind at a time, and returns the number of those that are kept.
fn kept_at(pair: &mut Pair, at: u64, count: usize, came_in: bool, kind: FlowEventKind) -> usize {
    let mut event = event(9, kind);
    (event.at, event.ends.came_in) = (Instant(at), came_in);
    (0..count)
        .filter(|_| pair.writer.report(&event) == Reported::Kept)
        .count()
}

#[test]
fn refusals_and_further_peers_are_limited_in_each_direction() {
    const SECOND: u64 = 1_000_000_000;
    let mut pair = Pair::new(64_000);
    for kind in [REFUSED, FlowEventKind::Peer { target: None }] {
        for came_in in [false, true] {
            assert_eq!(kept_at(&mut pair, SECOND, 5000, came_in, kind), 1000);
            // Two hundred milliseconds later.
            assert_eq!(kept_at(&mut pair, SECOND / 5 * 6, 5000, came_in, kind), 200);
        }
    }
    let omitted =
        [(false, false), (false, true), (true, false), (true, true)].map(|(is_refusal, came_in)| {
            let class = OmittedClass { is_refusal, came_in };
            (class, 10_000 - 1200)
        });
    pair.read();
    assert!(!pair.reader.wait(), "the numbers were not taken");
    assert_eq!(pair.reader.take_omitted(), omitted);
    assert_eq!(pair.reader.take_omitted().map(|(_, count)| count), [0; 4]);
    // Other events are not limited.
    assert_eq!(kept_at(&mut pair, SECOND, 5000, false, OPENED), 5000);
    assert_eq!(kept_at(&mut pair, SECOND, 5000, false, closed(true)), 5000);
}

#[test]
fn numbers_of_omitted_events_outlive_the_engine() {
    let mut pair = Pair::new(64_000);
    pair.read();
    assert!(pair.reader.wait());
    kept_at(&mut pair, 5, 1500, false, REFUSED);
    pair.doorbell.notify();
    assert!(pair.is_notified());
    pair.read();
    assert!(!pair.reader.wait());
    assert_eq!(pair.reader.take_omitted()[2].1, 500);
    assert!(pair.reader.wait());
    // An omitted event alone is notified, too.
    kept_at(&mut pair, 5, 7, false, REFUSED);
    pair.doorbell.notify();
    assert!(pair.is_notified());
    pair.reader.finish(|_| ());
    assert_eq!(pair.reader.take_omitted()[2].1, 7);
    assert_eq!(pair.reader.take_omitted()[2].1, 0);
    assert!(pair.reader.wait());
}

#[test]
fn numbers_of_omitted_events_that_no_worker_writes_are_bounded() {
    let mut pair = Pair::new(64);
    for value in [5, 3, u64::MAX, 0] {
        pair.writer.ring.omitted[2].store(value, Ordering::Relaxed);
        let [_, _, (_, count), _] = pair.reader.take_omitted();
        assert!(count <= 1 << 32, "{count}");
    }
    assert_eq!(pair.reader.take_omitted()[2].1, 0);
}

#[test]
fn limit_is_that_of_new_flows_if_it_is_lower() {
    for (rate, expected) in [(Some(7), 7), (Some(0), 1), (Some(2000), 1000), (None, 1000)] {
        let mut pair = Pair::new(64_000);
        pair.writer.gate = OmissionGate::new(rate);
        assert_eq!(kept_at(&mut pair, 1_000_000_000, 5000, false, REFUSED), expected);
    }
}

#[test]
fn every_kind_of_event_is_read_as_it_was_written() {
    let mut pair = Pair::new(128);
    let targets = [None, Some(addr("127.0.0.1:9")), Some(addr("[2001:db8::1]:65535"))];
    let grounds = [
        DecisionGround::Rule(999),
        DecisionGround::Unlisted,
        DecisionGround::Resolver,
        DecisionGround::Proxy,
        DecisionGround::TlsOnly(4),
    ];
    let opened = targets.map(|target| FlowEventKind::Opened { target });
    let peers = targets.map(|target| FlowEventKind::Peer { target });
    let decided = grounds.map(|ground| FlowEventKind::Decided { ground });
    let reasons = [
        RefusalReason::Limit,
        RefusalReason::Host(Failure::Exhausted),
        RefusalReason::Host(Failure::Other(7)),
        RefusalReason::Policy(Refusal::Class),
        RefusalReason::Policy(Refusal::Unassigned),
        RefusalReason::Policy(Refusal::HostLoopback),
        RefusalReason::Policy(Refusal::HostAddress),
        RefusalReason::Policy(Refusal::Proxy),
    ];
    let refused = reasons.into_iter().chain(grounds.map(RefusalReason::Egress));
    let refused = refused.map(|reason| FlowEventKind::Refused { reason });
    let proofs = [Ok(())]
        .into_iter()
        .chain(UnprovenCause::ALL.map(Err))
        .zip([Some(DecisionGround::Rule(3)), None].into_iter().cycle())
        .map(|(result, ground)| FlowEventKind::Proof { result, ground });
    let names = [
        (&b"a"[..], true),
        (b"_x-1.example.org", false),
        (&[b'z'; 32], true),
    ]
    .map(|(text, is_first)| NamePart::new(text, is_first).unwrap())
    .map(|part| FlowEventKind::ServerName { part });
    let kinds = opened
        .into_iter()
        .chain(peers)
        .chain(decided)
        .chain(refused)
        .chain(proofs)
        .chain(names);
    let mut events: Vec<FlowEvent> = kinds.map(|kind| event(9, kind)).collect();
    events.push(event(9, closed(true)));
    events.push(event(
        9,
        FlowEventKind::Closed {
            reason: CloseReason::ConnectFailed(Failure::Refused),
            traffic: Traffic {
                up: u64::MAX,
                down: 0,
            },
            age: Duration::MAX,
            announced: false,
        },
    ));
    let ends = FlowEnds {
        protocol: EgressProtocol::Udp,
        guest: addr("[fd00::1]:1"),
        remote: None,
        came_in: true,
    };
    let udp = |event: &FlowEvent| FlowEvent {
        ends,
        flow: event.flow.map(|flow| FlowId {
            kind: Kind::Udp,
            ..flow
        }),
        ..*event
    };
    let others: Vec<FlowEvent> = events.iter().map(udp).collect();
    for event in events.iter().chain(&others) {
        assert_eq!(pair.writer.report(event), Reported::Kept);
    }
    let found = pair.read();
    assert_eq!(found.len(), events.len() + others.len());
    for (found, mut expected) in found.into_iter().zip(events.into_iter().chain(others)) {
        if let FlowEventKind::Closed { age, .. } = &mut expected.kind {
            *age = (*age).min(Duration::from_nanos(u64::MAX));
        }
        let Found::Event(found) = found else {
            panic!("lost {expected:?}");
        };
        assert_eq!(found.event, expected);
        if let FlowEventKind::Decided { .. } | FlowEventKind::Refused { .. } = expected.kind {
            assert_eq!(found.generation, 7);
        }
    }
}

#[test]
fn full_ring_keeps_room_for_closing_events() {
    let mut pair = Pair::small(10);
    for slot in 0..5 {
        assert_eq!(pair.writer.report(&event(slot, OPENED)), Reported::Kept, "{slot}");
    }
    // Five records are used, five are reserved.
    for kind in [OPENED, closed(false), REFUSED] {
        assert_eq!(pair.writer.report(&event(99, kind)), Reported::Dropped);
    }
    for slot in 0..5 {
        assert_eq!(
            pair.writer.report(&event(slot, closed(true))),
            Reported::Kept,
            "{slot}"
        );
    }
    assert_eq!(pair.writer.report(&event(99, OPENED)), Reported::Dropped);
    let found = pair.read();
    let lost: Vec<usize> = (0..found.len())
        .filter(|place| matches!(found[*place], Found::Lost(_)))
        .collect();
    assert_eq!(
        (found.len(), lost),
        (12, vec![5, 11]),
        "losses are found where they happened"
    );
    assert_eq!((found[5], found[11]), (Found::Lost(3), Found::Lost(1)));
    assert_eq!(pair.writer.report(&event(6, OPENED)), Reported::Kept);
    assert_eq!(pair.slots(), [Some(6)]);
}

#[test]
fn refusals_leave_room_for_flows() {
    let mut pair = Pair::new(3);
    let refused = event(0, REFUSED);
    let kept = (0..9)
        .filter(|_| pair.writer.report(&refused) == Reported::Kept)
        .count();
    assert_eq!(kept, 3);
    for slot in 0..KEPT_FOR_FLOWS as u32 / 2 {
        assert_eq!(pair.writer.report(&event(slot, OPENED)), Reported::Kept, "{slot}");
    }
    assert_eq!(pair.writer.report(&event(0, OPENED)), Reported::Dropped);
}

#[test]
fn ring_wraps_and_begins_again_when_it_is_empty() {
    let mut pair = Pair::small(7);
    let mut next = 0;
    let mut expected = Vec::new();
    for round in 0..50 {
        for _ in 0..round % 6 {
            assert_eq!(pair.writer.report(&event(next, closed(false))), Reported::Kept);
            expected.push(Some(next));
            next += 1;
        }
        // Some records stay in the ring, so that it wraps.
        let most = if round % 3 == 0 { 64 } else { 1 };
        let mut found = Vec::new();
        pair.reader.read(most, |one| found.push(one));
        let rest = expected.split_off(found.len());
        for (found, slot) in found.into_iter().zip(expected) {
            let Found::Event(record) = found else {
                panic!("lost {slot:?}");
            };
            assert_eq!(record.event.flow.map(|flow| flow.index), slot);
        }
        expected = rest;
        while expected.len() > 1 {
            expected.remove(0);
            pair.reader.read(1, |_| {});
        }
    }
    assert!(next > 100);
    pair.read();
    assert_eq!(pair.writer.report(&event(0, OPENED)), Reported::Kept);
    assert_eq!(pair.writer.place, 1, "an empty ring begins again");
}

#[test]
fn ring_that_is_switched_off_stores_no_event_and_frees_reservations() {
    let mut pair = Pair::small(3);
    assert_eq!(pair.writer.report(&event(1, OPENED)), Reported::Kept);
    assert_eq!(pair.slots(), [Some(1)]);
    pair.reader.set_used(false);
    assert_eq!(pair.writer.report(&event(2, OPENED)), Reported::Unused);
    assert_eq!(pair.writer.report(&event(1, closed(true))), Reported::Unused);
    assert_eq!(pair.writer.reserved, 0);
    pair.reader.set_used(true);
    assert_eq!(pair.slots(), []);
    assert_eq!(pair.writer.report(&event(2, closed(false))), Reported::Kept);
    assert_eq!(pair.slots(), [Some(2)]);
}

#[test]
fn reader_that_waits_is_notified_once() {
    let mut pair = Pair::small(64);
    pair.writer.report(&event(1, OPENED));
    pair.doorbell.notify();
    assert!(!pair.is_notified(), "the reader does not wait");
    assert!(!pair.reader.wait(), "there is an event");
    assert_eq!(pair.slots(), [Some(1)]);
    assert!(pair.reader.wait());
    pair.doorbell.notify();
    assert!(!pair.is_notified(), "there is no new event");
    for _ in 0..2 {
        pair.writer.report(&event(2, OPENED));
        pair.doorbell.notify();
    }
    assert!(pair.is_notified());
    assert_eq!(pair.slots(), [Some(2), Some(2)]);
    assert!(!pair.is_notified(), "reading has reset the eventfd");
    pair.writer.report(&event(3, OPENED));
    pair.doorbell.notify();
    assert!(
        !pair.is_notified(),
        "the reader has not announced that it waits again"
    );
}

#[test]
fn events_of_an_engine_that_has_exited_are_read_and_an_incomplete_one_is_lost() {
    let mut pair = Pair::small(8);
    pair.writer.report(&event(1, OPENED));
    pair.writer.number += 1;
    pair.writer
        .ring
        .begun
        .store(pair.writer.number, Ordering::Relaxed);
    assert_eq!(
        pair.slots(),
        [Some(1)],
        "the engine may be about to complete the record"
    );
    let mut found = Vec::new();
    pair.reader.finish(|one| found.push(one));
    assert_eq!(found, [Found::Lost(1)]);
    let words = pair.reader.setup.rings.words();
    assert_eq!(pair.writer.ring.head.load(Ordering::Relaxed), 0);
    assert_eq!(words[0].load(Ordering::Relaxed), READS);
    let event_fd = Arc::new(pair.reader.setup.doorbell.try_clone().unwrap());
    (pair.writer, _) = connect(&pair.reader.setup.rings, WorkerId(1), &event_fd, 8, None).unwrap();
    pair.writer.report(&event(5, OPENED));
    assert_eq!(pair.slots(), [Some(5)]);
}

/// Tests that a reader on another thread finds all events in order while a worker writes.
#[test]
fn reader_and_writer_run_at_the_same_time() {
    const EVENTS: u32 = 100_000;
    let Pair {
        mut writer,
        mut doorbell,
        mut reader,
    } = Pair::small(64);
    let thread = std::thread::spawn(move || {
        for slot in 0..EVENTS {
            writer.report(&event(slot, closed(false)));
            doorbell.notify();
        }
    });
    let (mut next, mut lost) = (0, 0);
    while next < EVENTS {
        let mut check = |found| match found {
            Found::Event(record) => {
                assert_eq!(record.event.flow.map(|flow| flow.index), Some(next));
                next += 1;
            }
            Found::Lost(count) => {
                next += u32::try_from(count).unwrap();
                lost += count;
            }
        };
        if !reader.read(16, &mut check) && next < EVENTS && reader.wait() {
            let mut fds = [PollFd::from_borrowed_fd(reader.doorbell(), PollFlags::IN)];
            let most = Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            assert_eq!(poll(&mut fds, Some(&most)).unwrap(), 1, "after {next} events");
        }
    }
    thread.join().unwrap();
    assert_eq!(next, EVENTS);
    assert!(lost < u64::from(EVENTS));
}

#[test]
fn any_words_of_a_compromised_engine_are_read_as_losses_or_events() {
    for value in [
        0,
        1,
        0x8000_0000_0000_0000,
        u64::MAX,
        1 << 60,
        0x5000_0000_0000_0000,
    ] {
        let mut pair = Pair::small(8);
        pair.writer.report(&event(1, OPENED));
        for word in &pair.reader.setup.rings.words()[1..] {
            word.store(value, Ordering::Relaxed);
        }
        for _ in 0..100 {
            let mut count = 0;
            pair.reader.read(16, |_| count += 1);
            assert!(count <= 2 * 16 + 2, "{count} for {value:#x}");
        }
        let mut count = 0;
        pair.reader.finish(|_| count += 1);
        assert!(count <= 64, "{count} for {value:#x}");
        assert_eq!(pair.slots(), []);
    }
}

#[test]
fn record_with_any_word_changed_does_not_stop_the_reader() {
    for place in 0..RECORD {
        for value in [0, 1, u64::MAX, 0x0fff_ffff_ffff_ffff] {
            let mut pair = Pair::small(8);
            pair.writer.report(&event(1, OPENED));
            pair.writer.ring.records[place].store(value, Ordering::Relaxed);
            assert!(!pair.read().is_empty());
            pair.writer.report(&event(2, OPENED));
            assert!(!pair.read().is_empty(), "{place} {value:#x}");
        }
    }
}
