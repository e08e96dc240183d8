//! Tests of this crate's driver with rust-vmm's device.

#![cfg(not(miri))]

use std::sync::atomic::Ordering;

use pontoon_ring::driver::{Buffer, Driver, Slot};
use pontoon_ring::memory::VmMemory;
use pontoon_ring::{Features, Layout, Notification};
use proptest::prelude::*;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use pontoon_test_support::property::cases;

const SIZE: u16 = 16;
const RINGS: u64 = 0x1000;
const BUFFERS: u64 = 0x4000;
const TABLES: u64 = 0x8000;

fn queue(layout: Layout, event_idx: bool) -> Queue {
    let mut queue = Queue::new(SIZE).unwrap();
    queue
        .try_set_desc_table_address(GuestAddress(layout.descriptors))
        .unwrap();
    queue
        .try_set_avail_ring_address(GuestAddress(layout.available))
        .unwrap();
    queue
        .try_set_used_ring_address(GuestAddress(layout.used))
        .unwrap();
    queue.set_event_idx(event_idx);
    queue.set_ready(true);
    queue
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn rust_vmm_device_serves_this_driver(
        event_idx: bool,
        bursts in prop::collection::vec((prop::collection::vec((1..4_usize, 1..3_usize, any::<bool>()), 1..4), any::<bool>(), any::<u8>()), 1..40),
    ) {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1_0000)]).unwrap();
        let layout = Layout::contiguous(SIZE, RINGS);
        let features = Features { event_idx, indirect: true };
        let guest = VmMemory::new(&memory);
        let mut driver = Driver::new(guest, layout, features, [Slot::default(); SIZE as usize]).unwrap();
        let mut device = queue(layout, event_idx);
        prop_assert!(device.is_valid(&memory));
        let mut tag = 0;
        for (burst, sleep, order) in bursts {
            let mut driver_queue = driver.attach(guest).unwrap();
            if sleep {
                prop_assert_eq!(driver_queue.rearm(), Ok(0));
            } else {
                driver_queue.suppress();
            }
            prop_assert!(!device.enable_notification(&memory).unwrap());

            let first = tag;
            let mut shapes = Vec::new();
            for (place, (readable, writable, indirect)) in (0..).zip(burst) {
                let addr = |buffer: usize| BUFFERS + 64 * (8 * place + buffer as u64);
                let mut buffers: Vec<_> = (0..readable).map(|at| Buffer::readable(addr(at), 10 + at as u32)).collect();
                buffers.extend((0..writable).map(|at| Buffer::writable(addr(readable + at), 20 + at as u32)));
                let added = if indirect {
                    driver_queue.add_indirect(tag, TABLES + 128 * place, &buffers)
                } else {
                    driver_queue.add(tag, &buffers)
                };
                prop_assert_eq!(added, Ok(()));
                tag += 1;
                shapes.push(buffers);
            }
            prop_assert_eq!(driver_queue.publish(), Notification::Required, "rust-vmm's device requested a notification");

            let chains: Vec<_> = device.iter(&memory).unwrap().collect();
            prop_assert_eq!(chains.len(), shapes.len());
            let mut done = Vec::new();
            for ((chain, buffers), tag) in chains.into_iter().zip(shapes).zip(first..) {
                let head = chain.head_index();
                let seen: Vec<_> = chain.map(|d| (d.addr().0, d.len(), d.is_write_only())).collect();
                let sent: Vec<_> = buffers.iter().map(|b| (b.addr, b.len, b.access == pontoon_ring::Access::Writable)).collect();
                prop_assert_eq!(seen, sent);
                done.push((head, tag, 20 - tag % 20));
            }
            let at = usize::from(order) % done.len();
            done.rotate_left(at);
            for (head, _, len) in &done {
                device.add_used(&memory, *head, *len).unwrap();
            }
            // Without event indices rust-vmm's device always notifies.
            prop_assert_eq!(device.needs_notification(&memory).unwrap(), sleep || !event_idx);

            let mut driver_queue = driver.attach(guest).unwrap();
            prop_assert_eq!(driver_queue.poll(), Ok(done.len() as u16));
            for (_, tag, len) in done {
                let used = driver_queue.reap().unwrap().unwrap();
                prop_assert_eq!((used.tag, used.len), (tag, len));
            }
            prop_assert_eq!(driver_queue.free(), SIZE);
        }
        let index: u16 = memory.load(GuestAddress(layout.used + 2), Ordering::Relaxed).unwrap();
        prop_assert_eq!(u32::from(index), tag);
    }
}
