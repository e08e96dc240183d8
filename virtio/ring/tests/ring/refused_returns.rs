//! Tests of invalid entries of the used ring, with the resulting error.

use pontoon_ring::driver::{Buffer, Driver, Slot, Used, VirtqueueError};
use pontoon_ring::memory::{Area, Window};
use pontoon_ring::{Features, Layout, Notification};

use crate::forge::{HEAP, ORIGIN};
use pontoon_test_support::ring::model::ModelMemory;

/// Returns the chains that the driver reaps from a used ring with these elements, after it has added chains 0 (4
/// writable bytes) and 1 (none).
#[track_caller]
fn reap_all(index: u16, elements: &[(u32, u32)]) -> Result<Vec<Used>, VirtqueueError> {
    let model = ModelMemory::new(0x1000);
    let memory = Window::new(model.clone(), ORIGIN);
    let layout = Layout::contiguous(4, ORIGIN);
    let mut driver = Driver::new(&memory, layout, Features::default(), [Slot::default(); 4]).unwrap();
    let mut queue = driver.attach(&memory).unwrap();
    queue
        .add(10, &[Buffer::readable(HEAP, 9), Buffer::writable(HEAP, 4)])
        .unwrap();
    queue.add(11, &[Buffer::readable(HEAP, 9)]).unwrap();
    assert_eq!(queue.publish(), Notification::Required);
    let used = (layout.used - ORIGIN) as usize;
    for (slot, (id, len)) in elements.iter().enumerate() {
        model.copy_in(used + 4 + 8 * slot, &id.to_le_bytes());
        model.copy_in(used + 8 + 8 * slot, &len.to_le_bytes());
    }
    model.copy_in(used + 2, &index.to_le_bytes());
    queue.poll()?;
    let mut chains = Vec::new();
    loop {
        match queue.reap() {
            Ok(Some(chain)) => chains.push(chain),
            Ok(None) => return Ok(chains),
            Err(error) => {
                assert_eq!((queue.poll(), queue.reap()), (Err(error), Err(error)));
                return Err(error);
            }
        }
    }
}

#[test]
fn used_chains_are_accepted_in_any_order() {
    let used = |tag, len| Used { tag, len };
    assert_eq!(reap_all(0, &[]), Ok(vec![]));
    assert_eq!(reap_all(2, &[(2, 0), (0, 4)]), Ok(vec![used(11, 0), used(10, 4)]));
    assert_eq!(reap_all(1, &[(0, 3)]), Ok(vec![used(10, 3)]));
}

#[test]
fn used_chain_that_is_not_in_flight_is_refused() {
    // The second descriptor of a chain, a free descriptor, a number that is no descriptor, numbers above 16 bits, and
    // then a chain that is returned twice.
    for id in [1, 3, 4, 0x1_0000, u32::MAX] {
        assert_eq!(
            reap_all(1, &[(id, 0)]),
            Err(VirtqueueError::NotOutstanding { id })
        );
    }
    assert_eq!(
        reap_all(2, &[(0, 0), (0, 0)]),
        Err(VirtqueueError::NotOutstanding { id: 0 })
    );
}

#[test]
fn used_length_beyond_the_writable_bytes_is_refused() {
    assert_eq!(
        reap_all(1, &[(0, 5)]),
        Err(VirtqueueError::Length {
            id: 0,
            len: 5,
            room: 4
        })
    );
    assert_eq!(
        reap_all(1, &[(2, 1)]),
        Err(VirtqueueError::Length {
            id: 2,
            len: 1,
            room: 0
        })
    );
}

#[test]
fn used_index_beyond_the_chains_in_flight_is_refused() {
    for index in [3, 0x8000, u16::MAX] {
        let error = VirtqueueError::UsedIndex {
            seen: 0,
            index,
            outstanding: 2,
        };
        assert_eq!(reap_all(index, &[(0, 0), (2, 0)]), Err(error));
    }
}
