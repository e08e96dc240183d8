//! Tests of frames that span several receive buffers (VIRTIO_NET_F_MRG_RXBUF).

use pontoon_ring::device::{Chain, VirtqueueError, chains_needed};
use pontoon_ring::memory::Area;
use pontoon_ring::{Features, Notification};
use proptest::prelude::*;

use crate::forge::{Forged, HEAP, NEXT, SIZE, WRITE};
use pontoon_test_support::property::cases;

/// Returns a queue with receive buffers of the lengths `lens`, all available.
fn buffers(lens: &[u32]) -> Forged {
    let forged = Forged::new();
    for (index, len) in (0..).zip(lens) {
        forged.write_descriptor(index, HEAP, *len, WRITE, 0);
        forged.offer(index);
    }
    forged
}

#[test]
fn frame_returns_needed_chains_and_rewinds_the_rest() {
    let forged = buffers(&[100; 8]);
    let mut device = forged.device(Features::default());
    let window = forged.window();
    let mut queue = device.attach(&window).unwrap();
    let mut chains = [Chain::default(); 8];
    assert_eq!(queue.poll(), Ok(8));

    // The chains have room for 350 bytes, of which the frame uses 150.
    let mut bytes = 0;
    assert_eq!(
        queue.take(350, &mut chains, |piece| bytes += piece.area.len()),
        Ok(Some(4))
    );
    assert_eq!(bytes, 400);
    assert_eq!(queue.put_frame(&chains[..4], 150), 2);
    queue.rewind(2);
    assert_eq!(queue.publish(), Notification::Required);
    let (index, elements) = forged.used();
    assert_eq!((index, &elements[..2]), (2, &[(0, 100), (1, 50)][..]));

    // The next frame uses the chains that `rewind` has returned to the available ones.
    assert_eq!(queue.take(101, &mut chains, |_| ()), Ok(Some(2)));
    assert_eq!((chains[0].head, chains[1].head), (2, 3));
    assert_eq!(queue.put_frame(&chains[..2], 200), 2);
    assert_eq!(queue.publish(), Notification::Required);
    assert_eq!(queue.taken(), 0);
}

#[test]
fn insufficient_room_takes_no_chain() {
    let forged = buffers(&[100, 100, 100]);
    let mut device = forged.device(Features::default());
    let window = forged.window();
    let mut queue = device.attach(&window).unwrap();
    let mut chains = [Chain::default(); 8];
    assert_eq!(queue.poll(), Ok(3));
    assert_eq!(
        queue.take(301, &mut chains, |_| ()),
        Ok(None),
        "not enough buffers"
    );
    assert_eq!(queue.taken(), 0);
    assert_eq!(
        queue.take(300, &mut chains[..2], |_| ()),
        Ok(None),
        "not enough places"
    );
    assert_eq!(queue.taken(), 0);
    assert_eq!(queue.take(300, &mut chains, |_| ()), Ok(Some(3)));
    assert_eq!(queue.take(1, &mut chains, |_| ()), Ok(None), "no buffers");
}

#[test]
fn readable_receive_buffer_is_refused() {
    let forged = Forged::new();
    forged.write_descriptor(0, HEAP, 4, NEXT, 1);
    forged.write_descriptor(1, HEAP, 4, WRITE, 0);
    forged.offer(0);
    let mut device = forged.device(Features::default());
    let mut queue = device.attach(forged.window()).unwrap();
    queue.poll().unwrap();
    let error = VirtqueueError::NotWritable { head: 0 };
    assert_eq!(queue.take(1, &mut [Chain::default(); 2], |_| ()), Err(error));
    assert_eq!(queue.poll(), Err(error));
}

proptest! {
    #![proptest_config(cases(256))]

    /// All buffers but the last are full, and no unneeded buffer is used (virtio 1.2, section 5.1.6.4.1).
    #[test]
    fn frames_fill_all_buffers_but_the_last(lens in prop::collection::vec(1..300_u32, 1..=usize::from(SIZE)), share in 0..=100_u32) {
        let room = lens.iter().sum();
        let frame = room * share / 100;
        let forged = buffers(&lens);
        let mut device = forged.device(Features::default());
        let window = forged.window();
        let mut queue = device.attach(&window).unwrap();
        let mut chains = [Chain::default(); SIZE as usize];
        queue.poll().unwrap();
        prop_assert_eq!(queue.take(room, &mut chains, |_| ()), Ok(Some(lens.len())));
        let used = chains_needed(&chains[..lens.len()], frame);
        prop_assert_eq!(queue.put_frame(&chains[..lens.len()], frame), used);
        queue.rewind(lens.len() as u16 - used);
        prop_assert_eq!(queue.publish(), Notification::Required);
        let (index, elements) = forged.used();
        prop_assert_eq!(index, used);
        let written: Vec<u32> = elements[..used.into()].iter().map(|(_, len)| *len).collect();
        prop_assert_eq!(written.iter().sum::<u32>(), frame);
        let (last, full) = written.split_last().unwrap();
        prop_assert!(full.iter().eq(&lens[..full.len()]));
        prop_assert!(*last > 0 || (frame == 0 && full.is_empty()));
    }
}
