//! Packet sockets with a memory-mapped receive ring of version `TPACKET_V2`: packet(7), Linux
//! `Documentation/networking/packet_mmap.rst`.
//!
//! `TPACKET_V3` is not used: it passes whole blocks to the process when they are full or after a timeout of a
//! millisecond or more, which would add to the latency. With `TPACKET_V2` each packet is visible at once. The kernel
//! keeps a packet that is longer than a slot in the socket's receive queue, from which [`receive_long`] receives such
//! packets in the order of their slots.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socket_with, sockopt};

use crate::address::{Family, array};
use crate::header::{self, MessageHeader};
use crate::option;

#[cfg(test)]
mod tests;

/// Size in bytes of the `virtio_net_hdr` in front of each packet.
pub const VNET_HDR_LEN: usize = 10;

/// Bytes of a slot that cannot hold packet data: the slot's header and alignment.
pub const OVERHEAD: usize = 112;

/// Size of the ring's memory blocks in bytes (`tp_block_size`), a multiple of the size of a slot.
const BLOCK: u32 = 64 << 10;

/// Size of a receive ring: number and size of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    slots: u32,
    slot_bytes: u32,
}

impl Size {
    /// Returns the size of a ring with at least `slots` slots, each for packets of up to `bytes` or [`Self::LONGEST`]
    /// bytes.
    #[must_use]
    pub fn new(slots: u32, bytes: u32) -> Self {
        let room = bytes.min(Self::LONGEST) + OVERHEAD as u32;
        let slot_bytes = room.next_power_of_two().max(2048);
        let slots = slots.clamp(1, MOST_SLOTS).next_multiple_of(BLOCK / slot_bytes);
        Self { slots, slot_bytes }
    }

    /// Limit on the length of packets, in bytes, that fit into a slot of any size.
    pub const LONGEST: u32 = (16 << 10) - OVERHEAD as u32;

    /// Returns the number of slots of the ring.
    #[must_use]
    pub const fn slots(self) -> u32 {
        self.slots
    }

    /// Returns the size of each slot in bytes.
    #[must_use]
    pub const fn slot_bytes(self) -> u32 {
        self.slot_bytes
    }

    /// Returns the size of the whole ring in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.slots as usize * self.slot_bytes as usize
    }

    /// Returns number and size of the slots as integers, to send them to another process.
    #[must_use]
    pub const fn parts(self) -> [u32; 2] {
        [self.slots, self.slot_bytes]
    }

    /// Checks and converts the integers of [`parts`](Self::parts) that another process has sent; `None` if they are not
    /// a valid size.
    #[must_use]
    pub fn from_parts([slots, slot_bytes]: [u32; 2]) -> Option<Self> {
        let possible = slot_bytes.is_power_of_two() && (2048..=16 << 10).contains(&slot_bytes);
        let size = Self { slots, slot_bytes };
        (possible && slots > 0 && slots.is_multiple_of(BLOCK / slot_bytes)).then_some(size)
    }
}

/// Limit on the number of slots: 512 MiB of the smallest slots.
const MOST_SLOTS: u32 = 1 << 18;

/// Opens a packet socket with a receive ring. It receives nothing before [`bind`], so a filter can be attached before
/// the first packet.
///
/// # Errors
/// EPERM without CAP_NET_RAW; ENOMEM. The text names the step that failed.
pub fn open(size: Size) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
        .map_err(|error| with_context("cannot open a packet socket", error))?;
    let set = |name: i32, value: i32, what: &str| {
        option::set_int(&socket, libc::SOL_PACKET, name, value).map_err(|error| with_context(what, error))
    };
    set(libc::PACKET_VERSION, TPACKET_V2, "PACKET_VERSION")?;
    set(libc::PACKET_VNET_HDR, 1, "PACKET_VNET_HDR")?;
    set(libc::PACKET_COPY_THRESH, 1, "PACKET_COPY_THRESH")?;
    // Packets that are longer than a slot count against the receive buffer; its default holds three packets of 64 KiB.
    sockopt::set_socket_recv_buffer_size_force(&socket, KEPT)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, KEPT))
        .map_err(|error| with_context("SO_RCVBUF", error))?;
    // struct tpacket_req: bytes and number of blocks, bytes and number of frames.
    let blocks = size.slots / (BLOCK / size.slot_bytes);
    let request = [BLOCK, blocks, size.slot_bytes, size.slots].map(u32::to_ne_bytes);
    option::set(
        &socket,
        libc::SOL_PACKET,
        libc::PACKET_RX_RING,
        request.as_flattened(),
    )
    .map_err(|error| with_context("PACKET_RX_RING", error))?;
    Ok(socket)
}

/// Limit on the bytes of packets in the socket's receive queue, beside the ring.
const KEPT: usize = 32 << 20;

/// Makes a packet socket receive the packets of an address family that arrive on an interface. Packets that the host
/// sends on the interface are not received.
///
/// # Errors
/// ENODEV, ENXIO: the interface does not exist.
pub fn bind(socket: impl AsFd, interface: u32, family: Family) -> io::Result<()> {
    let address = address(interface, family);
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the socket is open, and `address` is a live `sockaddr_ll` of `len` bytes that the call only reads.
    let result = unsafe { libc::bind(socket.as_fd().as_raw_fd(), (&raw const address).cast(), len) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Opens a packet socket without a ring, which receives whole packets, from the IP header on, of one interface and
/// address family. `filter` is called before the first packet arrives, to attach a BPF filter.
///
/// # Errors
/// EPERM without CAP_NET_RAW; ENODEV: the interface does not exist.
pub fn open_without_ring(
    interface: u32,
    family: Family,
    filter: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)
        .map_err(|error| with_context("cannot open a packet socket", error))?;
    filter(&socket)?;
    bind(&socket, interface, family)?;
    Ok(socket)
}

/// Sends an IP packet, from its header on, to the Ethernet address of a multicast group (RFC 1112 section 6.4, RFC 2464
/// section 7).
///
/// # Errors
/// Errors of sendmsg(2), for example ENETDOWN if the interface is down.
pub fn send_to_group(
    socket: impl AsFd,
    interface: u32,
    group: std::net::IpAddr,
    packet: &[u8],
) -> io::Result<()> {
    let mut to = address(interface, Family::of(group));
    to.sll_halen = 6;
    let hardware = match group {
        std::net::IpAddr::V4(v4) => {
            let [_, b, c, d] = v4.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        std::net::IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            [0x33, 0x33, a, b, c, d]
        }
    };
    to.sll_addr[..6].copy_from_slice(&hardware);
    let part = libc::iovec {
        iov_base: packet.as_ptr().cast_mut().cast(),
        iov_len: packet.len(),
    };
    let mut header = MessageHeader::new(&raw const part, 1);
    header.name = (&raw mut to).cast();
    header.name_len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // sendmsg(2) is used because sendto(2) is not among the system calls that a relay worker is permitted.
    // SAFETY: `header` references `to` and `part`, and that `packet`. All of them outlive the call, which only reads them.
    unsafe { header::send(socket.as_fd(), &header, libc::MSG_DONTWAIT) }?;
    Ok(())
}

fn address(interface: u32, family: Family) -> libc::sockaddr_ll {
    let protocol = match family {
        Family::V4 => libc::ETH_P_IP,
        Family::V6 => libc::ETH_P_IPV6,
    };
    // SAFETY: `sockaddr_ll` is integers and arrays of them, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = AddressFamily::PACKET.as_raw();
    address.sll_protocol = u16::try_from(protocol).map_or(0, u16::to_be);
    address.sll_ifindex = interface.cast_signed();
    address
}

/// Mode in which the packets of a fanout group are distributed to its sockets (`PACKET_FANOUT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fanout {
    /// The group has one socket, which receives all packets.
    One,
    /// Packets are distributed by flow hash, and go to the next socket while the ring of the selected one is full.
    Flows,
}

/// Makes bound packet sockets a fanout group, in which each packet is received by one socket. If `defragment`, the
/// kernel reassembles IPv4 fragments before the distribution.
///
/// # Errors
/// Errors of setsockopt(2); EINVAL while the interface is down.
pub fn group(sockets: &[OwnedFd], fanout: Fanout, defragment: bool) -> io::Result<()> {
    let mode = match fanout {
        Fanout::One => libc::PACKET_FANOUT_LB,
        Fanout::Flows => libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_ROLLOVER,
    };
    let mode = mode
        | if defragment {
            libc::PACKET_FANOUT_FLAG_DEFRAG
        } else {
            0
        };
    let join = |socket: &OwnedFd, id: u32, flags: u32| {
        let value = (mode | flags) << 16 | id;
        option::set(
            socket,
            libc::SOL_PACKET,
            libc::PACKET_FANOUT,
            &value.to_ne_bytes(),
        )
        .map_err(|error| with_context("PACKET_FANOUT", error))
    };
    let Some((first, others)) = sockets.split_first() else {
        return Ok(());
    };
    join(first, 0, libc::PACKET_FANOUT_FLAG_UNIQUEID)?;
    let mut value = [0; 4];
    option::get(first, libc::SOL_PACKET, libc::PACKET_FANOUT, &mut value)
        .map_err(|error| with_context("PACKET_FANOUT", error))?;
    let id = u32::from_ne_bytes(value) & 0xffff;
    others.iter().try_for_each(|socket| join(socket, id, 0))
}

/// Enables or disables reception of frames to all multicast groups, not only to those that the host has joined
/// (`PACKET_MR_ALLMULTI`). It ends when the socket is closed.
///
/// # Errors
/// ENODEV: the interface does not exist.
pub fn all_groups(socket: impl AsFd, interface: u32, on: bool) -> Result<(), Errno> {
    // struct packet_mreq: interface, type, length of the address, address.
    let mut request = [0; 16];
    request[..4].copy_from_slice(&interface.to_ne_bytes());
    request[4..6].copy_from_slice(&(libc::PACKET_MR_ALLMULTI as u16).to_ne_bytes());
    let name = if on {
        libc::PACKET_ADD_MEMBERSHIP
    } else {
        libc::PACKET_DROP_MEMBERSHIP
    };
    option::set(socket, libc::SOL_PACKET, name, &request)
}

/// Returns the number of packets that have arrived since the last call, and how many of them the kernel has dropped
/// because the ring was full (`PACKET_STATISTICS`).
///
/// # Errors
/// Errors of getsockopt(2), for example ENOPROTOOPT for a socket that is not a packet socket.
pub fn statistics(socket: impl AsFd) -> Result<(u32, u32), Errno> {
    let mut answer = [0; 8];
    option::get(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut answer)?;
    Ok((
        u32::from_ne_bytes(array(&answer, 0).unwrap_or_default()),
        u32::from_ne_bytes(array(&answer, 4).unwrap_or_default()),
    ))
}

/// Enables or disables SIGIO to this process for every packet that arrives at the socket, including dropped packets.
///
/// # Errors
/// None that the kernel documents for these arguments.
pub fn set_sigio(socket: impl AsFd, on: bool) -> io::Result<()> {
    let fd = socket.as_fd();
    if on {
        // SAFETY: neither call takes a pointer, and the descriptor is open.
        let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETOWN, libc::getpid()) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let mut flags = fcntl_getfl(fd)?;
    flags.set(OFlags::ASYNC, on);
    Ok(fcntl_setfl(fd, flags)?)
}

/// Receives the next packet that was too long for its slot: a `virtio_net_hdr` and the packet. Returns the length of
/// both, which may be more than the length of `buffer`.
///
/// # Errors
/// EAGAIN: no such packet is in the receive queue.
pub fn receive_long(socket: impl AsFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    recv(socket, buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC).map(|(_, len)| len)
}

/// The memory-mapped receive ring of a packet socket.
#[derive(Debug)]
pub struct Ring {
    at: *mut u8,
    size: Size,
    /// Index of the slot in which the next packet is expected.
    position: u32,
}

// SAFETY: the mapping belongs to this value, and this process accesses its memory only through the value.
unsafe impl Send for Ring {}

/// A received packet in a slot of the ring.
#[derive(Clone, Copy, Debug)]
pub struct RingPacket<'a> {
    /// The packet's `virtio_net_hdr`: checksum and segmentation offload.
    pub vnet: &'a [u8],
    /// The packet, from the IP header on; truncated if it was longer than the slot.
    pub bytes: &'a [u8],
    /// Length of the whole packet in bytes, also if `bytes` is truncated.
    pub len: usize,
    /// True if the packet was longer than the slot and [`receive_long`] returns all of it.
    pub kept: bool,
}

impl Ring {
    /// Maps the ring of a socket that [`open`] has opened. `position` is the slot at which the previous process
    /// stopped.
    ///
    /// # Errors
    /// Errors of mmap(2); EINVAL if `size` is not the size that the socket was opened with.
    pub fn map(socket: impl AsFd, size: Size, position: u32) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a null address lets the kernel choose a free range, so no memory in use is replaced.
        let at = unsafe { mmap(std::ptr::null_mut(), size.bytes(), protection, flags, socket, 0) }
            .map_err(|error| with_context("cannot map the receive ring of a packet socket", error))?;
        let mut ring = Self {
            at: at.cast(),
            size,
            position: position % size.slots,
        };
        ring.find();
        Ok(ring)
    }

    /// Sets the position to the oldest packet if the slot at the position is empty: the previous process may have
    /// exited before it stored its position.
    pub fn find(&mut self) {
        let slots = self.size.slots;
        let mut after = (0..slots).map(|step| (self.position + step) % slots);
        let first = after.find(|slot| self.has(*slot) && !self.has((slot + slots - 1) % slots));
        // No packet in any slot, or one in every slot: the position is kept.
        self.position = first.unwrap_or(self.position);
    }

    /// Returns the index of the slot in which the next packet is expected.
    #[must_use]
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Returns the number of slots of the ring.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.size.slots
    }

    /// Returns the packet in slot `ahead`, counted from the oldest packet, or `None` if the slot is empty. The slot
    /// stays with this process until [`release`](Self::release).
    #[must_use]
    pub fn packet(&self, ahead: u32) -> Option<RingPacket<'_>> {
        if ahead >= self.size.slots {
            return None;
        }
        let slot = (self.position + ahead) % self.size.slots;
        let status = self.status(slot).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot lies in the mapping, as `slot` is below `slots`. The kernel has passed it on (the status was read
        // with Acquire) and does not access it before the status is changed, which only `release` does, and that borrows the
        // ring exclusively: no slice exists then.
        let bytes = unsafe { std::slice::from_raw_parts(self.slot(slot), self.size.slot_bytes as usize) };
        Some(RingPacket::read(bytes, status))
    }

    /// Returns the `count` oldest slots to the kernel.
    pub fn release(&mut self, count: u32) {
        for _ in 0..count {
            self.status(self.position)
                .store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.position = (self.position + 1) % self.size.slots;
        }
    }

    fn has(&self, slot: u32) -> bool {
        self.status(slot).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    fn slot(&self, slot: u32) -> *mut u8 {
        self.at
            .wrapping_add(slot as usize * self.size.slot_bytes as usize)
    }

    fn status(&self, slot: u32) -> &AtomicU32 {
        // SAFETY: every slot lies in the mapping, which lives as long as `self`, and begins with its status, aligned as
        // slots are; both sides access it as one word.
        unsafe { AtomicU32::from_ptr(self.slot(slot).cast()) }
    }
}

impl<'a> RingPacket<'a> {
    /// Decodes `struct tpacket2_hdr` of a slot: status, length, captured length, offsets of Ethernet and IP header.
    fn read(slot: &'a [u8], status: u32) -> Self {
        let word = |at| array(slot, at).map_or(0, u32::from_ne_bytes) as usize;
        let half = |at| usize::from(array(slot, at).map_or(0, u16::from_ne_bytes));
        let (len, here, mac, net) = (word(4), word(8), half(12), half(14));
        let link = net.saturating_sub(mac);
        Self {
            vnet: slot
                .get(mac.saturating_sub(VNET_HDR_LEN)..mac)
                .unwrap_or_default(),
            bytes: slot.get(net..mac + here).unwrap_or_default(),
            len: len.saturating_sub(link),
            kept: status & libc::TP_STATUS_COPY != 0,
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the range is what `map` has mapped, and no slice into it outlives `self`.
        let _ = unsafe { munmap(self.at.cast(), self.size.bytes()) };
    }
}

const TPACKET_V2: i32 = 1;

fn with_context(what: &str, error: Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
