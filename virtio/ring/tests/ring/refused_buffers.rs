//! Tests of chains that the driver side refuses to add.

use pontoon_ring::driver::{AddError, Buffer, Driver, Slot};
use pontoon_ring::memory::Window;
use pontoon_ring::{Features, Layout};

use crate::forge::{END, HEAP, ORIGIN};
use pontoon_test_support::ring::model::ModelMemory;

#[test]
fn driver_refuses_to_add_invalid_chains() {
    let memory = Window::new(ModelMemory::new(0x1000), ORIGIN);
    let layout = Layout::contiguous(2, ORIGIN);
    let features = Features {
        event_idx: false,
        indirect: false,
    };
    let mut driver = Driver::new(&memory, layout, features, [Slot::default(); 2]).unwrap();
    let mut queue = driver.attach(&memory).unwrap();
    let readable = Buffer::readable(HEAP, 4);
    let writable = Buffer::writable(HEAP, 4);
    assert_eq!(queue.add(0, &[]), Err(AddError::Empty));
    assert_eq!(
        queue.add(0, &[readable, Buffer::writable(HEAP, 0)]),
        Err(AddError::Empty)
    );
    assert_eq!(queue.add(0, &[writable, readable]), Err(AddError::Order));
    assert_eq!(queue.add(0, &[readable; 3]), Err(AddError::TooManyBuffers(3)));
    assert_eq!(
        queue.add(0, &[readable, Buffer::writable(0, u32::MAX)]),
        Err(AddError::TooManyBytes)
    );
    assert_eq!(
        queue.add_indirect(0, HEAP, &[readable]),
        Err(AddError::NotNegotiated)
    );
    assert_eq!(queue.add(0, &[readable]), Ok(()));
    assert_eq!(
        queue.add(1, &[readable, writable]),
        Err(AddError::Full { needed: 2, free: 1 })
    );
    assert_eq!(queue.outstanding(), 1);

    let features = Features {
        event_idx: false,
        indirect: true,
    };
    let mut driver = Driver::new(&memory, layout, features, [Slot::default(); 2]).unwrap();
    let mut queue = driver.attach(&memory).unwrap();
    for table in [HEAP + 8, END - 16, END] {
        assert_eq!(
            queue.add_indirect(0, table, &[readable, writable]),
            Err(AddError::Table(table))
        );
    }
    assert_eq!(queue.add_indirect(0, END - 32, &[readable, writable]), Ok(()));
}
