//! Copies frames between virtqueues and a tap, whose namespace represents the guest and runs at native speed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pontoon_sys::message::{read, write};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::rx::Rx;
use super::tx::Tx;
use super::{Error, Machine, QueuePair};

/// Largest number of frames of one burst.
const BURST: usize = 64;

/// Timeout of a wait for frames, after which the stop flag is checked.
const PAUSE: Duration = Duration::from_millis(20);

/// Copies frames between `tap` and `pairs` until `stop` is set or the device of `machine` disconnects, with the negotiated
/// offloads. See [`bridge_queues`].
///
/// # Errors
/// Those of [`bridge_queues`].
pub fn bridge_tap(
    tap: impl AsFd,
    machine: &Machine,
    pairs: Vec<QueuePair>,
    stop: &AtomicBool,
) -> Result<(), Error> {
    bridge_queues(tap, machine.features(), pairs, || machine.is_connected(), stop)
}

/// Copies frames between `tap` and `pairs` until `stop` is set or `is_connected` returns false, with the offloads of `features`.
/// Each burst from the tap uses the next pair, as the bursts of a thread do that moves between CPUs.
///
/// The tap must be non-blocking and have IFF_VNET_HDR. The receive buffers must be large enough for the largest
/// frame.
///
/// # Errors
/// The tap cannot be read or written, or the device violated the protocol.
///
/// # Panics
/// `pairs` is empty.
pub fn bridge_queues(
    tap: impl AsFd,
    features: u64,
    pairs: Vec<QueuePair>,
    is_connected: impl Fn() -> bool + Sync,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let tap = tap.as_fd();
    configure_tap(tap, pairs[0].tx.header(), features)?;
    let (rxs, txs): (Vec<_>, Vec<_>) = pairs.into_iter().map(|QueuePair { rx, tx }| (rx, tx)).unzip();
    let over = &AtomicBool::new(false);
    let should_continue =
        &|| !stop.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) && is_connected();
    thread::scope(|scope| {
        let ends = move |result| {
            over.store(true, Ordering::Relaxed);
            result
        };
        let mut threads = vec![scope.spawn(move || ends(up(tap, txs, over)))];
        threads.extend(
            rxs.into_iter()
                .map(|rx| scope.spawn(move || ends(down(tap, rx, should_continue)))),
        );
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().expect("bridge threads do not panic"));
        // All threads are joined before the first error is returned.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

fn up(tap: BorrowedFd<'_>, mut txs: Vec<Tx>, over: &AtomicBool) -> Result<(), Error> {
    let mut next = 0;
    while !over.load(Ordering::Relaxed) {
        let count = txs.len();
        let tx = &mut txs[next % count];
        next += 1;
        let mut drained = false;
        let mut full = false;
        for _ in 0..BURST {
            let filled = tx.fill(|place| match read(tap, place) {
                Ok(len) => Ok(Some(len)),
                // EAGAIN: no frame. EIO: the interface is down.
                Err(Errno::AGAIN | Errno::IO) => {
                    drained = true;
                    Ok(None)
                }
                Err(error) => Err(error.into()),
            });
            if !filled? {
                full = !drained;
                break;
            }
        }
        tx.flush()?;
        if full {
            tx.queue.wait(PAUSE)?;
        } else if drained {
            wait(tap)?;
        }
    }
    Ok(())
}

/// Copies frames from the device to the tap. `should_continue` is called when there are no frames, and false ends the
/// copy.
fn down(tap: BorrowedFd<'_>, mut rx: Rx, should_continue: impl Fn() -> bool) -> Result<(), Error> {
    loop {
        let header = rx.header();
        let frames = rx.receive_in_place(|frame| {
            require_checksum(frame, header);
            match write(tap, frame) {
                // EIO: the interface is down. EINVAL: the kernel refuses the frame.
                Ok(_) | Err(Errno::IO | Errno::INVAL) => Ok(()),
                Err(error) => Err(error.into()),
            }
        });
        if frames? == 0 && !rx.queue.wait(PAUSE)? && !should_continue() {
            return Ok(());
        }
    }
}

/// Sets VIRTIO_NET_HDR_F_NEEDS_CSUM where the device has set VIRTIO_NET_HDR_F_DATA_VALID without writing the
/// checksum: a tap ignores the latter flag, and the kernel would verify the checksum.
fn require_checksum(frame: &VolatileSlice<'_>, header: usize) {
    let mut head = [0; 12 + 34];
    let Some(head) = head.get_mut(..header + 34) else {
        return;
    };
    if frame.copy_to(&mut *head) < head.len() || head[0] & (NEEDS_CSUM | DATA_VALID) != DATA_VALID {
        return;
    }
    let packet = &head[header..];
    let (begin, protocol) = match packet[12..14] {
        [0x08, 0x00] => (14 + 4 * u16::from(packet[14] & 0xf), packet[23]),
        [0x86, 0xdd] => (54, packet[20]),
        _ => return,
    };
    let offset: u16 = match i32::from(protocol) {
        libc::IPPROTO_TCP => 16,
        libc::IPPROTO_UDP => 6,
        _ => return,
    };
    head[0] = NEEDS_CSUM;
    head[6..8].copy_from_slice(&begin.to_le_bytes());
    head[8..10].copy_from_slice(&offset.to_le_bytes());
    frame.copy_from(&head[..10]);
}

/// The flag VIRTIO_NET_HDR_F_NEEDS_CSUM of `virtio_net_hdr` (virtio 1.2, section 5.1.6).
const NEEDS_CSUM: u8 = 1;
/// The flag VIRTIO_NET_HDR_F_DATA_VALID of `virtio_net_hdr` (virtio 1.2, section 5.1.6).
const DATA_VALID: u8 = 2;

/// Sets the length of the tap's header, and its offloads to those of the virtio features.
///
/// # Errors
/// The descriptor is not a queue of a tap, or the kernel lacks an offload.
pub fn configure_tap(tap: BorrowedFd<'_>, header: usize, features: u64) -> io::Result<()> {
    let header = header as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one int, which `header` is.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const header) })?;
    let leaves = [
        (0, libc::TUN_F_CSUM),
        (11, libc::TUN_F_TSO4),
        (12, libc::TUN_F_TSO6),
        (56, libc::TUN_F_USO4 | libc::TUN_F_USO6),
    ];
    let flags = leaves
        .iter()
        .filter(|(bit, _)| features >> bit & 1 == 1)
        .fold(0, |flags, (_, flag)| flags | flag);
    // SAFETY: TUNSETOFFLOAD takes its flags as the argument itself and accesses no memory.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits until `source` is readable, at most [`PAUSE`].
fn wait(source: BorrowedFd<'_>) -> io::Result<()> {
    let pause = Timespec::try_from(PAUSE).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(&source, PollFlags::IN)];
    match poll(&mut fds, Some(&pause)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
