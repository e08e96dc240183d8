//! Tests that a sleeping side is woken. If a notification is lost, a thread waits forever, which loom reports as a
//! deadlock.

use std::sync::Arc;

use loom::thread;
use pontoon_ring::device::{Device, State};
use pontoon_ring::driver::{Buffer, Driver, Slot};
use pontoon_ring::{Features, Notification};

use crate::memory::{LAYOUT, SIZE, buffer, memory};
use pontoon_test_support::notifier::Notifier;

const EVENT_IDX: Features = Features {
    event_idx: true,
    indirect: false,
};
const FLAGS: Features = Features {
    event_idx: false,
    indirect: false,
};

#[test]
fn sleeping_device_is_woken_with_event_idx() {
    device_sleeps(EVENT_IDX);
}

#[test]
fn sleeping_device_is_woken_with_flags() {
    device_sleeps(FLAGS);
}

#[test]
fn sleeping_driver_is_woken_with_event_idx() {
    driver_sleeps(EVENT_IDX);
}

#[test]
fn sleeping_driver_is_woken_with_flags() {
    driver_sleeps(FLAGS);
}

#[test]
fn both_sleeping_sides_are_woken_with_event_idx() {
    both_sleep(EVENT_IDX);
}

#[test]
fn both_sleeping_sides_are_woken_with_flags() {
    both_sleep(FLAGS);
}

/// The driver publishes two chains, one at a time. The device suppresses notifications while it works, and sleeps when
/// there is no chain.
fn device_sleeps(features: Features) {
    loom::model(move || {
        let memory = memory();
        let mut driver = Driver::new(&memory, LAYOUT, features, [Slot::default(); SIZE as usize]).unwrap();
        let mut device = Device::new(LAYOUT, features, State::default()).unwrap();
        let kick = Arc::new(Notifier::default());

        let (device_memory, notifier) = (memory.clone(), kick.clone());
        let serving = thread::spawn(move || {
            let mut queue = device.attach(&device_memory).unwrap();
            queue.suppress();
            for _ in 0..2 {
                while queue.pop(|_| ()).unwrap().is_none() {
                    if queue.rearm().unwrap() == 0 {
                        notifier.wait();
                        queue.poll().unwrap();
                    }
                    queue.suppress();
                }
            }
        });

        let mut queue = driver.attach(&memory).unwrap();
        for tag in 0..2 {
            queue.add(tag, &[Buffer::readable(buffer(0), 8)]).unwrap();
            let notification = queue.publish();
            if notification == Notification::Required {
                kick.notify();
            }
        }
        serving.join().unwrap();
    });
}

/// The device returns two chains, one at a time. The driver suppresses notifications while it works, and sleeps when no
/// chain has been returned.
fn driver_sleeps(features: Features) {
    loom::model(move || {
        let memory = memory();
        let mut driver = Driver::new(&memory, LAYOUT, features, [Slot::default(); SIZE as usize]).unwrap();
        let mut device = Device::new(LAYOUT, features, State::default()).unwrap();
        let call = Arc::new(Notifier::default());
        let mut queue = driver.attach(&memory).unwrap();
        for tag in 0..2 {
            queue.add(tag, &[Buffer::writable(buffer(0), 8)]).unwrap();
        }
        let _ = queue.publish();

        let (device_memory, notifier) = (memory.clone(), call.clone());
        let serving = thread::spawn(move || {
            let mut queue = device.attach(&device_memory).unwrap();
            assert_eq!(queue.poll(), Ok(2));
            for _ in 0..2 {
                let chain = queue.pop(|_| ()).unwrap().unwrap();
                queue.put(chain, 8);
                let notification = queue.publish();
                if notification == Notification::Required {
                    notifier.notify();
                }
            }
        });

        queue.suppress();
        for _ in 0..2 {
            while queue.reap().unwrap().is_none() {
                if queue.rearm().unwrap() == 0 {
                    call.wait();
                    queue.poll().unwrap();
                }
                queue.suppress();
            }
        }
        serving.join().unwrap();
    });
}

/// The driver sends two requests, and the device replies to each; each side sleeps until the other has published
/// something.
fn both_sleep(features: Features) {
    // The model is limited to interleavings with at most this many preemptions, because all of them would take too
    // long.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(5);
    model.check(move || {
        let memory = memory();
        let mut driver = Driver::new(&memory, LAYOUT, features, [Slot::default(); SIZE as usize]).unwrap();
        let mut device = Device::new(LAYOUT, features, State::default()).unwrap();
        let (kick, call) = (Arc::new(Notifier::default()), Arc::new(Notifier::default()));

        let (device_memory, woken, wake) = (memory.clone(), kick.clone(), call.clone());
        let serving = thread::spawn(move || {
            let mut queue = device.attach(&device_memory).unwrap();
            for _ in 0..2 {
                while queue.rearm().unwrap() == 0 {
                    woken.wait();
                }
                let chain = queue.pop(|_| ()).unwrap().unwrap();
                queue.put(chain, 8);
                let notification = queue.publish();
                if notification == Notification::Required {
                    wake.notify();
                }
            }
        });

        let mut queue = driver.attach(&memory).unwrap();
        for tag in 0..2 {
            queue.add(tag, &[Buffer::writable(buffer(0), 8)]).unwrap();
            let notification = queue.publish();
            if notification == Notification::Required {
                kick.notify();
            }
            while queue.rearm().unwrap() == 0 {
                call.wait();
            }
            assert_eq!(queue.reap().unwrap().map(|used| used.tag), Some(tag));
        }
        serving.join().unwrap();
    });
}
