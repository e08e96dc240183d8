//! Tests with a driver and a device in two threads, each of which sleeps when it has nothing to do.

use pontoon_ring::device::{Device, State};
use pontoon_ring::driver::{Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, Memory, Raw, Window};
use pontoon_ring::{Features, Layout, Notification};

use crate::shared::{ORIGIN, SharedMemory};
use pontoon_test_support::notifier::Notifier;

const SIZE: u16 = 16;
const FRAME: u64 = 24;
const CHAINS: u32 = if cfg!(miri) { 150 } else { 100_000 };

#[test]
fn no_notification_is_lost_with_event_idx() {
    exchange(Features {
        event_idx: true,
        indirect: false,
    });
}

#[test]
fn no_notification_is_lost_with_flags() {
    exchange(Features::default());
}

/// Sends [`CHAINS`] chains through the queue, each with a request to which the device replies.
fn exchange(features: Features) {
    let layout = Layout::contiguous(SIZE, ORIGIN);
    let frames = (ORIGIN + Layout::contiguous_bytes(SIZE) as u64).next_multiple_of(8);
    let shared = SharedMemory::new((frames - ORIGIN) as usize + (FRAME * u64::from(SIZE)) as usize);
    let memory = shared.window();
    let (kick, call) = (Notifier::default(), Notifier::default());
    let driver = Driver::new(memory, layout, features, [Slot::default(); SIZE as usize]).unwrap();
    let device = Device::new(layout, features, State::default()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(device, memory, &kick, &call));
        run_driver(driver, memory, frames, &kick, &call);
    });
}

/// Runs the driver, whose chains have 8 readable and 16 writable bytes.
fn run_driver(
    mut driver: Driver<[Slot; SIZE as usize]>,
    memory: Window<Raw<'_>>,
    frames: u64,
    kick: &Notifier,
    call: &Notifier,
) {
    let mut queue = driver.attach(memory).unwrap();
    let mut free: Vec<u64> = (0..u64::from(SIZE) / 2)
        .map(|frame| frames + FRAME * frame)
        .collect();
    let mut out = vec![0; SIZE.into()];
    let mut asked = 0;
    let mut replies = 0;
    while replies < CHAINS {
        queue.suppress();
        while asked < CHAINS
            && let Some(frame) = free.pop()
        {
            memory
                .area(frame, 8)
                .unwrap()
                .copy_in(0, &u64::from(asked).to_le_bytes());
            let tag = (frame - frames) / FRAME;
            out[tag as usize] = asked;
            queue
                .add(
                    tag as u32,
                    &[Buffer::readable(frame, 8), Buffer::writable(frame + 8, 16)],
                )
                .unwrap();
            asked += 1;
        }
        let notification = queue.publish();
        if notification == Notification::Required {
            kick.notify();
        }
        if queue.poll().unwrap() == 0 && queue.rearm().unwrap() == 0 {
            call.wait();
        }
        queue.poll().unwrap();
        while let Some(used) = queue.reap().unwrap() {
            let frame = frames + FRAME * u64::from(used.tag);
            let request = out[used.tag as usize];
            assert_eq!(used.len, 8 + request % 9);
            let mut reply = [0; 16];
            memory.area(frame + 8, 16).unwrap().copy_out(0, &mut reply);
            let expected = (u128::from(request) * 0x1_0000_0001_0000_0001).to_le_bytes();
            let len = used.len as usize;
            assert_eq!(reply[..len], expected[..len]);
            free.push(frame);
            replies += 1;
        }
    }
}

/// Runs the device, which replies with the bytes of the request, repeated.
fn serve(mut device: Device, memory: Window<Raw<'_>>, kick: &Notifier, call: &Notifier) {
    let mut queue = device.attach(memory).unwrap();
    let mut served = 0;
    while served < CHAINS {
        queue.suppress();
        queue.poll().unwrap();
        let mut taken = Vec::new();
        loop {
            let mut pieces = Vec::new();
            let Some(chain) = queue.pop(|piece| pieces.push(piece.area)).unwrap() else {
                break;
            };
            let mut request = [0; 8];
            pieces[0].copy_out(0, &mut request);
            let request = u64::from_le_bytes(request);
            let reply = (u128::from(request) * 0x1_0000_0001_0000_0001).to_le_bytes();
            let len = 8 + request as u32 % 9;
            pieces[1].copy_in(0, &reply[..len as usize]);
            taken.push((chain, len));
        }
        // The chains are returned in reverse order.
        while let Some((chain, len)) = taken.pop() {
            queue.put(chain, len);
            served += 1;
        }
        let notification = queue.publish();
        if notification == Notification::Required {
            call.notify();
        }
        if served < CHAINS && queue.rearm().unwrap() == 0 {
            kick.wait();
        }
    }
}
