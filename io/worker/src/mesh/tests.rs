use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;
use std::thread;

use pontoon_event::{Edge, Epoll, Events};
use pontoon_wire::vnet::Offload;
use vm_memory::VolatileSlice;

use super::inbox::ROOM;
use super::*;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn key(port: u16) -> FlowKey {
    FlowKey::Udp(([10, 0, 2, 15], port).into())
}

/// Calls `run` with a frame of these bytes.
fn with_frame<R>(bytes: &[u8], run: impl FnOnce(&Frame<'_>) -> R) -> R {
    let mut memory = bytes.to_vec();
    let parts = [VolatileSlice::from(&mut memory[..])];
    run(&Frame {
        offload: Offload::NONE,
        head: &bytes[..bytes.len().min(64)],
        parts: &parts,
        len: bytes.len(),
    })
}

fn send(from: &WorkerHandle, to: u8, bytes: &[u8]) -> HandOver {
    with_frame(bytes, |frame| from.hand_over(WorkerId(to), frame, false))
}

/// Returns the bytes of all frames in the worker's inbox.
fn drain(handle: &WorkerHandle) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let (_, more) = handle.receive(|frames| {
            for handed in frames {
                let mut bytes = vec![0; handed.frame.len];
                handed.frame.copy(0, &mut bytes);
                assert!(bytes.starts_with(handed.frame.head));
                all.push(bytes);
            }
        });
        if !more {
            return all;
        }
    }
}

#[test]
fn flow_key_has_one_owner() {
    let [one, two] = &handles(2, MAC).unwrap()[..] else {
        panic!("two were made")
    };
    assert_eq!(two.owner(&key(1)), None);
    assert_eq!(one.claim(&key(1)), Ok(()));
    assert_eq!(two.claim(&key(1)), Err(WorkerId(0)));
    assert_eq!(one.claim(&key(1)), Ok(()));
    assert_eq!(two.owner(&key(1)), Some(WorkerId(0)));
    // A worker cannot release a key that another worker owns.
    two.release(&key(1));
    assert_eq!(two.owner(&key(1)), Some(WorkerId(0)));
    one.release(&key(1));
    assert_eq!(two.claim(&key(1)), Ok(()));
    assert_eq!(one.mesh.directory.len(), 1);
}

#[test]
fn concurrent_claims_of_a_key_succeed_once() {
    const KEYS: u16 = 2_000;
    let handles = handles(4, MAC).unwrap();
    let won = AtomicUsize::new(0);
    let barrier = Barrier::new(handles.len());
    thread::scope(|scope| {
        for handle in &handles {
            scope.spawn(|| {
                barrier.wait();
                for port in 0..KEYS {
                    match handle.claim(&key(port)) {
                        Ok(()) => _ = won.fetch_add(1, Ordering::Relaxed),
                        Err(winner) => assert_ne!(winner, handle.me),
                    }
                    assert!(handle.owner(&key(port)).is_some());
                }
            });
        }
    });
    assert_eq!(won.into_inner(), usize::from(KEYS));
    let of_each = |handle: &WorkerHandle| {
        (0..KEYS)
            .filter(|port| handle.owner(&key(*port)) == Some(handle.me))
            .count()
    };
    assert_eq!(handles.iter().map(of_each).sum::<usize>(), usize::from(KEYS));
    for handle in &handles {
        (0..KEYS).for_each(|port| handle.release(&key(port)));
    }
    assert_eq!(handles[0].mesh.directory.len(), 0);
}

#[test]
fn frames_arrive_in_order_and_whole() {
    let handles = handles(2, MAC).unwrap();
    let frames: Vec<Vec<u8>> = (1..=100_u8)
        .map(|n| vec![n; usize::from(n) * if n.is_multiple_of(2) { 600 } else { 1 }])
        .collect();
    for _ in 0..3 {
        for frame in &frames {
            assert_eq!(send(&handles[0], 1, frame), HandOver::Queued);
        }
        assert_eq!(drain(&handles[1]), frames);
    }
    assert_eq!(drain(&handles[0]), Vec::<Vec<u8>>::new());
}

#[test]
fn a_full_inbox_refuses_frames_and_keeps_its_content() {
    let handles = handles(2, MAC).unwrap();
    for n in 0..ROOM {
        assert_eq!(send(&handles[0], 1, &n.to_ne_bytes()), HandOver::Queued);
    }
    assert_eq!(send(&handles[0], 1, b"one too many"), HandOver::Dropped);
    let kept: Vec<Vec<u8>> = (0..ROOM).map(|n| n.to_ne_bytes().to_vec()).collect();
    assert_eq!(drain(&handles[1]), kept);
    assert_eq!(send(&handles[0], 1, b"again"), HandOver::Queued);
}

/// A worker is notified once for several frames, and does not sleep while a frame is in its inbox.
#[test]
fn frame_after_a_rung_bell_is_received() {
    const EACH: usize = 20_000;
    let handles = handles(4, MAC).unwrap();
    let (to, from) = handles.split_first().unwrap();
    let epoll = Epoll::new().unwrap();
    epoll.add(to.event(), Edge::Inbox.token()).unwrap();
    thread::scope(|scope| {
        for handle in from {
            scope.spawn(move || {
                let mut sent = 0;
                while sent < EACH {
                    match send(handle, 0, &[handle.me.0; 60]) {
                        HandOver::Queued => sent += 1,
                        HandOver::Dropped => thread::yield_now(),
                    }
                }
            });
        }
        let mut events = Events::new();
        let mut received = 0;
        while received < EACH * from.len() {
            epoll
                .wait(&mut events, Some(std::time::Duration::from_secs(10)))
                .unwrap();
            assert!(events.edges().next().is_some(), "asleep over {received} frames");
            received += drain(to).len();
        }
        assert_eq!(received, EACH * from.len());
    });
}

#[test]
fn newest_update_of_each_kind_reaches_the_other_workers() {
    let handles = handles(3, MAC).unwrap();
    let owned = |text: &str| Update::Owned(vec![text.parse().unwrap()]);
    handles[0].forward(&owned("192.0.2.1/32"));
    handles[0].forward(&Update::Resolvers(Vec::new()));
    handles[0].forward(&owned("192.0.2.2/32"));
    assert_eq!(handles[0].updates(), []);
    for handle in &handles[1..] {
        assert_eq!(
            handle.updates(),
            [Update::Resolvers(Vec::new()), owned("192.0.2.2/32")]
        );
        assert_eq!(handle.updates(), []);
    }
}

#[test]
fn limits_hold_for_all_workers_together() {
    let [one, two] = &handles(2, MAC).unwrap()[..] else {
        panic!("two were made")
    };
    one.opened();
    two.opened();
    one.closed();
    assert_eq!((one.flows(), two.flows()), (1, 1));

    let at = |seconds: u64| Instant(seconds * 1_000_000_000 + 5);
    let taken = [one, two, one].map(|handle| handle.count_against_rate(2, FlowOpener::Guest, at(7)));
    assert_eq!(
        taken,
        [Admission::Admitted, Admission::Admitted, Admission::Refused]
    );
    assert_eq!(
        [one, two, two].map(|handle| handle.count_against_rate(2, FlowOpener::Guest, at(8))),
        [Admission::Admitted, Admission::Admitted, Admission::Refused]
    );
}

#[test]
fn guest_mac_and_end_are_visible_to_all_workers() {
    let [one, two] = &handles(2, MAC).unwrap()[..] else {
        panic!("two were made")
    };
    assert_eq!(two.guest_mac(), MAC);
    one.guest_moved(Mac([2, 3, 4, 5, 6, 7]));
    assert_eq!(two.guest_mac(), Mac([2, 3, 4, 5, 6, 7]));

    let held = one.ends_all();
    assert!(!two.is_over());
    drop(held);
    assert!(two.is_over());
}

#[test]
fn fragments_of_one_datagram_have_one_reassembler_and_datagrams_many() {
    let handles = handles(4, MAC).unwrap();
    let ip = |last: u8| IpAddr::from([192, 0, 2, last]);
    let mut seen = [0; 4];
    for id in 0..400 {
        let reassembler = handles[0].reassembler(ip(1), ip(2), id);
        assert_eq!(handles[3].reassembler(ip(1), ip(2), id), reassembler);
        seen[usize::from(reassembler.0)] += 1;
    }
    assert!(seen.iter().all(|count| *count > 40), "{seen:?}");
}

#[test]
fn clients_are_counted_for_each_port() {
    let [one, two] = &handles(2, MAC).unwrap()[..] else {
        panic!("two were made")
    };
    for bit in 0..32 {
        let port = 1 << bit;
        one.client_opened(port);
        two.client_opened(port);
        assert_eq!((one.clients(port), two.clients(0)), (2, 0), "bit {bit}");
        assert_eq!((one.all_clients(), two.all_clients()), (2, 2));
        one.client_closed(port);
        assert_eq!(two.clients(port), 1);
        two.client_closed(port);
        assert_eq!(two.clients(port), 0);
    }
}
