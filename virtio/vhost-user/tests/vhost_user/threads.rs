//! Tests with each worker, each driver and the front-end in a thread of its own, which sleeps when it has nothing to
//! do.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pontoon_engine::link::{Transmit as _, TransmitError};
use pontoon_vhost_user::{BURST, Receiver, Transmitter};
use pontoon_vm_peer::vhost_user::{Machine, Options, QueuePair};
use pontoon_wire::vnet::Offload;

use crate::device::{Device, OPTIONS, TSO, Waiter, bytes, copy};

/// Number of frames that each queue pair sends.
const FRAMES: usize = 5000;

/// Both queue pairs echo every frame while the front-end changes the dirty log.
#[test]
fn two_workers_echo_all_frames() {
    let options = Options {
        pairs: 2,
        queue_size: 64,
        buffer: 2048,
        ..OPTIONS
    };
    let Device { mut backend, halves } = Device::new(2);
    let (device_end, front_end) = std::os::unix::net::UnixStream::pair().unwrap();
    front_end.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    device_end.set_nonblocking(true).unwrap();
    backend.connect(device_end.into()).unwrap();
    let over = &AtomicBool::new(false);
    // The machine is kept until the threads have ended, because a worker would notice the end of the session.
    let _machine = thread::scope(|scope| {
        let _ends = Ends(over);
        for (receiver, transmitter) in halves {
            scope.spawn(move || echo(receiver, transmitter, over));
        }
        scope.spawn(move || {
            let waiter = Waiter::new([&backend as _]);
            while !over.load(Ordering::Relaxed) {
                backend.handle().unwrap();
                waiter.wait(Duration::from_millis(100));
            }
        });
        let (mut machine, pairs) = Machine::connect(front_end, &options).unwrap();
        let drivers: Vec<_> = pairs
            .into_iter()
            .map(|pair| scope.spawn(move || exchange(pair)))
            .collect();
        let mut rounds = 0;
        while drivers.iter().any(|driver| !driver.is_finished()) {
            machine.log(&[]).unwrap();
            rounds += 1;
        }
        assert!(rounds > 0);
        for driver in drivers {
            driver.join().unwrap();
        }
        machine
    });
}

/// Ends the threads when dropped, also after a failed test.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn echo(mut receiver: Receiver, mut transmitter: Transmitter, over: &AtomicBool) {
    let waiter = Waiter::new([&receiver as _, &transmitter as _]);
    let mut waiting = VecDeque::new();
    while !over.load(Ordering::Relaxed) {
        let mut more = false;
        if waiting.len() < 100 {
            let burst = receiver.receive(BURST, |frames| waiting.extend(frames.iter().map(copy)));
            assert_eq!(burst.malformed, 0);
            more = burst.more;
        }
        while let Some((offload, frame)) = waiting.front() {
            let (head, payload) = frame.split_at(frame.len().min(54));
            match transmitter.send(*offload, head, payload) {
                Ok(()) => drop(waiting.pop_front()),
                Err(TransmitError::Full) => break,
                Err(TransmitError::Rejected) => panic!("{} bytes are too many", frame.len()),
            }
        }
        transmitter.flush();
        if !more && (waiting.is_empty() || transmitter.take_full()) {
            receiver.rearm();
            // The timeout is longer than the driver waits for a reply, so that a lost wake-up is a failure.
            waiter.wait(Duration::from_secs(5));
        }
    }
    assert_eq!((receiver.faults(), transmitter.faults()), (0, 0));
}

fn exchange(mut pair: QueuePair) {
    let deadline = Instant::now() + Duration::from_secs(60);
    // Most frames are short; some are large, and some large ones are to be segmented.
    let frame = |nth: usize| match nth % 10 {
        0 => (TSO, bytes(20_000 + nth)),
        1 => (Offload::NONE, bytes(5000 + nth % 100)),
        _ => (Offload::NONE, bytes(60 + nth % 1400)),
    };
    let (mut sent, mut received) = (0, 0);
    while received < FRAMES {
        assert!(Instant::now() < deadline, "{received} of {sent} came back");
        while sent < FRAMES && sent - received < 100 {
            let (offload, bytes) = frame(sent);
            if !pair.tx.send(offload, 54, &bytes).unwrap() {
                break;
            }
            sent += 1;
        }
        pair.tx.flush().unwrap();
        let before = received;
        pair.rx
            .receive(|came| {
                let (offload, bytes) = frame(received);
                assert_eq!(came.offload, offload);
                assert!(came.bytes == bytes, "frame {received}");
                received += 1;
            })
            .unwrap();
        if received == before {
            let more = pair.rx.queue.wait(Duration::from_secs(4)).unwrap();
            assert!(more, "{received} of {sent} came back, and no more");
        }
    }
}
