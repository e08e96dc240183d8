//! The interface between the VMM and its guest: addresses, I/O ports and structures in shared memory.

#![no_std]

/// Bytes of the guest's memory, from address 0.
pub const MEMORY: u64 = 8 << 20;

/// Where [`Order`] is when the guest starts.
pub const ORDER: u64 = 0x8000;

/// Where the guest leaves its [`Report`].
pub const REPORT: u64 = 0x9000;

/// A frame to be written by a call.
pub const WRITTEN: u64 = 0xa000;

/// A frame that was read by a call.
pub const READ: u64 = 0xb000;

/// Its length in bytes, 0 for none.
pub const READ_LEN: u64 = 0xc000;

/// Where the image is, which begins with its entry.
pub const IMAGE: u64 = 0x20_0000;

/// Where the stack ends.
pub const STACK: u64 = 0x40_0000;

/// Where the rings and their frames are.
pub const RINGS: u64 = 0x40_0000;

/// Registers of the virtio device (virtio 1.2, section 4.2.2).
pub const DEVICE: u64 = 0xd000_0000;

/// The interrupt that ends a sleep.
pub const VECTOR: u8 = 0x40;

/// I/O port: writes the frame in [`WRITTEN`] of so many bytes.
pub const PORT_WRITE: u16 = 0x600;

/// I/O port: reads a frame into [`READ`].
pub const PORT_READ: u16 = 0x604;

/// I/O port: waits for a frame for so many microseconds at most.
pub const PORT_WAIT: u16 = 0x608;

/// I/O port: how far the guest is, a [`Stage`].
pub const PORT_STAGE: u16 = 0x60c;

/// How far the guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// It has an address, and what is measured begins.
    Begin = 1,
    /// What is measured is over.
    End = 2,
    /// It failed: the report's text says how.
    Failed = 3,
}

/// By what frames come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Link {
    /// A call of the VMM for each.
    Calls = 0,
    /// A virtio device.
    Virtio = 1,
}

/// What the guest does once it has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Task {
    /// Pings the gateway, so many times.
    Ping = 0,
    /// Connects to the server, sends a byte, receives one and closes, so many times.
    Crr = 1,
    /// Sends the server so many datagrams.
    Send = 2,
    /// Receives so many datagrams from the server.
    Receive = 3,
}

/// What the guest is told.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Order {
    /// A [`Link`].
    pub link: u32,
    /// How it waits: 0 event, 1 hybrid, 2 poll.
    pub pacing: u32,
    /// Whether it negotiates VIRTIO_F_EVENT_IDX.
    pub event_idx: u32,
    /// A [`Task`].
    pub task: u32,
    /// How often.
    pub count: u32,
    /// The server's TCP and UDP port, at the gateway's address.
    pub port: u32,
    /// Kilohertz of the time stamp counter.
    pub khz: u32,
}

/// What the guest has to say.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Report {
    /// Its IPv4 address, from DHCP.
    pub address: [u8; 4],
    /// How often it did what it was to do.
    pub done: u32,
    /// Frames that it sent meanwhile.
    pub sent: u32,
    /// Frames that it received meanwhile.
    pub received: u32,
    /// Times that it rang the device meanwhile.
    pub doorbells: u32,
    /// Times that it slept meanwhile.
    pub sleeps: u32,
    /// Why it failed, in UTF-8.
    pub error: [u8; 256],
}

impl Report {
    /// One that says nothing.
    pub const fn new() -> Self {
        Self {
            address: [0; 4],
            done: 0,
            sent: 0,
            received: 0,
            doorbells: 0,
            sleeps: 0,
            error: [0; 256],
        }
    }
}
