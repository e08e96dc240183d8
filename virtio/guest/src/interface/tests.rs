//! Tests of the interface with the device side of `pontoon-ring` as its peer.

use core::time::Duration;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::QueueError;
use pontoon_ring::driver;

pub(crate) mod peer;
mod threads;

use peer::{Host, MAP, Net, SharedMemory, open};

/// A deadline on the clock of the tests, which advances at each reading.
const SOON: Option<Duration> = Some(Duration::from_millis(if cfg!(miri) { 1 } else { 1000 }));
const PACINGS: [Pacing; 3] = [Pacing::Event, Pacing::Hybrid, Pacing::Poll];

/// Number of rounds: more than the 16-bit indices of a ring, so that every notification request expires.
const ROUNDS: u32 = if cfg!(miri) { 20 } else { 100_000 };

#[test]
fn flush_notifies_once() {
    let shared = SharedMemory::new();
    let (mut net, peer) = open(&shared, Pacing::Event, true);
    for frame in [b"one".as_slice(), b"two", b"three"] {
        net.queue(frame).unwrap();
    }
    assert_eq!(
        peer.borrow_mut().take(),
        Vec::<Vec<u8>>::new(),
        "nothing was flushed"
    );
    peer.borrow_mut().request_notifications();
    net.flush().unwrap();
    assert_eq!(peer.borrow_mut().take_notifications(), [Ring::Transmit]);
    assert_eq!(
        peer.borrow_mut().take(),
        [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]
    );
    net.flush().unwrap();
    assert_eq!(peer.borrow_mut().take_notifications(), [], "no new frames");
    assert_eq!(net.counters().sent, 3);
}

#[test]
fn polling_device_is_not_notified() {
    for event_idx in [false, true] {
        let shared = SharedMemory::new();
        let (mut net, peer) = open(&shared, Pacing::Event, event_idx);
        net.write(b"wake up").unwrap();
        assert_eq!(peer.borrow_mut().take_notifications(), [Ring::Transmit]);
        peer.borrow_mut().suppress();
        assert_eq!(peer.borrow_mut().take().len(), 1);
        for _ in 0..ROUNDS {
            net.write(b"more").unwrap();
            peer.borrow_mut().suppress();
            assert_eq!(peer.borrow_mut().take().len(), 1);
        }
        assert_eq!(
            peer.borrow_mut().take_notifications(),
            [],
            "event_idx {event_idx}"
        );
        peer.borrow_mut().request_notifications();
        net.write(b"wake up").unwrap();
        assert_eq!(peer.borrow_mut().take_notifications(), [Ring::Transmit]);
    }
}

#[test]
fn frames_are_read_and_their_buffers_returned() {
    let shared = SharedMemory::new();
    let (mut net, peer) = open(&shared, Pacing::Event, true);
    let mut buffer = [0; 2048];
    for round in 0..100_u8 {
        for number in 0..MAP.receive().size as u8 {
            peer.borrow_mut().send(&[round, number, 7]);
        }
        for number in 0..MAP.receive().size as u8 {
            assert_eq!(net.read(&mut buffer), Ok(Some(3)));
            assert_eq!(buffer[..3], [round, number, 7]);
        }
        assert_eq!(net.read(&mut buffer), Ok(None));
    }
    assert_eq!(net.counters().received, 100 * u64::from(MAP.receive().size));
}

#[test]
fn device_without_buffers_is_notified_of_new_ones() {
    let shared = SharedMemory::new();
    let (mut net, peer) = open(&shared, Pacing::Event, true);
    let mut buffer = [0; 8];
    for _ in 0..MAP.receive().size {
        peer.borrow_mut().send(b"all");
    }
    peer.borrow_mut().request_notifications();
    while net.read(&mut buffer).unwrap().is_some() {}
    assert_eq!(peer.borrow_mut().take_notifications(), [Ring::Receive]);
}

#[test]
fn frame_longer_than_the_buffer_is_truncated() {
    let shared = SharedMemory::new();
    let (mut net, peer) = open(&shared, Pacing::Event, true);
    peer.borrow_mut().send(b"longer than that");
    peer.borrow_mut().send(b"next");
    let mut buffer = [0; 6];
    assert_eq!(net.read(&mut buffer), Ok(Some(16)));
    assert_eq!(&buffer, b"longer");
    assert_eq!(net.read(&mut buffer), Ok(Some(4)));
    assert_eq!(&buffer[..4], b"next");
}

#[test]
fn frames_of_every_length_are_carried() {
    let shared = SharedMemory::new();
    let (mut net, peer) = open(&shared, Pacing::Event, true);
    let longest: Vec<u8> = (0..MAP.frame()).map(|at| at as u8).collect();
    let mut buffer = [0; 2048];
    for len in [0, 1, 7, 8, 9, 60, 1513, MAP.frame()] {
        net.write(&longest[..len]).unwrap();
        assert_eq!(peer.borrow_mut().take(), [longest[..len].to_vec()]);
        peer.borrow_mut().send(&longest[..len]);
        assert_eq!(net.read(&mut buffer), Ok(Some(len)));
        assert_eq!(buffer[..len], longest[..len]);
    }
    let room = MAP.frame();
    let refused = Err(QueueError::Long { len: room + 1, room });
    assert_eq!(net.queue(&vec![0; room + 1]), refused);
}

#[test]
fn poll_waits_for_room() {
    for pacing in PACINGS {
        let shared = SharedMemory::new();
        let (mut net, peer) = open(&shared, pacing, true);
        for _ in 0..MAP.transmit().size {
            net.queue(b"frame").unwrap();
        }
        assert_eq!(net.queue(b"one too many"), Err(QueueError::Full));
        let deadline = Some(net.platform().now() + Duration::from_millis(1));
        assert_eq!(
            net.poll(deadline),
            Ok(Ready::default()),
            "the device has taken no frame"
        );
        net.platform()
            .at_next_clock_reading(|peer| assert_eq!(peer.take().len(), usize::from(MAP.transmit().size)));
        assert_eq!(
            net.poll(None),
            Ok(Ready {
                frame: false,
                room: true
            })
        );
        assert_eq!(
            net.poll(Some(Duration::ZERO)),
            Ok(Ready::default()),
            "room is reported once"
        );
        net.write(b"one more").unwrap();
        assert_eq!(peer.borrow_mut().take(), [b"one more"]);
    }
}

#[test]
fn frame_ends_a_wait() {
    for pacing in PACINGS {
        let shared = SharedMemory::new();
        let (mut net, _peer) = open(&shared, pacing, true);
        net.platform()
            .at_next_clock_reading(|peer| peer.send(b"good morning"));
        assert_eq!(
            net.poll(None),
            Ok(Ready {
                frame: true,
                room: false
            })
        );
        let mut buffer = [0; 64];
        assert_eq!(net.read(&mut buffer), Ok(Some(12)));
    }
}

#[test]
fn poll_flushes_queued_frames() {
    let shared = SharedMemory::new();
    let (mut net, peer) = open(&shared, Pacing::Event, true);
    net.queue(b"question").unwrap();
    assert_eq!(net.poll(Some(Duration::ZERO)), Ok(Ready::default()));
    assert_eq!(peer.borrow_mut().take(), [b"question"]);
}

#[test]
fn expired_deadline_does_not_wait() {
    for pacing in PACINGS {
        let shared = SharedMemory::new();
        let (mut net, peer) = open(&shared, pacing, true);
        assert_eq!(net.poll(Some(Duration::ZERO)), Ok(Ready::default()));
        peer.borrow_mut().send(b"here");
        assert!(net.poll(Some(Duration::ZERO)).unwrap().frame);
        assert_eq!(net.counters().sleeps, 0);
    }
}

#[test]
fn event_sleeps_at_once_and_poll_never_sleeps() {
    let shared = SharedMemory::new();
    let (mut net, _peer) = open(&shared, Pacing::Event, true);
    let begin = net.platform().now();
    net.platform().at_next_sleep(|peer| peer.send(b"frame"));
    assert!(net.poll(SOON).unwrap().frame);
    assert_eq!(net.counters().sleeps, 1);
    assert!(net.platform().slept_at() - begin < Duration::from_micros(10));

    let shared = SharedMemory::new();
    let (mut net, _peer) = open(&shared, Pacing::Poll, true);
    assert_eq!(net.poll(SOON), Ok(Ready::default()));
    assert!(net.platform().now() >= SOON.unwrap());
    assert_eq!(net.counters().sleeps, 0);
}

#[test]
fn hybrid_sleeps_after_polling_without_result() {
    let shared = SharedMemory::new();
    let (mut net, _peer) = open(&shared, Pacing::Hybrid, true);
    let begin = net.platform().now();
    net.platform().at_next_sleep(|peer| peer.send(b"frame"));
    assert!(net.poll(SOON).unwrap().frame);
    let looked = net.platform().slept_at() - begin;
    assert!((50..60).contains(&looked.as_micros()), "{looked:?}");
}

#[test]
fn hybrid_requests_calls_only_to_sleep() {
    let shared = SharedMemory::new();
    let (mut net, peer) = open(&shared, Pacing::Hybrid, true);
    let mut buffer = [0; 8];
    net.platform().at_next_sleep(|peer| peer.send(b"doorbell"));
    assert!(net.poll(None).unwrap().frame);
    assert_eq!(peer.borrow_mut().calls(), 1);
    for _ in 0..ROUNDS {
        while net.read(&mut buffer).unwrap().is_some() {}
        net.platform().at_next_clock_reading(|peer| peer.send(b"more"));
        assert!(net.poll(None).unwrap().frame);
    }
    assert_eq!(peer.borrow_mut().calls(), 0, "the interface was polling");
    assert_eq!(net.counters().sleeps, 1);
}

#[test]
fn frame_arriving_before_sleep_is_noticed() {
    let shared = SharedMemory::new();
    let (mut net, peer) = open(&shared, Pacing::Event, true);
    // The last reading of the clock is between the last poll of the rings and the request for a notification.
    net.platform()
        .at_next_clock_reading(|peer| peer.send(b"just now"));
    assert!(net.poll(None).unwrap().frame);
    assert_eq!(net.counters().sleeps, 0);
    assert_eq!(peer.borrow_mut().calls(), 0, "no notification was requested");
}

#[test]
fn frame_shorter_than_header_is_counted() {
    let shared = SharedMemory::new();
    let (mut net, peer) = open(&shared, Pacing::Event, true);
    peer.borrow_mut().send_short(11);
    peer.borrow_mut().send(b"whole");
    assert_eq!(net.read(&mut [0; 64]), Ok(Some(5)));
    let counters = net.counters();
    assert_eq!((counters.runts, counters.received), (1, 1));
}

#[test]
fn protocol_violation_makes_interface_unusable() {
    let shared = SharedMemory::new();
    let (mut net, peer) = open(&shared, Pacing::Event, true);
    peer.borrow_mut().corrupt_used_index(1000);
    let outstanding = MAP.receive().size;
    let error = driver::VirtqueueError::UsedIndex {
        seen: 0,
        index: 1000,
        outstanding,
    };
    for _ in 0..2 {
        assert_eq!(net.read(&mut [0; 64]), Err(Error::Device(error)));
        assert_eq!(net.poll(None), Err(Error::Device(error)));
    }
}

#[test]
fn disconnected_device_ends_the_sleep() {
    let shared = SharedMemory::new();
    let (mut net, _peer) = open(&shared, Pacing::Event, true);
    net.platform().leave();
    assert_eq!(net.poll(None), Err(Error::Gone(crate::DeviceGone)));
}

#[test]
fn unmapped_memory_is_refused() {
    let shared = SharedMemory::new();
    let (_net, peer) = open(&shared, Pacing::Event, true);
    let addr = peer::ORIGIN + 64;
    let map = crate::Map::<16>::new(addr, 1514);
    let refused = Net::new(
        shared.window(),
        map,
        Features::default(),
        Host::new(peer),
        Pacing::Event,
    );
    assert_eq!(
        refused.err(),
        Some(Error::Unmapped {
            addr,
            len: map.bytes()
        })
    );
}
