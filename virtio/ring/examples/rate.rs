//! Benchmark of the virtqueue: nanoseconds per descriptor chain, with driver and device in one thread.
//!
//! Each chain has one buffer, whose address the device looks up without accessing the memory. Both sides suppress
//! notifications. The column `rust-vmm` is this crate's driver with the device side of rust-vmm's `virtio-queue`.

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use pontoon_ring::device::{Device, State};
use pontoon_ring::driver::{Buffer, Driver, Slot};
use pontoon_ring::memory::{Memory, VmMemory, Window};
use pontoon_ring::{Features, Layout};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileSlice};

const SIZE: u16 = 256;
const FEATURES: Features = Features {
    event_idx: true,
    indirect: false,
};
const BYTES: usize = 1 << 20;
/// The buffer of every chain.
const BUFFER: Buffer = Buffer::readable(0x8_0000, 1514);
/// Number of chains per measurement.
const CHAINS: u32 = 2_000_000;
/// Number of measurements, of which the fastest is reported.
const ROUNDS: u32 = 5;

#[repr(align(4096))]
struct Aligned([u8; BYTES]);

fn main() -> std::io::Result<()> {
    let guest =
        GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), BYTES), (GuestAddress(1 << 32), BYTES)])
            .expect("two megabytes of memory");
    let mut bytes = Box::new(Aligned([0; BYTES]));
    let window = Window::new(VolatileSlice::from(&mut bytes.0[..]), 0);

    let mut out = std::io::stdout();
    writeln!(
        out,
        "{:>6} {:>12} {:>12} {:>12}   ns per chain",
        "batch", "window", "guest", "rust-vmm"
    )?;
    for batch in [1, 16, 64, 256] {
        let window = best(|| pontoon(window, batch));
        let guest_memory = best(|| pontoon(VmMemory::new(&guest), batch));
        let rust_vmm_device = best(|| rust_vmm(&guest, batch));
        writeln!(
            out,
            "{batch:>6} {window:>12.1} {guest_memory:>12.1} {rust_vmm_device:>12.1}"
        )?;
    }
    Ok(())
}

/// Returns the nanoseconds per chain of the fastest round.
fn best(mut round: impl FnMut() -> u32) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        let chains = round();
        start.elapsed().as_secs_f64() * 1e9 / f64::from(chains)
    });
    rounds.fold(f64::INFINITY, f64::min)
}

fn pontoon(memory: impl Memory + Copy, batch: u32) -> u32 {
    let layout = Layout::contiguous(SIZE, 0);
    let slots = [Slot::default(); SIZE as usize];
    let mut driver = Driver::new(memory, layout, FEATURES, slots).expect("a queue");
    let mut device = Device::new(layout, FEATURES, State::default()).expect("a queue");
    for _ in 0..CHAINS / batch {
        offer(&mut driver, memory, batch);
        let mut queue = device.attach(memory).expect("a queue");
        queue.suppress();
        queue.poll().expect("an honest driver");
        while let Some(chain) = queue
            .pop(|piece| drop(black_box(piece)))
            .expect("an honest driver")
        {
            queue.put(chain, 0);
        }
        let _ = black_box(queue.publish());
        take_back(&mut driver, memory);
    }
    CHAINS / batch * batch
}

fn rust_vmm(memory: &GuestMemoryMmap, batch: u32) -> u32 {
    let layout = Layout::contiguous(SIZE, 0x1000);
    let guest = VmMemory::new(memory);
    let slots = [Slot::default(); SIZE as usize];
    let mut driver = Driver::new(guest, layout, FEATURES, slots).expect("a queue");
    let mut queue = Queue::new(SIZE).expect("a queue");
    queue.set_desc_table_address(Some(layout.descriptors as u32), Some(0));
    queue.set_avail_ring_address(Some(layout.available as u32), Some(0));
    queue.set_used_ring_address(Some(layout.used as u32), Some(0));
    queue.set_event_idx(FEATURES.event_idx);
    queue.set_ready(true);
    for _ in 0..CHAINS / batch {
        offer(&mut driver, guest, batch);
        queue.disable_notification(memory).expect("a queue");
        let mut heads = [0; SIZE as usize];
        let mut taken = 0;
        for chain in queue.iter(memory).expect("an honest driver") {
            heads[taken] = chain.head_index();
            taken += 1;
            for descriptor in chain {
                let slice = memory.get_slice(descriptor.addr(), descriptor.len() as usize);
                black_box(slice).expect("in memory");
            }
        }
        for head in &heads[..taken] {
            queue.add_used(memory, *head, 0).expect("a queue");
        }
        black_box(queue.needs_notification(memory)).expect("a queue");
        take_back(&mut driver, guest);
    }
    CHAINS / batch * batch
}

fn offer(driver: &mut Driver<[Slot; SIZE as usize]>, memory: impl Memory, batch: u32) {
    let mut queue = driver.attach(memory).expect("a queue");
    queue.suppress();
    for tag in 0..batch {
        queue.add(tag, &[BUFFER]).expect("room");
    }
    let _ = black_box(queue.publish());
}

fn take_back(driver: &mut Driver<[Slot; SIZE as usize]>, memory: impl Memory) {
    let mut queue = driver.attach(memory).expect("a queue");
    queue.poll().expect("an honest device");
    while let Some(used) = queue.reap().expect("an honest device") {
        black_box(used);
    }
}
