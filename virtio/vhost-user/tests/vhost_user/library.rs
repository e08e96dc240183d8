//! Tests with the guest library as driver: one buffer per frame, no offloads.

use pontoon_engine::Transmit as _;
use pontoon_guest::{Attached, Options, attach};
use pontoon_wire::checksum;
use pontoon_wire::vnet::{Offload, Segmentation};

use crate::device::{Device, How, TSO, bytes};

#[test]
fn frames_are_exchanged_with_the_guest_library() {
    let mut device = Device::new(1);
    let socket = device.accept();
    let mut interface: Attached<64> = device.during(|| attach(socket, Options::default()).unwrap());
    let mut into = [0; 1514];
    for round in 0..200 {
        let frame = bytes(60 + round * 7);
        interface.queue(&frame).unwrap();
        interface.flush().unwrap();
        assert_eq!(device.drain(), (vec![(Offload::NONE, frame.clone())], 0));

        device.send(How::Reserved, Offload::NONE, 54, &frame).unwrap();
        device.transmitter().flush();
        assert_eq!(interface.read(&mut into).unwrap(), Some(frame.len()));
        assert_eq!(into[..frame.len()], frame);
        assert_eq!(interface.read(&mut into).unwrap(), None);
    }

    // The guest library accepts only whole frames with complete checksums.
    let frame = bytes(1000);
    let partial = Offload {
        segmentation: Segmentation::Whole,
        ..TSO
    };
    device.send(How::Copied, partial, 54, &frame).unwrap();
    device.transmitter().flush();
    let mut expected = frame.clone();
    checksum::complete(&mut expected, partial.checksum, []).unwrap();
    assert_eq!(interface.read(&mut into).unwrap(), Some(1000));
    assert_eq!(into[..1000], expected);
    assert!(device.send(How::Copied, TSO, 54, &bytes(3000)).is_err());

    drop(interface);
    while device.serve().is_ok() {
        std::thread::yield_now();
    }
    assert!(!device.backend.is_connected());
}
