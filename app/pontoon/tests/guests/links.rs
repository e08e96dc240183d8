//! The guest's ends of the links.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pontoon::vm_memory::{GuestAddress, GuestMemoryMmap};
use pontoon::{FramePort, NetDevice, QueueConfig};
use pontoon_guest::{Interface, Map, Options, Pacing, Platform, Process, QueueError};
use pontoon_ring::memory::{Memory, VmMemory};
use pontoon_ring::{Features, Layout};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Size of a buffer for a frame.
const FRAME: usize = 2048;

/// The guest's end of a link, which sends and receives frames without waiting.
pub(crate) trait Link {
    /// Sends a frame, or drops it.
    fn send(&mut self, frame: &[u8]);
    fn receive(&mut self) -> Option<Vec<u8>>;
    /// Returns true if the link completes the checksums of TCP and UDP.
    fn completes_checksums(&self) -> bool {
        false
    }
}

/// Each frame is preceded by its length.
pub(crate) struct StreamSocket {
    socket: UnixStream,
    received: VecDeque<u8>,
}

impl StreamSocket {
    pub(crate) fn new(socket: UnixStream) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            received: VecDeque::new(),
        }
    }
}

impl Link for StreamSocket {
    fn send(&mut self, frame: &[u8]) {
        let mut bytes = u32::try_from(frame.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend(frame);
        self.socket.write_all(&bytes).unwrap();
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut bytes = [0; FRAME];
        if let Ok(len) = self.socket.read(&mut bytes) {
            self.received.extend(&bytes[..len]);
        }
        let head: Vec<u8> = self.received.iter().take(4).copied().collect();
        let len = u32::from_be_bytes(head.try_into().ok()?) as usize;
        (self.received.len() >= 4 + len).then(|| {
            self.received.drain(..4);
            self.received.drain(..len).collect()
        })
    }
}

/// Each message is a frame.
pub(crate) struct PacketSocket(pub(crate) OwnedFd);

impl Link for PacketSocket {
    fn send(&mut self, frame: &[u8]) {
        match send(&self.0, frame, SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut frame = vec![0; FRAME];
        let (len, _) = recv(&self.0, &mut frame[..], RecvFlags::DONTWAIT).ok()?;
        frame.truncate(len);
        Some(frame)
    }
}

/// Frames are written and read by calls.
pub(crate) struct Calls {
    port: FramePort,
    buffer: Vec<u8>,
}

impl Calls {
    pub(crate) fn new(port: FramePort) -> Self {
        let buffer = vec![0; port.buffer_len()];
        Self { port, buffer }
    }
}

impl Link for Calls {
    fn send(&mut self, frame: &[u8]) {
        let mut bytes = vec![0; FramePort::HEADER_LEN];
        if frame[12..14] == [8, 0] && [6, 17].contains(&frame[23]) {
            // VIRTIO_NET_HDR_F_NEEDS_CSUM: the checksum begins behind the headers of Ethernet and IPv4.
            bytes[0] = 1;
            bytes[6..8].copy_from_slice(&34_u16.to_le_bytes());
            let offset: u16 = if frame[23] == 6 { 16 } else { 6 };
            bytes[8..10].copy_from_slice(&offset.to_le_bytes());
        }
        bytes.extend(frame);
        let _ = self.port.write_frame(&bytes);
    }

    fn completes_checksums(&self) -> bool {
        true
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let len = self.port.read_frame(&mut self.buffer).ok()?;
        Some(self.buffer[FramePort::HEADER_LEN..len].to_vec())
    }
}

/// A driver of virtio-net, in memory that the engine shares.
pub(crate) struct Queues<M, P>(Interface<M, P, 256>);

impl Queues<VmMemory<'static, GuestMemoryMmap>, Process> {
    /// Sets up the queues of a device, as the VMM and its guest do.
    pub(crate) fn of_device(mut device: NetDevice) -> (Self, NetDevice) {
        let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 8 << 20)]).unwrap();
        let memory: &'static GuestMemoryMmap = Box::leak(Box::new(memory));
        let map = Map::<256>::new(0x1_0000, 1514);
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        // The other end is never closed: the device does not end before the guest.
        let (connection, open) = std::io::pipe().unwrap();
        std::mem::forget(open);
        let process = Process {
            kicks: [event(), event()],
            calls: [event(), event()],
            connection: connection.into(),
        };
        let queue = |number: usize, layout: Layout| QueueConfig {
            size: layout.size,
            descriptors: layout.descriptors,
            available: layout.available,
            used: layout.used,
            kick: process.kicks[number].try_clone().unwrap(),
            call: process.calls[number].try_clone().unwrap(),
        };
        let queues = [queue(0, map.receive()), queue(1, map.transmit())];
        let features = Features {
            event_idx: true,
            indirect: false,
        };
        let guest_memory = VmMemory::new(memory);
        let mut guest = Interface::new(guest_memory, map, features, process, Pacing::Event).unwrap();
        // VIRTIO_F_VERSION_1 and VIRTIO_F_EVENT_IDX.
        device.activate(memory, 1 << 32 | 1 << 29, queues).unwrap();
        guest.start();
        (Self(guest), device)
    }
}

impl Queues<pontoon_guest::Mapping, Process> {
    /// Attaches to a vhost-user socket.
    pub(crate) fn of_socket(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self(pontoon_guest::attach(socket, Options::default()).unwrap())
    }
}

impl<M: Memory, P: Platform> Link for Queues<M, P> {
    fn send(&mut self, frame: &[u8]) {
        match self.0.write(frame) {
            Ok(()) | Err(QueueError::Full) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let now = self.0.platform().now();
        self.0.poll(Some(now)).unwrap();
        let mut frame = vec![0; FRAME];
        let len = self.0.read(&mut frame).unwrap()?;
        frame.truncate(len);
        Some(frame)
    }
}
