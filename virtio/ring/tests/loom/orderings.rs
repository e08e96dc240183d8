//! Tests that entries, descriptors and buffer contents are visible when the index that covers them is.

use loom::thread;
use pontoon_ring::Features;
use pontoon_ring::device::{Device, State};
use pontoon_ring::driver::{Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, Memory};

use crate::memory::{LAYOUT, SIZE, buffer, memory};

/// Transfers two chains of two descriptors, one after the other, through a queue of two descriptors.
#[test]
fn published_chain_is_fully_visible() {
    loom::model(|| {
        let memory = memory();
        let features = Features::default();
        let mut driver = Driver::new(&memory, LAYOUT, features, [Slot::default(); SIZE as usize]).unwrap();
        let mut device = Device::new(LAYOUT, features, State::default()).unwrap();

        let device_memory = memory.clone();
        let serving = thread::spawn(move || {
            let mut queue = device.attach(&device_memory).unwrap();
            for turn in 0..2 {
                while queue.poll().unwrap() == 0 {
                    thread::yield_now();
                }
                let mut pieces = Vec::new();
                let chain = queue.pop(|piece| pieces.push(piece.area)).unwrap().unwrap();
                assert_eq!((chain.readable, chain.writable), (8, 8));
                assert_eq!(pieces[0].load_u64(0), 100 + turn, "a stale request");
                pieces[1].store_u64(0, 200 + turn);
                queue.put(chain, 8);
                let _ = queue.publish();
            }
        });

        let request = memory.area(buffer(0), 8).unwrap();
        let reply = memory.area(buffer(1), 8).unwrap();
        let mut queue = driver.attach(&memory).unwrap();
        for turn in 0..2 {
            request.store_u64(0, 100 + turn);
            queue
                .add(
                    turn as u32,
                    &[Buffer::readable(buffer(0), 8), Buffer::writable(buffer(1), 8)],
                )
                .unwrap();
            let _ = queue.publish();
            while queue.poll().unwrap() == 0 {
                thread::yield_now();
            }
            let used = queue.reap().unwrap().unwrap();
            assert_eq!((used.tag, used.len), (turn as u32, 8));
            assert_eq!(reply.load_u64(0), 200 + turn, "a stale reply");
        }
        serving.join().unwrap();
    });
}
