//! Tests that the capture queue receives exactly the frames that pass the link.

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use pontoon_engine::Transmit;
use pontoon_engine::link::Room;
use pontoon_wire::vnet::Offload;

use super::{CaptureQueue, CapturingLink, Way};
use crate::socket::{Packet, Socket};
use crate::{Link, Receive, Source, StopAt};

/// Returns a captured packet link, and the guest's end of its socket.
fn open(snap: usize) -> (CapturingLink<Socket<Packet>>, UnixDatagram) {
    let (ours, guest) = UnixDatagram::pair().unwrap();
    let link = Socket::new(Source::Connected(ours.into()), 1500).unwrap();
    (CapturingLink::new(link, Arc::new(CaptureQueue::new(snap))), guest)
}

/// Returns direction, length and bytes of the next frame in the capture queue.
fn next(link: &CapturingLink<Socket<Packet>>) -> Option<(Way, u32, Vec<u8>)> {
    let record = link.capture_queue.take()?;
    Some((record.way, record.len, record.bytes))
}

#[test]
fn frames_of_both_directions_are_captured_up_to_the_snap_length() {
    for (snap, kept) in [(1000, 60), (60, 60), (40, 40), (14, 14), (3, 3), (0, 0)] {
        let (mut link, guest) = open(snap);
        let up: Vec<u8> = (0..60).collect();
        guest.send(&up).unwrap();
        let burst = link.halves().0.receive(16, StopAt::Empty, |_| {});
        assert_eq!(burst.frames, 1);
        assert_eq!(next(&link), Some((Way::Up, 60, up[..kept].to_vec())));

        let (head, data) = up.split_at(14);
        let mut transmitter = link.transmitter();
        transmitter.send(Offload::NONE, head, data).unwrap();
        // Only committed frames are captured, with the committed length.
        let mut room = transmitter.reserve(2, 14, 100).unwrap();
        room.payloads()[0].copy_from(data);
        room.commit(Offload::NONE, head, 46).unwrap();
        drop(room);
        transmitter.flush();
        drop(transmitter);
        for _ in 0..2 {
            assert_eq!(next(&link), Some((Way::Down, 60, up[..kept].to_vec())));
        }
        assert_eq!(next(&link), None);
    }
}

/// A frame that the link refuses to send is not captured.
#[test]
fn refused_frames_are_not_captured() {
    // The guest does not read, so that the socket becomes full.
    let (mut link, _guest) = open(96);
    let mut transmitter = link.transmitter();
    while transmitter.send(Offload::NONE, &[0; 14], &[]).is_ok() {
        transmitter.flush();
    }
    drop(transmitter);
    while next(&link).is_some() {}
    let refused = link.transmitter().send(Offload::NONE, &[0; 14], &[]);
    assert!(refused.is_err());
    assert_eq!(next(&link), None);
}
