//! Who wakes whom, and when.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use pontoon_engine::link::{Refused, Transmit as _};
use pontoon_vm_peer::vhost_user::{Machine, Options};
use pontoon_wire::vnet::Offload;

use crate::device::{ALL, Device, EVENT_IDX, How, OPTIONS, TSO, Waiter, bytes};
use pontoon_test_support::vhost_user::messages::{message, send, words};

/// With event indices a burst costs one notification, either way, however often it is published.
#[test]
fn a_burst_costs_one_notification() {
    let (mut device, _machine, mut pair) = Device::pair(ALL, 1536);
    assert!(device.drain().0.is_empty());
    for _ in 0..10 {
        let before = pair.tx.queue.kicks();
        for _ in 0..50 {
            assert!(pair.tx.send(Offload::NONE, 0, &bytes(60)).unwrap());
            pair.tx.flush().unwrap();
        }
        assert_eq!(pair.tx.queue.kicks() - before, 1);
        assert_eq!(device.drain().0.len(), 50);

        assert!(!pair.rx.queue.wait(Duration::ZERO).unwrap());
        for _ in 0..50 {
            device.send(How::Copied, Offload::NONE, 54, &bytes(60)).unwrap();
            device.transmitter().flush();
        }
        assert_eq!(pair.rx.queue.take_calls(), 1);
        assert_eq!(pair.rx.receive(|_| {}).unwrap(), 50);
    }
}

/// A guest that is out of buffers is not sent anything, and wakes us when it has some.
#[test]
fn a_full_queue_refuses_and_tells_when_there_is_room() {
    for features in [ALL, ALL & !EVENT_IDX] {
        let (mut device, _machine, mut pair) = Device::pair(features, 1536);
        let waiter = Waiter::new([&device.halves[0].1 as _]);
        for _ in 0..5 {
            let mut sent = 0;
            let refused = loop {
                match device.send(How::Reserved, Offload::NONE, 54, &bytes(60)) {
                    Ok(()) => sent += 1,
                    Err(refused) => break refused,
                }
            };
            assert_eq!((sent, refused), (256, Refused::Full));
            assert!(device.transmitter().take_full());
            assert!(!device.transmitter().take_full());
            // Whoever is out of buffers was shown those that came back, without a flush.
            while waiter.has() {}
            assert_eq!(pair.rx.take(|_| {}).unwrap(), 256);
            assert!(!waiter.has());
            pair.rx.refill(1).unwrap();
            assert!(waiter.has());
            device.send(How::Copied, Offload::NONE, 54, &bytes(60)).unwrap();
            device.transmitter().flush();
            assert_eq!(pair.rx.receive(|_| {}).unwrap(), 1);
        }
    }
}

/// Some buffers are left, but too few for the frame: the next ones have to wake us all the same.
#[test]
fn too_few_buffers_are_waited_for_too() {
    for features in [ALL, ALL & !EVENT_IDX] {
        let (mut device, _machine, mut pair) = Device::pair(features, 1536);
        let waiter = Waiter::new([&device.halves[0].1 as _]);
        let frame = bytes(60_000);
        for _ in 0..5 {
            let mut sent = 0;
            while device.send(How::Reserved, TSO, 54, &frame).is_ok() {
                sent += 1;
            }
            // 40 buffers each: 16 are left.
            assert_eq!(sent, 6);
            assert!(device.transmitter().take_full());
            while waiter.has() {}
            assert_eq!(pair.rx.take(|_| {}).unwrap(), 6);
            for _ in 0..3 {
                pair.rx.refill(7).unwrap();
                assert!(waiter.has(), "more buffers wake us");
                assert_eq!(device.send(How::Reserved, TSO, 54, &frame), Err(Refused::Full));
            }
            pair.rx.refill(3).unwrap();
            assert!(waiter.has());
            device.send(How::Reserved, TSO, 54, &frame).unwrap();
            device.transmitter().flush();
            assert_eq!(pair.rx.receive(|came| assert!(came.bytes == frame)).unwrap(), 1);
        }
    }
}

/// A frame that found room after another one was refused takes the wish to be woken back, until the device sleeps.
#[test]
fn a_small_frame_after_a_refusal_does_not_cancel_the_wake_up() {
    for features in [ALL, ALL & !EVENT_IDX] {
        let (mut device, _machine, mut pair) = Device::pair(features, 1536);
        let waiter = Waiter::new([&device.halves[0].1 as _]);
        let frame = bytes(60_000);
        for refilled_before in [false, true, false] {
            while device.send(How::Reserved, TSO, 54, &frame).is_ok() {}
            device.send(How::Copied, Offload::NONE, 54, &bytes(60)).unwrap();
            device.transmitter().flush();
            assert!(device.transmitter().take_full());
            while waiter.has() {}
            if refilled_before {
                assert_eq!(pair.rx.receive(|_| {}).unwrap(), 7);
            }
            device.transmitter().rearm();
            if !refilled_before {
                assert!(!waiter.has(), "what is left is too little");
                assert_eq!(pair.rx.receive(|_| {}).unwrap(), 7);
            }
            assert!(waiter.has(), "refilled before: {refilled_before}");
        }
    }
}

/// While it is awake nobody kicks; it looks, and before it sleeps it is told of what it has not seen.
#[test]
fn a_receiver_that_is_awake_is_left_alone() {
    for features in [ALL, ALL & !EVENT_IDX] {
        let (mut device, _machine, mut pair) = Device::pair(features, 1536);
        assert!(device.drain().0.is_empty());
        let waiter = Waiter::new([&device.halves[0].0 as _]);
        while waiter.has() {}
        let mut send = || {
            assert!(pair.tx.send(Offload::NONE, 0, &bytes(60)).unwrap());
            pair.tx.flush().unwrap();
            pair.tx.queue.kicks()
        };
        let kicks = send();
        assert!(waiter.has());
        assert_eq!(device.burst().0.len(), 1);
        assert!(!device.receiver().has_frames());

        assert_eq!(send(), kicks);
        assert!(device.receiver().has_frames());
        assert!(!waiter.has());
        device.receiver().rearm();
        assert!(waiter.has());
        assert_eq!(device.burst().0.len(), 1);
        device.receiver().rearm();
        assert!(!waiter.has());
        assert_eq!(send(), kicks + 1);
        assert!(waiter.has());
    }
}

#[test]
fn frames_and_orders_wake_the_receiver() {
    let (mut device, _machine, mut pair) = Device::pair(ALL, 1536);
    let waiter = Waiter::new([&device.halves[0].0 as _]);
    assert!(device.drain().0.is_empty());
    while waiter.has() {}
    assert!(pair.tx.send(Offload::NONE, 0, &bytes(60)).unwrap());
    assert!(!waiter.has());
    pair.tx.flush().unwrap();
    assert!(waiter.has());
    assert_eq!(device.drain().0.len(), 1);

    device.backend.disconnect();
    assert!(waiter.has());
}

/// What was shown while there was nobody to signal is told of when there is somebody, or when the ring starts again.
#[test]
fn a_call_that_comes_late_is_not_missed() {
    for features in [ALL, ALL & !EVENT_IDX] {
        let mut device = Device::new(1);
        let socket = device.accept();
        let raw = socket.try_clone().unwrap();
        let options = Options { features, ..OPTIONS };
        let (mut machine, mut pairs) = device.during(|| Machine::connect(socket, &options).unwrap());
        let rx = &mut pairs[0].rx;
        let set_call = |device: &mut Device, number: u64, fds: &[BorrowedFd<'_>]| {
            send(&raw, &message(13, 1, &words(&[number])), fds).unwrap();
            for _ in 0..3 {
                device.turn().unwrap();
            }
        };
        let show = |device: &mut Device| {
            device.send(How::Copied, Offload::NONE, 54, &bytes(60)).unwrap();
            device.transmitter().flush();
        };
        for restarts in [false, true, false] {
            let call = rx.queue.as_fd().try_clone_to_owned().unwrap();
            assert!(!rx.queue.wait(Duration::ZERO).unwrap());
            set_call(&mut device, 0x100, &[]);
            show(&mut device);
            assert_eq!(rx.queue.take_calls(), 0);
            match restarts {
                true => device.during(|| {
                    let base = machine.stop(0).unwrap();
                    machine.start(0, &rx.queue, base.try_into().unwrap()).unwrap();
                }),
                false => set_call(&mut device, 0, &[call.as_fd()]),
            }
            assert_eq!(rx.queue.take_calls(), 1, "restarts: {restarts}");
            assert_eq!(rx.receive(|_| {}).unwrap(), 1);

            // What comes now is told of as ever.
            assert!(!rx.queue.wait(Duration::ZERO).unwrap());
            show(&mut device);
            assert_eq!(rx.queue.take_calls(), 1);
            assert_eq!(rx.receive(|_| {}).unwrap(), 1);
        }
    }
}
