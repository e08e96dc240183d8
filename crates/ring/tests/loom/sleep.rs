//! Who sleeps is woken. A notification lost leaves a thread waiting for ever, which loom reports as a deadlock.

use std::sync::Arc;

use loom::thread;
use pontoon_ring::Features;
use pontoon_ring::device::{Device, State};
use pontoon_ring::driver::{Buffer, Driver, Slot};

use crate::memory::{LAYOUT, SIZE, buffer, memory};
use pontoon_test_support::notifier::Notifier;

const BY_EVENT: Features = Features {
    event_idx: true,
    indirect: false,
};
const BY_FLAGS: Features = Features {
    event_idx: false,
    indirect: false,
};

#[test]
fn a_device_asleep_is_woken_by_event() {
    device_sleeps(BY_EVENT);
}

#[test]
fn a_device_asleep_is_woken_by_flags() {
    device_sleeps(BY_FLAGS);
}

#[test]
fn a_driver_asleep_is_woken_by_event() {
    driver_sleeps(BY_EVENT);
}

#[test]
fn a_driver_asleep_is_woken_by_flags() {
    driver_sleeps(BY_FLAGS);
}

#[test]
fn both_sleep_and_both_are_woken_by_event() {
    both_sleep(BY_EVENT);
}

#[test]
fn both_sleep_and_both_are_woken_by_flags() {
    both_sleep(BY_FLAGS);
}

/// The driver publishes two chains one by one; the device works with notifications suppressed and sleeps when it has
/// nothing.
fn device_sleeps(features: Features) {
    loom::model(move || {
        let memory = memory();
        let mut driver = Driver::new(&memory, LAYOUT, features, [Slot::default(); SIZE as usize]).unwrap();
        let mut device = Device::new(LAYOUT, features, State::default()).unwrap();
        let kick = Arc::new(Notifier::default());

        let (theirs, notifier) = (memory.clone(), kick.clone());
        let serving = thread::spawn(move || {
            let mut queue = device.attach(&theirs).unwrap();
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
            if queue.publish() {
                kick.notify();
            }
        }
        serving.join().unwrap();
    });
}

/// The device returns two chains one by one; the driver works with notifications suppressed and sleeps when none is back.
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

        let (theirs, notifier) = (memory.clone(), call.clone());
        let serving = thread::spawn(move || {
            let mut queue = device.attach(&theirs).unwrap();
            assert_eq!(queue.poll(), Ok(2));
            for _ in 0..2 {
                let chain = queue.pop(|_| ()).unwrap().unwrap();
                queue.put(chain, 8);
                if queue.publish() {
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

/// A question and its answer, twice; each side sleeps until the other has something.
fn both_sleep(features: Features) {
    // Not all interleavings, as in the other models: those with at most this many preemptions.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(5);
    model.check(move || {
        let memory = memory();
        let mut driver = Driver::new(&memory, LAYOUT, features, [Slot::default(); SIZE as usize]).unwrap();
        let mut device = Device::new(LAYOUT, features, State::default()).unwrap();
        let (kick, call) = (Arc::new(Notifier::default()), Arc::new(Notifier::default()));

        let (theirs, woken, wake) = (memory.clone(), kick.clone(), call.clone());
        let serving = thread::spawn(move || {
            let mut queue = device.attach(&theirs).unwrap();
            for _ in 0..2 {
                while queue.rearm().unwrap() == 0 {
                    woken.wait();
                }
                let chain = queue.pop(|_| ()).unwrap().unwrap();
                queue.put(chain, 8);
                if queue.publish() {
                    wake.notify();
                }
            }
        });

        let mut queue = driver.attach(&memory).unwrap();
        for tag in 0..2 {
            queue.add(tag, &[Buffer::writable(buffer(0), 8)]).unwrap();
            if queue.publish() {
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
