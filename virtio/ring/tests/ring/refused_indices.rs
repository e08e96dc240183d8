//! Tests of invalid available indices, with the resulting error.

use pontoon_ring::device::VirtqueueError;
use pontoon_ring::{Features, Notification};

use crate::forge::{Forged, HEAP, SIZE};

#[test]
fn available_index_beyond_the_queue_size_is_refused() {
    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 1, 0, 0);
    let mut device = forged.device(Features::default());
    let mut queue = device.attach(forged.window()).unwrap();
    // The largest valid index makes as many chains available as there are descriptors.
    forged.set_index(SIZE);
    assert_eq!(queue.poll(), Ok(SIZE));
    let chain = queue.pop(|_| ()).unwrap().unwrap();
    // A chain that was returned but not published still counts as in flight.
    queue.put(chain, 0);
    forged.set_index(SIZE + 1);
    let error = VirtqueueError::AvailableIndex {
        seen: SIZE,
        index: SIZE + 1,
        size: SIZE,
    };
    assert_eq!(queue.poll(), Err(error));
    // Chains that were taken before the error may still be returned.
    assert_eq!(queue.publish(), Notification::Required);
    assert_eq!(forged.used().0, 1);
}

#[test]
fn available_index_that_moves_backwards_is_refused() {
    let forged = Forged::new();
    let mut device = forged.device(Features::default());
    let mut queue = device.attach(forged.window()).unwrap();
    forged.set_index(3);
    assert_eq!(queue.poll(), Ok(3));
    forged.set_index(2);
    let error = VirtqueueError::AvailableIndex {
        seen: 3,
        index: 2,
        size: SIZE,
    };
    assert_eq!(queue.poll(), Err(error));
}
