//! The interface between the VMM and its guest: addresses, I/O ports and structures in shared memory.

#![no_std]

/// Bytes of the guest's memory, from address 0.
pub const MEMORY: u64 = 8 << 20;

/// Address of the [`BootParameters`], written before the guest starts.
pub const PARAMETERS: u64 = 0x8000;

/// Address of the guest's [`Report`].
pub const REPORT: u64 = 0x9000;

/// Address of a frame to be written with [`PORT_WRITE`].
pub const WRITTEN: u64 = 0xa000;

/// Address of a frame that was read with [`PORT_READ`].
pub const READ: u64 = 0xb000;

/// Address of its length in bytes; 0 if there was no frame.
pub const READ_LEN: u64 = 0xc000;

/// Address of the image, which begins with its entry point.
pub const IMAGE: u64 = 0x20_0000;

/// End of the stack.
pub const STACK: u64 = 0x40_0000;

/// Address of the rings and their buffers.
pub const RINGS: u64 = 0x40_0000;

/// Registers of the virtio device (virtio 1.2, section 4.2.2).
pub const DEVICE: u64 = 0xd000_0000;

/// The interrupt that ends a sleep.
pub const VECTOR: u8 = 0x40;

/// I/O port: writes the frame at [`WRITTEN`]; the value is its length.
pub const PORT_WRITE: u16 = 0x600;

/// I/O port: reads a frame to [`READ`].
pub const PORT_READ: u16 = 0x604;

/// I/O port: waits for a frame; the value is a timeout in microseconds.
pub const PORT_WAIT: u16 = 0x608;

/// I/O port: reports a [`Stage`].
pub const PORT_STAGE: u16 = 0x60c;

/// The progress of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// It has an address, and the measurement begins.
    Begin = 1,
    /// The measurement ends.
    End = 2,
    /// It failed; the reason is in the report.
    Failed = 3,
}

/// The network interface of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Link {
    /// A call of the VMM per frame.
    Calls = 0,
    /// A virtio device.
    Virtio = 1,
}

/// The task of the guest, after it has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Task {
    /// Ping the gateway.
    Ping = 0,
    /// Connect to the server, send a byte, receive one and close.
    Crr = 1,
    /// Send datagrams to the server.
    Send = 2,
    /// Receive datagrams from the server.
    Receive = 3,
}

/// The guest's configuration.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BootParameters {
    /// A [`Link`].
    pub link: u32,
    /// Pacing: 0 event, 1 hybrid, 2 poll.
    pub pacing: u32,
    /// 1 to negotiate VIRTIO_F_EVENT_IDX.
    pub event_idx: u32,
    /// A [`Task`].
    pub task: u32,
    /// Number of repetitions.
    pub count: u32,
    /// The server's TCP and UDP port, at the gateway's address.
    pub port: u32,
    /// Kilohertz of the time stamp counter.
    pub khz: u32,
}

/// The guest's result.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Report {
    /// Its IPv4 address, from DHCP.
    pub address: [u8; 4],
    /// Number of repetitions done.
    pub done: u32,
    /// Frames sent during the task.
    pub sent: u32,
    /// Frames received during the task.
    pub received: u32,
    /// Notifications of the device during the task.
    pub doorbells: u32,
    /// Sleeps during the task.
    pub sleeps: u32,
    /// Error message in UTF-8.
    pub error: [u8; 256],
}

impl Report {
    /// An empty report.
    pub const EMPTY: Self = Self {
        address: [0; 4],
        done: 0,
        sent: 0,
        received: 0,
        doorbells: 0,
        sleeps: 0,
        error: [0; 256],
    };
}
