//! Tests with virtqueues in guest memory of the `vm-memory` crate.

use pontoon_ring::device::{Device, State, VirtqueueError};
use pontoon_ring::driver::{Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, VmMemory, Window};
use pontoon_ring::{Access, Features, Layout, LayoutError, Notification, Part};
use vm_memory::bitmap::{AtomicBitmap, Bitmap};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, VolatileSlice};

const PAGE: u64 = 0x1000;

#[test]
#[cfg_attr(miri, ignore = "Miri maps no memory with MAP_NORESERVE")]
fn buffers_may_cross_regions_but_not_holes() {
    // Two adjacent regions, a hole, and a third region.
    let regions = [(0x1_0000, 0x2000), (0x1_2000, 0x1000), (0x2_0000, 0x1000)];
    let regions = regions.map(|(addr, len)| (GuestAddress(addr), len));
    let memory = GuestMemoryMmap::<()>::from_ranges(&regions).unwrap();
    let guest = VmMemory::new(&memory);
    let layout = Layout::contiguous(8, 0x1_0000);
    let mut driver = Driver::new(guest, layout, Features::default(), [Slot::default(); 8]).unwrap();
    let mut queue = driver.attach(guest).unwrap();
    memory.write_slice(b"across", GuestAddress(0x1_1ffd)).unwrap();
    queue
        .add(
            0,
            &[Buffer::readable(0x1_1ffd, 6), Buffer::writable(0x2_0000, 0x1000)],
        )
        .unwrap();
    queue.add(1, &[Buffer::writable(0x1_2f00, 0x101)]).unwrap();
    assert_eq!(queue.publish(), Notification::Required);

    let mut device = Device::new(layout, Features::default(), State::default()).unwrap();
    let mut queue = device.attach(guest).unwrap();
    assert_eq!(queue.poll(), Ok(2));
    let mut pieces = Vec::new();
    let chain = queue.pop(|piece| pieces.push(piece)).unwrap().unwrap();
    assert_eq!((chain.readable, chain.writable), (6, 0x1000));
    let places: Vec<_> = pieces
        .iter()
        .map(|piece| (piece.addr, piece.area.len()))
        .collect();
    assert_eq!(places, [(0x1_1ffd, 3), (0x1_2000, 3), (0x2_0000, 0x1000)]);
    let bytes: Vec<Vec<u8>> = pieces
        .iter()
        .filter(|piece| piece.access == Access::Readable)
        .map(|piece| {
            let mut bytes = vec![0; piece.area.len()];
            Area::copy_out(&piece.area, 0, &mut bytes);
            bytes
        })
        .collect();
    assert_eq!(bytes, [b"acr".to_vec(), b"oss".to_vec()]);
    let error = VirtqueueError::Unmapped {
        head: 2,
        addr: 0x1_3000,
        len: 1,
    };
    assert_eq!(queue.pop(|_| ()), Err(error));
    assert_eq!(error.to_string(), "chain 2 refers to 1 unmapped bytes at 0x13000");
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no memory with MAP_NORESERVE")]
fn ring_across_regions_is_refused() {
    let regions = [(GuestAddress(0), 0x1000), (GuestAddress(0x1000), 0x1000)];
    let memory = GuestMemoryMmap::<()>::from_ranges(&regions).unwrap();
    let layout = Layout::contiguous(8, 0xfc0);
    let mut device = Device::new(layout, Features::default(), State::default()).unwrap();
    assert_eq!(
        device.attach(VmMemory::new(&memory)).unwrap_err(),
        LayoutError::Unmapped {
            part: Part::Descriptors,
            addr: 0xfc0,
            len: 128
        }
    );
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no memory with MAP_NORESERVE")]
fn device_writes_are_marked_dirty() {
    let memory = GuestMemoryMmap::<AtomicBitmap>::from_ranges(&[(GuestAddress(0), 0x4000)]).unwrap();
    let guest = VmMemory::new(&memory);
    // Each part of the queue, and the buffer, is on its own page.
    let layout = Layout {
        size: 8,
        descriptors: 0,
        available: PAGE,
        used: 2 * PAGE,
    };
    // The test writes a writable buffer and the available index in place of a driver.
    memory
        .write_slice(&(3 * PAGE).to_le_bytes(), GuestAddress(0))
        .unwrap();
    memory
        .write_slice(&[64, 0, 0, 0, 2, 0, 0, 0], GuestAddress(8))
        .unwrap();
    memory.write_slice(&[1, 0], GuestAddress(PAGE + 2)).unwrap();
    let region = memory.iter().next().unwrap();

    let dirty = || {
        (0..4)
            .map(|page| region.bitmap().dirty_at(page * PAGE as usize))
            .collect::<Vec<_>>()
    };
    let mut device = Device::new(layout, Features::default(), State::default()).unwrap();
    let mut queue = device.attach(guest).unwrap();
    assert_eq!(queue.poll(), Ok(1));
    let mut area = None;
    let chain = queue.pop(|piece| area = Some(piece.area)).unwrap().unwrap();
    assert_eq!(dirty(), [true, true, false, false]);
    Area::copy_in(&area.unwrap(), 0, &[1; 64]);
    assert_eq!(dirty(), [true, true, false, true]);
    queue.put(chain, 64);
    assert_eq!(queue.publish(), Notification::Required);
    assert_eq!(dirty(), [true; 4]);
}

#[repr(align(16))]
struct Aligned([u8; 1024]);

#[test]
fn volatile_slice_implements_area() {
    let mut bytes = Aligned([0; 1024]);
    let memory = Window::new(VolatileSlice::from(&mut bytes.0[..]), 0x8000);
    let layout = Layout::contiguous(4, 0x8000);
    let mut driver = Driver::new(memory, layout, Features::default(), [Slot::default(); 4]).unwrap();
    let mut device = Device::new(layout, Features::default(), State::default()).unwrap();
    let mut driver_queue = driver.attach(&memory).unwrap();
    let mut serves = device.attach(&memory).unwrap();
    driver_queue.add(7, &[Buffer::writable(0x8200, 5)]).unwrap();
    assert_eq!(driver_queue.publish(), Notification::Required);
    assert_eq!(serves.poll(), Ok(1));
    let mut area = None;
    let chain = serves.pop(|piece| area = Some(piece.area)).unwrap().unwrap();
    Area::copy_in(&area.unwrap(), 0, b"hello");
    serves.put(chain, 5);
    assert_eq!(serves.publish(), Notification::Required);
    assert_eq!(driver_queue.poll(), Ok(1));
    let used = driver_queue.reap().unwrap().unwrap();
    assert_eq!((used.tag, used.len), (7, 5));
    assert_eq!(&bytes.0[0x200..0x205], b"hello");
}
