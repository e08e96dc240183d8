//! The guest of the vhost-user front-end: memory and a network device, without processors.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, MmapRegion};

use super::Error;
use super::map::{BASE, PairMap};
use super::queue::Queue;
use super::rx::Rx;
use super::tx::Tx;

/// Features and sizes with which the front-end configures the device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Virtio features that the driver accepts if offered; VHOST_USER_F_PROTOCOL_FEATURES is always accepted.
    pub features: u64,
    /// Number of queue pairs, each with a receive and a transmit queue.
    pub pairs: usize,
    /// Number of descriptors of each virtqueue.
    pub queue_size: u16,
    /// Size of each receive buffer in bytes.
    pub buffer: u32,
}

/// The guest's memory, and the front-end that shares it with the device.
pub struct Machine {
    frontend: Frontend,
    /// The socket that connects the front-end with the device.
    socket: UnixStream,
    memory: Arc<GuestMemoryMmap>,
    file: Arc<File>,
    features: u64,
}

/// Memory of a guest, and the driver's queues in it. No buffer is available to the device yet ([`Rx::refill`]).
pub struct GuestQueues {
    /// The memory.
    pub memory: Arc<GuestMemoryMmap>,
    file: Arc<File>,
    /// The queues.
    pub pairs: Vec<QueuePair>,
}

impl GuestQueues {
    /// Allocates memory for the queues of `options`, which use `features`.
    ///
    /// # Errors
    /// Out of memory or descriptors.
    pub fn allocate(features: u64, options: &Options) -> Result<Self, Error> {
        let mut maps = Vec::new();
        let mut end = BASE;
        for _ in 0..options.pairs {
            let map = PairMap::new(end, options);
            end = map.end;
            maps.push(map);
        }
        let (file, memory) = allocate(end - BASE)?;
        let memory = Arc::new(memory);
        let ring = pontoon_ring::Features {
            event_idx: features & EVENT_IDX != 0,
            indirect: features & INDIRECT != 0,
        };
        let header = if features & (VERSION_1 | MRG_RXBUF) != 0 {
            12
        } else {
            10
        };
        let mergeable = features & MRG_RXBUF != 0;
        let mut pairs = Vec::new();
        for map in &maps {
            let queue = |layout| Queue::new(memory.clone(), layout, ring);
            let rx = Rx::new(queue(map.rx)?, map.buffers, options.buffer, header, mergeable);
            let tx = Tx::new(queue(map.tx)?, map.places, header);
            pairs.push(QueuePair { rx, tx });
        }
        Ok(Self { memory, file, pairs })
    }
}

/// A receive and a transmit queue of the driver.
#[derive(Debug)]
pub struct QueuePair {
    /// Receive queue: frames from the device.
    pub rx: Rx,
    /// Transmit queue: frames to the device.
    pub tx: Tx,
}

/// Mask of the virtio feature VIRTIO_NET_F_MRG_RXBUF.
const MRG_RXBUF: u64 = 1 << 15;
/// Mask of the vhost feature VHOST_F_LOG_ALL.
const LOG_ALL: u64 = 1 << 26;
/// Mask of the virtio feature VIRTIO_F_INDIRECT_DESC.
const INDIRECT: u64 = 1 << 28;
/// Mask of the virtio feature VIRTIO_F_EVENT_IDX.
const EVENT_IDX: u64 = 1 << 29;
/// Mask of the vhost-user feature VHOST_USER_F_PROTOCOL_FEATURES.
const PROTOCOL: u64 = 1 << 30;
/// Mask of the virtio feature VIRTIO_F_VERSION_1.
const VERSION_1: u64 = 1 << 32;

impl Machine {
    /// Negotiates with the device at the other end of `socket`, and starts all queues with all receive buffers
    /// available. Waits for the device's replies at most the timeout of the socket.
    ///
    /// # Errors
    /// The device refuses or disconnects; out of memory or descriptors.
    pub fn connect(socket: UnixStream, options: &Options) -> Result<(Self, Vec<QueuePair>), Error> {
        let rings = 2 * options.pairs;
        let mut frontend = Frontend::from_stream(socket.try_clone()?, rings as u64);
        frontend.set_owner()?;
        let features = frontend.get_features()? & (options.features | PROTOCOL);
        let protocol = frontend.get_protocol_features()?;
        frontend.set_protocol_features(protocol)?;
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        frontend.set_features(features)?;

        let GuestQueues { memory, file, pairs } = GuestQueues::allocate(features, options)?;
        let mut machine = Self {
            frontend,
            socket,
            memory,
            file,
            features,
        };
        machine.share_memory()?;
        let mut started = Vec::new();
        for (first, mut pair) in (0..).step_by(2).zip(pairs) {
            machine.start(first, &pair.rx.queue, 0)?;
            machine.start(first + 1, &pair.tx.queue, 0)?;
            pair.rx.refill(usize::MAX)?;
            started.push(pair);
        }
        Ok((machine, started))
    }

    /// Returns true if the device is connected.
    pub fn is_connected(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().intersects(gone)
    }

    /// Returns the negotiated virtio features.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Returns the guest's memory.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Returns the file of the guest's memory.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the front-end, by which a test can send further messages.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }

    /// Starts ring `number` with the available index `base` (VHOST_USER_SET_VRING_BASE).
    ///
    /// # Errors
    /// The device refuses or disconnects.
    pub fn start(&mut self, number: usize, queue: &Queue, base: u16) -> Result<(), Error> {
        let [kick, call] = queue.events()?;
        self.frontend.set_vring_num(number, queue.layout().size)?;
        self.frontend.set_vring_base(number, base)?;
        self.frontend
            .set_vring_addr(number, &self.vring_config(queue, None)?)?;
        self.frontend.set_vring_call(number, &call)?;
        self.frontend.set_vring_kick(number, &kick)?;
        Ok(self.frontend.set_vring_enable(number, true)?)
    }

    /// Stops ring `number` (VHOST_USER_GET_VRING_BASE), and returns the available index up to which the device has
    /// taken chains.
    ///
    /// # Errors
    /// The device refuses or disconnects.
    pub fn stop(&mut self, number: usize) -> Result<u32, Error> {
        Ok(self.frontend.get_vring_base(number)?)
    }

    /// Makes the device log the pages that it writes (VHOST_F_LOG_ALL), for the given running rings and their
    /// numbers. A bit of the log stands for 4,096 bytes, from address 0 on.
    ///
    /// # Errors
    /// The device refuses or disconnects; out of memory.
    pub fn log(&mut self, rings: &[(usize, &Queue)]) -> Result<MmapRegion, Error> {
        let pages = self.memory.last_addr().0 / 4096 + 1;
        let bytes = pages.div_ceil(8).next_multiple_of(4096);
        let file = memfd(bytes)?;
        let region = VhostUserDirtyLogRegion {
            mmap_size: bytes,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        self.frontend.set_log_base(0, Some(region))?;
        self.features |= LOG_ALL;
        self.frontend.set_features(self.features)?;
        for (number, queue) in rings {
            let log = Some(queue.layout().used);
            self.frontend
                .set_vring_addr(*number, &self.vring_config(queue, log)?)?;
        }
        let map = MmapRegion::from_file(FileOffset::new(file, 0), bytes as usize);
        Ok(map.map_err(io::Error::other)?)
    }

    fn share_memory(&mut self) -> Result<(), Error> {
        let regions: Result<Vec<_>, _> = self
            .memory
            .iter()
            .map(VhostUserMemoryRegionInfo::from_guest_region)
            .collect();
        self.frontend.set_mem_table(&regions?)?;
        Ok(())
    }

    /// Returns the message with the addresses of a ring in this process.
    fn vring_config(&self, queue: &Queue, log: Option<u64>) -> Result<VringConfigData, Error> {
        let layout = queue.layout();
        let host = |guest| {
            let host = self.memory.get_host_address(GuestAddress(guest));
            host.map(|host| host.addr() as u64).map_err(io::Error::other)
        };
        Ok(VringConfigData {
            queue_max_size: layout.size,
            queue_size: layout.size,
            flags: log.is_some().into(),
            desc_table_addr: host(layout.descriptors)?,
            used_ring_addr: host(layout.used)?,
            avail_ring_addr: host(layout.available)?,
            log_addr: log,
        })
    }
}

fn allocate(bytes: u64) -> io::Result<(Arc<File>, GuestMemoryMmap)> {
    let file = Arc::new(memfd(bytes)?);
    let whole = FileOffset::from_arc(file.clone(), 0);
    let len = usize::try_from(bytes).map_err(io::Error::other)?;
    let memory = GuestMemoryMmap::from_ranges_with_files([(GuestAddress(BASE), len, Some(whole))]);
    Ok((file, memory.map_err(io::Error::other)?))
}

fn memfd(bytes: u64) -> io::Result<File> {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bytes)?;
    Ok(File::from(file))
}
