//! What an index shows has been written: entries, descriptors, and the bytes in the buffers.

use loom::thread;
use pontoon_ring::Features;
use pontoon_ring::device::{Device, State};
use pontoon_ring::driver::{Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, Memory};

use crate::memory::{LAYOUT, SIZE, buffer, memory};

/// Two chains there and back, more than there are descriptors for at a time when each has two.
#[test]
fn a_chain_that_is_seen_is_whole() {
    loom::model(|| {
        let memory = memory();
        let features = Features::default();
        let mut driver = Driver::new(&memory, LAYOUT, features, [Slot::default(); SIZE as usize]).unwrap();
        let mut device = Device::new(LAYOUT, features, State::default()).unwrap();

        let theirs = memory.clone();
        let serving = thread::spawn(move || {
            let mut queue = device.attach(&theirs).unwrap();
            for turn in 0..2 {
                while queue.poll().unwrap() == 0 {
                    thread::yield_now();
                }
                let mut pieces = Vec::new();
                let chain = queue.pop(|piece| pieces.push(piece.area)).unwrap().unwrap();
                assert_eq!((chain.readable, chain.writable), (8, 8));
                assert_eq!(pieces[0].load_u64(0), 100 + turn, "a stale question");
                pieces[1].store_u64(0, 200 + turn);
                queue.put(chain, 8);
                let _ = queue.publish();
            }
        });

        let question = memory.area(buffer(0), 8).unwrap();
        let answer = memory.area(buffer(1), 8).unwrap();
        let mut queue = driver.attach(&memory).unwrap();
        for turn in 0..2 {
            question.store_u64(0, 100 + turn);
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
            assert_eq!(answer.load_u64(0), 200 + turn, "a stale answer");
        }
        serving.join().unwrap();
    });
}
