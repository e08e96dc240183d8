//! The device `/dev/vhost-net`: the kernel's device side of a virtio-net queue pair, connected to a tap (Linux
//! `include/uapi/linux/vhost.h`, `drivers/vhost/net.c`).
//!
//! One [`VhostDevice`] is one queue pair. Buffer addresses in descriptors are virtual addresses of this process inside the
//! device's [`Mapping`]; the kernel accesses no other memory of the process.

use std::fs::OpenOptions;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::mapping::Mapping;

/// Path of the device file of vhost-net.
pub const PATH: &str = "/dev/vhost-net";

/// VIRTIO_NET_F_MRG_RXBUF: a received frame may occupy several buffers.
pub const MERGEABLE: u64 = 1 << 15;
/// VIRTIO_F_RING_EVENT_IDX (Linux 3.1).
pub const EVENT_IDX: u64 = 1 << 29;
/// VIRTIO_F_VERSION_1 (Linux 4.0).
pub const VERSION_1: u64 = 1 << 32;

/// One of the two virtqueues of a queue pair; the number is its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum VringIndex {
    /// Receive queue: the kernel fills its buffers with frames that the guest has sent to the tap.
    Receive = 0,
    /// Transmit queue: the kernel sends the frames in its buffers to the guest's side of the tap.
    Transmit = 1,
}

/// Configuration of a virtqueue. The locations of its three parts are offsets in the device's memory.
#[derive(Clone, Copy, Debug)]
pub struct Vring<'a> {
    /// Number of descriptors of the virtqueue.
    pub size: u16,
    /// Offset of the descriptor table in bytes.
    pub descriptors: usize,
    /// Offset of the available ring in bytes.
    pub available: usize,
    /// Offset of the used ring in bytes.
    pub used: usize,
    /// Eventfd that the process writes to when it has made buffers available.
    pub kick: BorrowedFd<'a>,
    /// An eventfd that the kernel writes to when it has used buffers.
    pub call: BorrowedFd<'a>,
    /// Eventfd that the kernel writes to when it has found an error in the virtqueue and stopped it.
    pub error: BorrowedFd<'a>,
}

/// Checks that `/dev/vhost-net` can be opened.
///
/// # Errors
/// `NotFound`: the module `vhost_net` is not loaded. `PermissionDenied`: the user may not open the device file.
pub fn check() -> io::Result<()> {
    open().map(drop)
}

fn open() -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open(PATH)?;
    Ok(device.into())
}

/// A vhost-net queue pair and the memory that the kernel accesses for it. When it is dropped, both queues stop, and the
/// kernel releases the tap.
#[derive(Debug)]
pub struct VhostDevice {
    // The only descriptor of the device. It is closed before `memory` is unmapped, as fields are dropped in this order,
    // and after the close the kernel accesses the memory no more (`vhost_net_release`).
    device: OwnedFd,
    memory: Mapping,
}

impl VhostDevice {
    /// Creates a queue pair for this process on `memory`, with the virtio feature bits `features`.
    ///
    /// # Errors
    /// Those of [`check`]; `Unsupported`: the kernel lacks one of the features.
    pub fn new(memory: Mapping, features: u64) -> io::Result<Self> {
        Self::of(open()?, memory, features)
    }

    fn of(device: OwnedFd, memory: Mapping, features: u64) -> io::Result<Self> {
        let offered = SET_OWNER
            .none(&device)
            .and_then(|()| GET_FEATURES.get(&device, 0))?;
        if offered & features != features {
            let missing = features & !offered;
            let text = format!("this kernel's vhost-net lacks features {missing:#x}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        SET_FEATURES.set(&device, &features)?;
        let table = MemoryTable {
            regions: 1,
            padding: 0,
            guest_address: memory.address(),
            bytes: memory.len() as u64,
            user_address: memory.address(),
            flags: 0,
        };
        SET_MEM_TABLE.set(&device, &table)?;
        Ok(Self { device, memory })
    }

    /// Returns the memory in which rings and buffers are placed.
    #[must_use]
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Configures a virtqueue that has processed no buffer yet: its index starts at 0.
    ///
    /// # Errors
    /// `InvalidInput`: a part of the virtqueue is outside the device's memory. Errors of ioctl(2).
    pub fn set_vring(&self, which: VringIndex, vring: Vring<'_>) -> io::Result<()> {
        let size = usize::from(vring.size);
        // Sizes of the three parts: virtio 1.2, section 2.7.
        let parts = [
            (vring.descriptors, 16 * size),
            (vring.available, 6 + 2 * size),
            (vring.used, 6 + 8 * size),
        ];
        for (at, bytes) in parts {
            let end = at.checked_add(bytes).filter(|end| *end <= self.memory.len());
            end.ok_or(io::ErrorKind::InvalidInput)?;
        }
        let index = which as u32;
        let state = |number| VringState { index, number };
        let file = |fd: BorrowedFd<'_>| VringFile {
            index,
            fd: fd.as_raw_fd(),
        };
        let address = |at: usize| self.memory.address() + at as u64;
        SET_VRING_NUM.set(&self.device, &state(vring.size.into()))?;
        SET_VRING_BASE.set(&self.device, &state(0))?;
        let addresses = VringAddresses {
            index,
            flags: 0,
            descriptors: address(vring.descriptors),
            used: address(vring.used),
            available: address(vring.available),
            log: 0,
        };
        SET_VRING_ADDR.set(&self.device, &addresses)?;
        SET_VRING_KICK.set(&self.device, &file(vring.kick))?;
        SET_VRING_CALL.set(&self.device, &file(vring.call))?;
        SET_VRING_ERR.set(&self.device, &file(vring.error))
    }

    /// Attaches a virtqueue to a queue of a tap (VHOST_NET_SET_BACKEND) and starts it.
    ///
    /// # Errors
    /// ENOTSOCK: the descriptor is not a tap. Other errors of ioctl(2).
    pub fn start(&self, which: VringIndex, tap: BorrowedFd<'_>) -> io::Result<()> {
        let (index, fd) = (which as u32, tap.as_raw_fd());
        NET_SET_BACKEND.set(&self.device, &VringFile { index, fd })
    }
}

/// The kernel's `struct vhost_memory` with one `struct vhost_memory_region`.
#[repr(C)]
struct MemoryTable {
    regions: u32,
    padding: u32,
    guest_address: u64,
    bytes: u64,
    user_address: u64,
    flags: u64,
}

/// The kernel's `struct vhost_vring_state`: index of a virtqueue, and a number.
#[repr(C)]
struct VringState {
    index: u32,
    number: u32,
}

/// The kernel's `struct vhost_vring_addr`: index of a virtqueue, flags and addresses of its parts.
#[repr(C)]
struct VringAddresses {
    index: u32,
    flags: u32,
    descriptors: u64,
    used: u64,
    available: u64,
    log: u64,
}

/// The kernel's `struct vhost_vring_file`: index of a virtqueue, and a descriptor.
#[repr(C)]
struct VringFile {
    index: u32,
    fd: libc::c_int,
}

/// An ioctl(2) request of vhost whose argument has type `T`; `()` means no argument.
struct VhostIoctl<T> {
    number: libc::Ioctl,
    argument: PhantomData<fn(T)>,
}

impl<T> VhostIoctl<T> {
    const fn new(number: libc::Ioctl) -> Self {
        Self {
            number,
            argument: PhantomData,
        }
    }

    fn set(&self, device: &OwnedFd, argument: &T) -> io::Result<()> {
        let argument: *const T = argument;
        // SAFETY: the requests that are defined below as constants and set by this function read one `T`, which
        // `argument` points to. What `argument` references is memory of a `Mapping` that outlives its use (see
        // `VhostDevice`), or a descriptor, to which the kernel takes a reference of its own.
        done(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), self.number, argument) })
    }
}

impl VhostIoctl<u64> {
    fn get(&self, device: &OwnedFd, mut value: u64) -> io::Result<u64> {
        // SAFETY: the one request of this kind, VHOST_GET_FEATURES, writes one u64, which `value` is.
        done(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), self.number, &raw mut value) })?;
        Ok(value)
    }
}

impl VhostIoctl<()> {
    fn none(&self, device: &OwnedFd) -> io::Result<()> {
        // SAFETY: the one request of this kind, VHOST_SET_OWNER, takes no argument.
        done(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), self.number) })
    }
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

const VHOST: u32 = 0xaf;
const GET_FEATURES: VhostIoctl<u64> = VhostIoctl::new(libc::_IOR::<u64>(VHOST, 0x00));
const SET_FEATURES: VhostIoctl<u64> = VhostIoctl::new(libc::_IOW::<u64>(VHOST, 0x00));
const SET_OWNER: VhostIoctl<()> = VhostIoctl::new(libc::_IO(VHOST, 0x01));
/// VHOST_SET_MEM_TABLE; the number encodes the size of the table without regions.
const SET_MEM_TABLE: VhostIoctl<MemoryTable> = VhostIoctl::new(libc::_IOW::<u64>(VHOST, 0x03));
const SET_VRING_NUM: VhostIoctl<VringState> = VhostIoctl::new(libc::_IOW::<VringState>(VHOST, 0x10));
const SET_VRING_ADDR: VhostIoctl<VringAddresses> = VhostIoctl::new(libc::_IOW::<VringAddresses>(VHOST, 0x11));
const SET_VRING_BASE: VhostIoctl<VringState> = VhostIoctl::new(libc::_IOW::<VringState>(VHOST, 0x12));
const SET_VRING_KICK: VhostIoctl<VringFile> = VhostIoctl::new(libc::_IOW::<VringFile>(VHOST, 0x20));
const SET_VRING_CALL: VhostIoctl<VringFile> = VhostIoctl::new(libc::_IOW::<VringFile>(VHOST, 0x21));
const SET_VRING_ERR: VhostIoctl<VringFile> = VhostIoctl::new(libc::_IOW::<VringFile>(VHOST, 0x22));
const NET_SET_BACKEND: VhostIoctl<VringFile> = VhostIoctl::new(libc::_IOW::<VringFile>(VHOST, 0x30));

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of `linux/vhost.h` on x86-64 and aarch64.
    #[test]
    fn request_numbers_are_the_kernels() {
        let numbers = [
            GET_FEATURES.number,
            SET_FEATURES.number,
            SET_OWNER.number,
            SET_MEM_TABLE.number,
            SET_VRING_NUM.number,
            SET_VRING_ADDR.number,
            SET_VRING_BASE.number,
            SET_VRING_KICK.number,
            SET_VRING_CALL.number,
            SET_VRING_ERR.number,
            NET_SET_BACKEND.number,
        ];
        let expected = [
            0x8008_af00,
            0x4008_af00,
            0xaf01,
            0x4008_af03,
            0x4008_af10,
            0x4028_af11,
            0x4008_af12,
            0x4008_af20,
            0x4008_af21,
            0x4008_af22,
            0x4008_af30,
        ];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn descriptors_of_other_files_are_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let error = VhostDevice::of(null.into(), Mapping::new(4096).unwrap(), VERSION_1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }
}
