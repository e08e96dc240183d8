//! Tests that frames arrive unchanged, with their offload metadata.

use pontoon_engine::link::{Room, Transmit as _, TransmitError};
use pontoon_vm_peer::vhost_user::TxLayout;
use pontoon_wire::checksum;
use pontoon_wire::vnet::{Checksum, Offload, Segmentation};

use crate::device::{
    ALL, Device, EVENT_IDX, GUEST_CSUM, GUEST_TSO4, How, MRG_RXBUF, TSO, VERSION_1, bytes, fill,
};

/// Length of the longest frame in bytes: an Ethernet header with a VLAN tag, and the longest IP packet.
const LONGEST: usize = 18 + 65_535;

const LENGTHS: [usize; 6] = [1, 14, 60, 1514, 9014, LONGEST];

/// Feature sets with `virtio_net_hdr` lengths of 12, 12 and 10 bytes.
const HEADERS: [u64; 3] = [ALL, ALL & !VERSION_1, ALL & !(VERSION_1 | MRG_RXBUF)];

#[test]
fn frames_are_received_in_every_layout() {
    let whole = TxLayout::WHOLE;
    let pieces = TxLayout { piece: 1500, ..whole };
    let shapes = [whole, pieces].into_iter().flat_map(|shape| {
        [(false, false), (true, false), (false, true), (true, true)].map(|(header_apart, indirect)| {
            TxLayout {
                header_apart,
                indirect,
                ..shape
            }
        })
    });
    for (features, shape) in HEADERS
        .into_iter()
        .flat_map(|features| shapes.clone().map(move |shape| (features, shape)))
    {
        let (mut device, _machine, mut pair) = Device::pair(features, 70_000);
        pair.tx.layout = shape;
        for len in LENGTHS {
            for offload in [Offload::NONE, TSO] {
                assert!(pair.tx.send(offload, 54, &bytes(len)).unwrap());
                pair.tx.flush().unwrap();
                assert_eq!(
                    device.drain(),
                    (vec![(offload, bytes(len))], 0),
                    "{shape:?} {len}"
                );
            }
        }
        assert_eq!(pair.tx.outstanding().unwrap(), 0);
    }
}

#[test]
fn bursts_are_bounded_and_report_remaining_frames() {
    let (mut device, _machine, mut pair) = Device::pair(ALL, 1536);
    for len in 1..=40 {
        assert!(pair.tx.send(Offload::NONE, 0, &bytes(len)).unwrap());
    }
    pair.tx.flush().unwrap();
    let (first, burst) = device.burst();
    assert!(burst.more);
    assert_eq!(first.len(), 32);
    let (rest, burst) = device.burst();
    assert!(!burst.more);
    let lengths: Vec<usize> = first.iter().chain(&rest).map(|(_, frame)| frame.len()).collect();
    assert_eq!(lengths, (1..=40).collect::<Vec<_>>());

    assert!(pair.tx.send(Offload::NONE, 0, &[1]).unwrap());
    assert!(pair.tx.send(Offload::NONE, 0, &[2]).unwrap());
    pair.tx.flush().unwrap();
    let burst = device.receiver().receive(1, |frames| assert_eq!(frames.len(), 1));
    assert_eq!((burst.frames, burst.more), (1, true));
    assert_eq!(device.drain().0, [(Offload::NONE, vec![2])]);
}

#[test]
fn malformed_frames_are_counted_and_returned() {
    let (mut device, _machine, mut pair) = Device::pair(ALL, 1536);
    let unknown = [0, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let no_size = [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for header in [unknown, no_size] {
        assert!(pair.tx.send_raw(&header, &[0; 60]).unwrap());
    }
    assert!(pair.tx.send(Offload::NONE, 0, &[]).unwrap());
    assert!(pair.tx.send(Offload::NONE, 0, &bytes(LONGEST + 1)).unwrap());
    // The frame consists of more than 64 slices.
    pair.tx.layout.piece = 1000;
    assert!(pair.tx.send(Offload::NONE, 0, &bytes(LONGEST)).unwrap());
    assert!(pair.tx.send(Offload::NONE, 0, b"the last").unwrap());
    pair.tx.flush().unwrap();
    assert_eq!(device.drain(), (vec![(Offload::NONE, b"the last".to_vec())], 5));
    assert_eq!(pair.tx.outstanding().unwrap(), 0);
    assert_eq!(device.receiver().faults(), 0);
}

/// Payload is not copied: a change by the guest is visible in the received frame.
#[test]
fn payload_is_not_copied() {
    use pontoon_ring::memory::{Area, Memory, VmMemory};

    let (mut device, machine, mut pair) = Device::pair(ALL, 1536);
    assert!(pair.tx.send(Offload::NONE, 0, &bytes(1000)).unwrap());
    pair.tx.flush().unwrap();
    let table = pair.tx.queue.layout().descriptors;
    let memory = VmMemory::new(machine.memory());
    let address = memory.area(table, 16).unwrap().load_u64(0);
    let frame = memory.area(address + 12, 1000).unwrap();
    device.receiver().receive(32, |frames| {
        frame.copy_in(500, b"changed");
        let mut seen = [0; 7];
        frames[0].copy(500, &mut seen);
        assert_eq!(&seen, b"changed");
    });
    let room = device.transmitter().reserve(1, 54, 100).unwrap();
    room.payloads()[0].copy_from(&[7_u8; 100]);
    let table = pair.rx.queue.layout().descriptors;
    let address = memory.area(table, 16).unwrap().load_u64(0);
    let mut written = [0; 100];
    memory
        .area(address + 12 + 54, 100)
        .unwrap()
        .copy_out(0, &mut written);
    assert_eq!(written, [7; 100]);
}

#[test]
fn frame_occupies_as_many_buffers_as_it_needs() {
    for (features, buffer) in [
        (ALL, 1536),
        (ALL, 70_000),
        (ALL & !VERSION_1, 2048),
        (ALL & !MRG_RXBUF, 70_000),
        (ALL & !(VERSION_1 | MRG_RXBUF), 70_000),
        (ALL & !EVENT_IDX, 1536),
    ] {
        let (mut device, _machine, mut pair) = Device::pair(features, buffer);
        let header = if features & (VERSION_1 | MRG_RXBUF) == 0 {
            10
        } else {
            12
        };
        for how in [How::Copied, How::Reserved] {
            for len in [60, 1514, 1536 - header, 1537 - header, 9014, 14 + 65_535] {
                for offload in [Offload::NONE, TSO] {
                    device.send(how, offload, 54, &bytes(len)).unwrap();
                    device.transmitter().flush();
                    let mut came = 0;
                    let count = pair.rx.receive(|frame| {
                        assert_eq!(frame.offload, offload);
                        assert_eq!(
                            usize::from(frame.buffers),
                            (header + len).div_ceil(buffer as usize)
                        );
                        assert!(frame.bytes == bytes(len), "{how:?} {len}");
                        came += 1;
                    });
                    assert_eq!((count.unwrap(), came), (1, 1));
                }
            }
        }
        assert!(!device.transmitter().take_full());
    }
}

#[test]
fn uncommitted_frames_of_a_reservation_are_rewound() {
    let (mut device, _machine, mut pair) = Device::pair(ALL, 1536);
    // Every buffer is used in four rounds, so that a lost buffer would be noticed.
    for round in 0..100 {
        let mut room = device.transmitter().reserve(5, 54, 3000).unwrap();
        assert_eq!(
            room.payloads().iter().map(|slice| slice.len()).sum::<usize>(),
            5 * 3000
        );
        fill(&room, &bytes(3000));
        room.commit(Offload::NONE, &bytes(54), 3000).unwrap();
        // A frame that needs fewer buffers than were taken for it ends the reservation.
        fill(&room, &bytes(100));
        room.commit(Offload::NONE, &bytes(54), 100).unwrap();
        assert!(room.payloads().is_empty());
        assert_eq!(
            room.commit(Offload::NONE, &bytes(54), 100),
            Err(TransmitError::Rejected)
        );
        drop(room);
        device.transmitter().flush();
        let mut lengths = Vec::new();
        pair.rx.receive(|frame| lengths.push(frame.bytes.len())).unwrap();
        assert_eq!(lengths, [3054, 154], "round {round}");
    }
    // A reservation has as many frames as fit, and at most 64.
    let count = |device: &mut Device, payload| {
        let room = device.transmitter().reserve(1000, 54, payload).unwrap();
        room.payloads().iter().map(|slice| slice.len()).sum::<usize>() / payload
    };
    assert_eq!(count(&mut device, 100), 64);
    assert_eq!(count(&mut device, 65_000), 5);
    assert!(device.transmitter().reserve(0, 54, 100).is_none());
    device.transmitter().take_full();

    let transmitter = device.transmitter();
    let mut room = transmitter.reserve(1, 54, 100).unwrap();
    assert_eq!(
        room.commit(Offload::NONE, &[0; 55], 100),
        Err(TransmitError::Rejected)
    );
    drop(room);
    let mut room = transmitter.reserve(1, 54, 100).unwrap();
    assert_eq!(
        room.commit(Offload::NONE, &[0; 54], 101),
        Err(TransmitError::Rejected)
    );
    drop(room);
    transmitter.flush();
    assert_eq!(pair.rx.receive(|_| panic!("it was refused")).unwrap(), 0);
}

#[test]
fn checksums_are_completed_for_a_guest_without_guest_csum() {
    let (mut device, _machine, mut pair) = Device::pair(ALL & !GUEST_CSUM, 1536);
    let limits = device.transmitter().limits();
    assert!(!limits.tso4 && !limits.tso6 && !limits.uso);
    let offload = Offload {
        segmentation: Segmentation::Whole,
        ..TSO
    };
    for how in [How::Copied, How::Reserved] {
        let frame = bytes(5001);
        device.send(how, offload, 54, &frame).unwrap();
        device.transmitter().flush();
        let mut expected = frame.clone();
        checksum::complete(&mut expected, offload.checksum, []).unwrap();
        assert_ne!(frame, expected);
        let count = pair.rx.receive(|came| {
            assert_eq!(came.offload.checksum, Checksum::Complete);
            assert!(came.bytes == expected);
        });
        assert_eq!(count.unwrap(), 1);
    }
}

#[test]
fn limits_follow_negotiated_features() {
    let limits = |features, buffer| Device::pair(features, buffer).0.transmitter().limits();
    let all = limits(ALL, 1536);
    assert!(all.tso4 && all.tso6 && all.uso);
    assert_eq!((all.mtu, all.max_gso), (1500, 65_535));
    assert!(!limits(ALL & !GUEST_TSO4, 1536).tso4);

    let (mut device, ..) = Device::pair(ALL & !GUEST_TSO4, 1536);
    for how in [How::Copied, How::Reserved] {
        assert_eq!(
            device.send(how, TSO, 54, &bytes(3000)),
            Err(TransmitError::Rejected)
        );
    }
}
