//! Tests of chains that the device side refuses, with the resulting error, and of valid chains close to the limits.

use pontoon_ring::Features;
use pontoon_ring::device::{Chain, Indirect, VirtqueueError};
use pontoon_ring::memory::Area;

use crate::forge::{END, Forged, HEAP, INDIRECT, NEXT, ORIGIN, SIZE, WRITE};

const INDIRECT_ALLOWED: Features = Features {
    event_idx: false,
    indirect: true,
};

/// Pops the chain at descriptor 0 twice, and returns the error, which must be the same both times.
#[track_caller]
fn refused(forged: &Forged, features: Features) -> VirtqueueError {
    forged.offer(0);
    let mut device = forged.device(features);
    let window = forged.window();
    let mut queue = device.attach(&window).unwrap();
    assert_eq!(queue.poll(), Ok(1));
    let error = queue.pop(|_| ()).expect_err("refused");
    // After the memory was corrected, the queue is still unusable.
    forged.write_descriptor(0, HEAP, 1, 0, 0);
    assert_eq!(queue.poll(), Err(error));
    assert_eq!(queue.pop(|_| ()), Err(error));
    assert_eq!(queue.chain(0, |_| ()), Err(error));
    assert_eq!(queue.rearm(), Err(error));
    assert_eq!(device.broken(), Some(error));
    error
}

/// Pops the chain at descriptor 0, which must succeed, and returns its pieces.
#[track_caller]
fn taken(forged: &Forged, features: Features) -> (Chain, Vec<(u64, usize)>) {
    forged.offer(0);
    let mut device = forged.device(features);
    let mut queue = device.attach(forged.window()).unwrap();
    assert_eq!(queue.poll(), Ok(1));
    let mut pieces = Vec::new();
    let chain = queue
        .pop(|piece| pieces.push((piece.addr, piece.area.len())))
        .unwrap()
        .unwrap();
    (chain, pieces)
}

#[test]
fn head_outside_the_table_is_refused() {
    let forged = Forged::new();
    forged.offer(SIZE);
    let mut device = forged.device(Features::default());
    let mut queue = device.attach(forged.window()).unwrap();
    assert_eq!(queue.poll(), Ok(1));
    let error = VirtqueueError::Index {
        head: SIZE,
        index: SIZE,
        table: SIZE.into(),
    };
    assert_eq!(queue.pop(|_| ()), Err(error));
}

#[test]
fn next_outside_the_table_is_refused() {
    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 1, NEXT, SIZE);
    let error = VirtqueueError::Index {
        head: 0,
        index: SIZE,
        table: SIZE.into(),
    };
    assert_eq!(refused(&forged, Features::default()), error);
}

#[test]
fn descriptor_loop_is_refused() {
    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 1, NEXT, 1);
    forged.write_descriptor(1, HEAP, 1, NEXT, 0);
    assert_eq!(
        refused(&forged, Features::default()),
        VirtqueueError::TooManyBuffers { head: 0 }
    );
}

#[test]
fn chain_of_all_descriptors_is_accepted() {
    let forged = Forged::new();
    for index in 0..SIZE {
        let flags = if index + 1 < SIZE { NEXT } else { 0 };
        forged.write_descriptor(index, HEAP, 2, flags, index + 1);
    }
    let (chain, pieces) = taken(&forged, Features::default());
    assert_eq!(
        chain,
        Chain {
            head: 0,
            readable: 2 * u32::from(SIZE),
            writable: 0
        }
    );
    assert_eq!(pieces, vec![(HEAP, 2); SIZE.into()]);
}

#[test]
fn indirect_chain_longer_than_the_queue_is_refused() {
    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 16 * 9, INDIRECT, 0);
    for index in 0..9 {
        forged.write_descriptor_at(HEAP + 16 * u64::from(index), HEAP, 1, NEXT, index + 1);
    }
    assert_eq!(
        refused(&forged, INDIRECT_ALLOWED),
        VirtqueueError::TooManyBuffers { head: 0 }
    );
}

#[test]
fn chain_of_4_gib_is_refused() {
    let forged = Forged::new();
    // The last buffer alone exceeds the limit; the limit is checked before the mapping of the buffer.
    forged.write_descriptor(0, HEAP, 16, NEXT, 1);
    forged.write_descriptor(1, HEAP, u32::MAX - 15, WRITE, 0);
    assert_eq!(
        refused(&forged, Features::default()),
        VirtqueueError::TooManyBytes { head: 0 }
    );
}

#[test]
fn undefined_flags_are_refused() {
    for flags in [8, 0x80, 0x8000, 0x8001] {
        let forged = Forged::new();
        forged.write_descriptor(0, HEAP, 1, flags, 0);
        assert_eq!(
            refused(&forged, Features::default()),
            VirtqueueError::Flags { head: 0, flags }
        );
    }
}

#[test]
fn misplaced_indirect_descriptors_are_refused() {
    let indirect = |reason| VirtqueueError::Indirect { head: 0, reason };

    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 16, INDIRECT, 0);
    assert_eq!(
        refused(&forged, Features::default()),
        indirect(Indirect::NotNegotiated)
    );

    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 16, INDIRECT, 0);
    forged.write_descriptor_at(HEAP, HEAP + 16, 16, INDIRECT, 0);
    assert_eq!(refused(&forged, INDIRECT_ALLOWED), indirect(Indirect::Nested));

    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 16, INDIRECT | NEXT, 1);
    assert_eq!(refused(&forged, INDIRECT_ALLOWED), indirect(Indirect::Chained));

    for len in [0, 8, 17, u32::MAX] {
        let forged = Forged::new();
        forged.write_descriptor(0, HEAP, len, INDIRECT, 0);
        assert_eq!(
            refused(&forged, INDIRECT_ALLOWED),
            indirect(Indirect::Length(len))
        );
    }
}

#[test]
fn unmapped_indirect_table_is_refused() {
    let forged = Forged::new();
    forged.write_descriptor(0, END - 16, 32, INDIRECT, 0);
    assert_eq!(
        refused(&forged, INDIRECT_ALLOWED),
        VirtqueueError::Unmapped {
            head: 0,
            addr: END - 16,
            len: 32
        }
    );
}

#[test]
fn next_outside_the_indirect_table_is_refused() {
    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 32, INDIRECT, 0);
    forged.write_descriptor_at(HEAP, HEAP, 1, NEXT, 2);
    assert_eq!(
        refused(&forged, INDIRECT_ALLOWED),
        VirtqueueError::Index {
            head: 0,
            index: 2,
            table: 2
        }
    );
}

/// Ordinary descriptors may precede an indirect one (virtio 1.2, section 2.7.5.3.2), and the indirect table need not be
/// aligned.
#[test]
fn indirect_table_at_the_end_of_a_chain_is_accepted() {
    let forged = Forged::new();
    let table = HEAP + 3;
    forged.write_descriptor(0, HEAP, 5, NEXT, 1);
    forged.write_descriptor(1, table, 32, INDIRECT | WRITE, 0);
    forged.write_descriptor_at(table, HEAP + 64, 6, NEXT, 1);
    forged.write_descriptor_at(table + 16, HEAP + 128, 7, WRITE, 0);
    let (chain, pieces) = taken(&forged, INDIRECT_ALLOWED);
    assert_eq!(
        chain,
        Chain {
            head: 0,
            readable: 11,
            writable: 7
        }
    );
    assert_eq!(pieces, [(HEAP, 5), (HEAP + 64, 6), (HEAP + 128, 7)]);
}

#[test]
fn readable_buffer_after_a_writable_one_is_refused() {
    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 1, WRITE | NEXT, 1);
    forged.write_descriptor(1, HEAP, 1, 0, 0);
    assert_eq!(
        refused(&forged, Features::default()),
        VirtqueueError::Order { head: 0 }
    );
}

#[test]
fn empty_buffer_is_refused() {
    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 0, 0, 0);
    assert_eq!(
        refused(&forged, Features::default()),
        VirtqueueError::Empty { head: 0 }
    );
}

#[test]
fn unmapped_buffers_are_refused() {
    for (addr, len, missing) in [
        (0, 1, (0, 1)),
        (ORIGIN - 1, 2, (ORIGIN - 1, 2)),
        (END, 1, (END, 1)),
        (END - 1, 2, (END, 1)),
        (HEAP, u32::MAX, (END, u32::MAX as usize - 0x800)),
        (u64::MAX, 1, (u64::MAX, 1)),
        (u64::MAX - 3, 100, (u64::MAX - 3, 100)),
    ] {
        let forged = Forged::new();
        forged.write_descriptor(0, addr, len, 0, 0);
        let (addr, len) = missing;
        assert_eq!(
            refused(&forged, Features::default()),
            VirtqueueError::Unmapped { head: 0, addr, len }
        );
    }
}

#[test]
fn buffer_up_to_the_last_mapped_byte_is_accepted() {
    let forged = Forged::new();
    forged.write_descriptor(0, END - 7, 7, 0, 0);
    assert_eq!(taken(&forged, Features::default()).1, [(END - 7, 7)]);
}
