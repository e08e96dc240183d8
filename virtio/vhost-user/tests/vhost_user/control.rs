//! Tests of changes by the front-end while frames are transferred.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::thread;

use pontoon_engine::link::{Transmit as _, TransmitError};
use pontoon_ring::memory::{Area, Memory, VmMemory};
use pontoon_vm_peer::vhost_user::{Queue, QueuePair};
use pontoon_wire::vnet::Offload;
use vhost::vhost_user::VhostUserFrontend as _;
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo};
use vm_memory::{GuestMemoryBackend as _, MmapRegion, VolatileMemory as _};

use crate::device::{ALL, Device, How, OPTIONS, TSO, bytes};
use crate::hostile::Raw;
use pontoon_test_support::vhost_user::messages::{memory, message};

/// Checks that frames are transferred in both directions.
#[track_caller]
pub(crate) fn carries(device: &mut Device, pair: &mut QueuePair) {
    assert!(pair.tx.send(Offload::NONE, 0, &bytes(1000)).unwrap());
    pair.tx.flush().unwrap();
    assert_eq!(device.drain(), (vec![(Offload::NONE, bytes(1000))], 0));
    device
        .send(How::Reserved, Offload::NONE, 54, &bytes(5000))
        .unwrap();
    device.transmitter().flush();
    let count = pair.rx.receive(|frame| assert!(frame.bytes == bytes(5000)));
    assert_eq!(count.unwrap(), 1);
}

#[test]
fn stopped_queue_resumes_at_its_base() {
    let (mut device, mut machine, mut pair) = Device::pair(ALL, 1536);
    for len in 1..=5 {
        assert!(pair.tx.send(Offload::NONE, 0, &bytes(len)).unwrap());
    }
    pair.tx.flush().unwrap();
    assert_eq!(device.drain().0.len(), 5);
    for _ in 0..3 {
        // The frame is not flushed: frames are published when the queue stops.
        device.send(How::Copied, Offload::NONE, 54, &bytes(60)).unwrap();
    }
    let bases = device.during(|| [0, 1].map(|ring| machine.stop(ring).unwrap()));
    assert_eq!(bases, [3, 5]);
    assert_eq!(pair.rx.receive(|_| {}).unwrap(), 3);

    assert!(pair.tx.send(Offload::NONE, 0, &bytes(7)).unwrap());
    pair.tx.flush().unwrap();
    pair.tx.queue.kick();
    assert!(device.drain().0.is_empty());
    assert_eq!(
        device.send(How::Copied, Offload::NONE, 54, &bytes(60)),
        Err(TransmitError::Full)
    );
    assert!(device.transmitter().take_full());

    device.during(|| {
        machine.start(0, &pair.rx.queue, 3).unwrap();
        machine.start(1, &pair.tx.queue, 5).unwrap();
    });
    // `during` has received and dropped the frames.
    assert_eq!(pair.tx.outstanding().unwrap(), 0);
    carries(&mut device, &mut pair);
}

#[test]
fn disabled_queue_receives_nothing_and_drops_frames() {
    let (mut device, mut machine, mut pair) = Device::pair(ALL, 1536);
    let enable = |device: &mut Device, machine: &mut pontoon_vm_peer::vhost_user::Machine, enable| {
        device.during(|| {
            for ring in 0..2 {
                machine.frontend().set_vring_enable(ring, enable).unwrap();
            }
        });
    };
    enable(&mut device, &mut machine, false);
    assert!(pair.tx.send(Offload::NONE, 0, &bytes(60)).unwrap());
    pair.tx.flush().unwrap();
    assert!(device.drain().0.is_empty());
    assert_eq!(pair.tx.outstanding().unwrap(), 0);
    assert_eq!(
        device.send(How::Reserved, Offload::NONE, 54, &bytes(60)),
        Err(TransmitError::Full)
    );
    enable(&mut device, &mut machine, true);
    carries(&mut device, &mut pair);
}

#[test]
fn guests_are_served_one_after_another() {
    let mut device = Device::new(1);
    for round in 0..3 {
        let (machine, mut pairs) = device.connect_machine(&OPTIONS);
        assert!(device.backend.is_connected());
        for _ in 0..=round {
            carries(&mut device, &mut pairs[0]);
        }
        drop((machine, pairs));
        let ended = loop {
            match device.serve() {
                Ok(()) => thread::yield_now(),
                Err(ended) => break ended,
            }
        };
        assert!(ended.is_orderly(), "{ended}");
        assert!(!device.backend.is_connected());
        assert_eq!(
            device.send(How::Copied, Offload::NONE, 54, &bytes(60)),
            Err(TransmitError::Full)
        );
    }
}

/// A session that replaces another one starts without its state.
#[test]
fn new_session_replaces_the_current_one() {
    let (mut device, mut first, mut pair) = Device::pair(ALL, 1536);
    carries(&mut device, &mut pair);
    let (_second, mut pairs) = device.connect_machine(&OPTIONS);
    carries(&mut device, &mut pairs[0]);
    assert!(first.frontend().get_features().is_err());
}

#[test]
fn failed_messages_are_reported_and_session_continues() {
    let (mut device, mut machine, mut pair) = Device::pair(ALL, 1536);
    device.during(|| {
        let features = machine.features();
        let frontend = machine.frontend();
        frontend.set_vring_num(1, 128).unwrap_err();
        frontend.set_vring_base(0, 1).unwrap_err();
        frontend.set_features(features | 1 << 5).unwrap_err();
        frontend.set_features(features).unwrap();
    });
    carries(&mut device, &mut pair);
}

#[test]
fn front_end_sets_the_mtu() {
    let mut device = Device::new(1);
    let mut socket = device.accept();
    socket
        .write_all(&message(20, 1, &9000_u64.to_ne_bytes()))
        .unwrap();
    let options = OPTIONS;
    let _guest = device.during(|| pontoon_vm_peer::vhost_user::Machine::connect(socket, &options).unwrap());
    assert_eq!(device.transmitter().limits().mtu, 9000);
}

#[test]
fn memory_regions_are_added_and_removed() {
    const AT: u64 = 1 << 40;
    let (mut device, mut machine, mut pair) = Device::pair(ALL, 1536);
    let file = memory(1 << 20);
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: AT,
        memory_size: 1 << 16,
        userspace_addr: 1 << 44,
        mmap_offset: 1 << 16,
        mmap_handle: file.as_raw_fd(),
    };
    device.during(|| {
        let frontend = machine.frontend();
        assert_eq!(frontend.get_max_mem_slots().unwrap(), 64);
        // QEMU 7.2 adds a region once for each of two queue pairs; all other overlaps are refused.
        frontend.add_mem_region(&region).unwrap();
        frontend.add_mem_region(&region).unwrap();
        let other = VhostUserMemoryRegionInfo {
            memory_size: 1 << 15,
            ..region
        };
        frontend.add_mem_region(&other).unwrap_err();
    });
    rustix::io::pwrite(&file, &[7; 112], 1 << 16).unwrap();
    rustix::io::pwrite(&file, &[0; 12], 1 << 16).unwrap();
    let mut raw = Raw::new(machine.memory(), pair.tx.queue.layout());
    raw.descriptor(0, AT, 112, 0, 0);
    raw.make_available(0);
    assert_eq!(device.drain(), (vec![(Offload::NONE, vec![7; 100])], 0));

    device.during(|| {
        machine.frontend().remove_mem_region(&region).unwrap();
        machine.frontend().remove_mem_region(&region).unwrap();
    });
    device.send(How::Copied, Offload::NONE, 54, &bytes(60)).unwrap();
    device.transmitter().flush();
    assert_eq!(pair.rx.receive(|_| {}).unwrap(), 1);
    let mut raw = Raw::new(machine.memory(), pair.tx.queue.layout());
    raw.make_available(0);
    assert!(device.drain().0.is_empty());
    device
        .receiver()
        .receive(32, |_| panic!("its memory was removed"));
    assert_eq!(device.receiver().faults(), 1);
}

/// A worker that may not receive frames, because of the rate limit, polls and thereby executes commands.
#[test]
fn poll_executes_commands() {
    let (mut device, _machine, _pair) = Device::pair(ALL, 1536);
    device.backend.disconnect();
    device.transmitter().flush();
    assert!(!device.receiver().poll());
    drop(device.accept());
    let ended = device.backend.handle().expect_err("its rings have stopped");
    assert!(ended.is_orderly(), "{ended}");
}

/// Memory regions are removed and added again while rings in them are running.
#[test]
fn rings_survive_removal_and_return_of_their_memory() {
    let (mut device, mut machine, mut pair) = Device::pair(ALL, 1536);
    let regions = machine
        .memory()
        .iter()
        .map(VhostUserMemoryRegionInfo::from_guest_region);
    let regions: Vec<_> = regions.map(Result::unwrap).collect();
    carries(&mut device, &mut pair);
    device.send(How::Copied, Offload::NONE, 54, &bytes(60)).unwrap();
    device.during(|| {
        for region in &regions {
            machine.frontend().remove_mem_region(region).unwrap();
        }
    });
    assert!(pair.tx.send(Offload::NONE, 0, &bytes(70)).unwrap());
    pair.tx.flush().unwrap();
    assert!(device.drain().0.is_empty());
    assert!(!device.transmitter().poll());
    assert_eq!(
        device.send(How::Copied, Offload::NONE, 54, &bytes(60)),
        Err(TransmitError::Full)
    );
    assert!(device.transmitter().take_full());
    device.transmitter().rearm();

    device.during(|| {
        for region in &regions {
            machine.frontend().add_mem_region(region).unwrap();
        }
    });
    // `during` has received and dropped the frames.
    assert_eq!(pair.tx.outstanding().unwrap(), 0);
    assert_eq!(pair.rx.receive(|_| {}).unwrap(), 1, "what had been sent is shown");
    carries(&mut device, &mut pair);
    assert_eq!(
        (device.receiver().faults(), device.transmitter().faults()),
        (0, 0)
    );
}

/// Exactly the pages to which the device has written are marked.
#[test]
fn log_marks_written_pages() {
    let (mut device, mut machine, mut pair) = Device::pair(ALL, 1536);
    let log = device.during(|| {
        let rings = [(0, &pair.rx.queue), (1, &pair.tx.queue)];
        machine.log(&rings).unwrap()
    });
    take_marks(&log);
    device.send(How::Reserved, TSO, 54, &bytes(9000)).unwrap();
    device.transmitter().flush();
    let mut expected = used_pages(&pair.rx.queue);
    let guest = VmMemory::new(machine.memory());
    let mut left = 12 + 9000;
    for descriptor in 0..6 {
        let table = pair.rx.queue.layout().descriptors;
        let address = guest.area(table + 16 * descriptor, 16).unwrap().load_u64(0);
        let written = 1536.min(left);
        expected.extend(address / 4096..=(address + written - 1) / 4096);
        left -= written;
    }
    assert_eq!(left, 0);
    assert_eq!(take_marks(&log), expected);
    assert_eq!(pair.rx.receive(|_| {}).unwrap(), 1);

    assert!(pair.tx.send(Offload::NONE, 0, &bytes(60)).unwrap());
    pair.tx.flush().unwrap();
    assert_eq!(device.drain().0.len(), 1);
    assert_eq!(take_marks(&log), used_pages(&pair.tx.queue));

    device.during(|| {
        let features = machine.features() & !(1 << 26);
        machine.frontend().set_features(features).unwrap();
    });
    take_marks(&log);
    carries(&mut device, &mut pair);
    assert_eq!(take_marks(&log), BTreeSet::new());
}

/// Returns the numbers of the marked pages, and clears the marks.
fn take_marks(log: &MmapRegion) -> BTreeSet<u64> {
    let slice = log.as_volatile_slice();
    let mut marks = vec![0_u8; slice.len()];
    slice.copy_to(&mut marks);
    slice.copy_from(&vec![0_u8; marks.len()]);
    let pages = 0..8 * marks.len() as u64;
    pages
        .filter(|page| marks[(page / 8) as usize] >> (page % 8) & 1 == 1)
        .collect()
}

fn used_pages(queue: &Queue) -> BTreeSet<u64> {
    let layout = queue.layout();
    let last = layout.used + 6 + 8 * u64::from(layout.size) - 1;
    (layout.used / 4096..=last / 4096).collect()
}
