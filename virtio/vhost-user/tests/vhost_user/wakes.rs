//! Tests of notifications between driver and device, in both directions.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use pontoon_engine::link::{Transmit as _, TransmitError};
use pontoon_vm_peer::vhost_user::{Machine, Options};
use pontoon_wire::vnet::Offload;

use crate::device::{ALL, Device, EVENT_IDX, How, OPTIONS, TSO, Waiter, bytes};
use pontoon_test_support::vhost_user::messages::{message, send, words};

/// With event indices a burst causes one notification in each direction, however often the index is published.
#[test]
fn burst_causes_one_notification() {
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

/// A guest without receive buffers receives no frames, and kicks when it adds buffers.
#[test]
fn full_queue_refuses_frame_and_signals_room() {
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
            assert_eq!((sent, refused), (256, TransmitError::Full));
            assert!(device.transmitter().take_full());
            assert!(!device.transmitter().take_full());
            // The used buffers were published, although `flush` was not called.
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

/// Some buffers are available, but too few for the frame; new buffers cause a kick.
#[test]
fn room_is_signalled_after_too_few_buffers() {
    for features in [ALL, ALL & !EVENT_IDX] {
        let (mut device, _machine, mut pair) = Device::pair(features, 1536);
        let waiter = Waiter::new([&device.halves[0].1 as _]);
        let frame = bytes(60_000);
        for _ in 0..5 {
            let mut sent = 0;
            while device.send(How::Reserved, TSO, 54, &frame).is_ok() {
                sent += 1;
            }
            // Each frame has 40 buffers, so that 16 of 256 remain.
            assert_eq!(sent, 6);
            assert!(device.transmitter().take_full());
            while waiter.has() {}
            assert_eq!(pair.rx.take(|_| {}).unwrap(), 6);
            for _ in 0..3 {
                pair.rx.refill(7).unwrap();
                assert!(waiter.has(), "more buffers wake the device");
                assert_eq!(
                    device.send(How::Reserved, TSO, 54, &frame),
                    Err(TransmitError::Full)
                );
            }
            pair.rx.refill(3).unwrap();
            assert!(waiter.has());
            device.send(How::Reserved, TSO, 54, &frame).unwrap();
            device.transmitter().flush();
            assert_eq!(pair.rx.receive(|came| assert!(came.bytes == frame)).unwrap(), 1);
        }
    }
}

/// A frame that fits after a refused one withdraws the request for a kick, until the device calls `rearm`.
#[test]
fn small_frame_after_refusal_keeps_room_notification() {
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
                assert!(!waiter.has(), "the remaining buffers are too few");
                assert_eq!(pair.rx.receive(|_| {}).unwrap(), 7);
            }
            assert!(waiter.has(), "refilled before: {refilled_before}");
        }
    }
}

/// A polling receiver is not kicked. Frames that it has not seen before `rearm` make its descriptor readable.
#[test]
fn polling_receiver_is_not_kicked() {
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
        assert!(!device.receiver().poll());

        assert_eq!(send(), kicks);
        assert!(device.receiver().poll());
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
fn frames_and_commands_wake_the_receiver() {
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

/// Entries that were published without a call descriptor are signalled when one is set, or when the ring starts again.
#[test]
fn late_call_descriptor_is_signalled() {
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
                device.serve().unwrap();
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
            if restarts {
                device.during(|| {
                    let base = machine.stop(0).unwrap();
                    machine.start(0, &rx.queue, base.try_into().unwrap()).unwrap();
                });
            } else {
                set_call(&mut device, 0, &[call.as_fd()]);
            }
            assert_eq!(rx.queue.take_calls(), 1, "restarts: {restarts}");
            assert_eq!(rx.receive(|_| {}).unwrap(), 1);

            // Later entries are signalled as usual.
            assert!(!rx.queue.wait(Duration::ZERO).unwrap());
            show(&mut device);
            assert_eq!(rx.queue.take_calls(), 1);
            assert_eq!(rx.receive(|_| {}).unwrap(), 1);
        }
    }
}
