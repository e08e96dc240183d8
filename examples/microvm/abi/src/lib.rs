//! Interface between the VMM and its guest: addresses, I/O ports and structures in shared memory.

#![no_std]

/// Size of the guest's memory in bytes; it begins at address 0.
pub const MEMORY: u64 = 8 << 20;

/// Address of the [`BootParameters`], which the VMM writes before the guest starts.
pub const PARAMETERS: u64 = 0x8000;

/// Address of the [`TaskReport`], which the guest writes.
pub const REPORT: u64 = 0x9000;

/// Address of a frame that the guest sends with [`PORT_WRITE`].
pub const WRITTEN: u64 = 0xa000;

/// Address of a frame that the VMM has received for [`PORT_READ`].
pub const READ: u64 = 0xb000;

/// Address of the length in bytes of the frame at [`READ`]; 0 if there was no frame.
pub const READ_LEN: u64 = 0xc000;

/// Address of the guest's image, which begins with its entry point.
pub const IMAGE: u64 = 0x20_0000;

/// Address of the end of the guest's stack.
pub const STACK: u64 = 0x40_0000;

/// Address of the virtqueues and their buffers.
pub const RINGS: u64 = 0x40_0000;

/// Address of the registers of the virtio device (virtio 1.2, section 4.2.2).
pub const DEVICE: u64 = 0xd000_0000;

/// Interrupt vector of the virtio device, which ends a sleep of the guest.
pub const VECTOR: u8 = 0x40;

/// I/O port by which the guest sends the frame at [`WRITTEN`]; the value is its length in bytes.
pub const PORT_WRITE: u16 = 0x600;

/// I/O port by which the guest receives a frame to [`READ`].
pub const PORT_READ: u16 = 0x604;

/// I/O port by which the guest waits for a frame; the value is a timeout in microseconds.
pub const PORT_WAIT: u16 = 0x608;

/// I/O port by which the guest reports a [`Stage`].
pub const PORT_STAGE: u16 = 0x60c;

/// Progress of the guest, which it reports to the VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// The guest has an IPv4 address, and the measured task begins.
    Begin = 1,
    /// The measured task has ended.
    End = 2,
    /// The guest has failed; the reason is in the report.
    Failed = 3,
}

/// Type of the guest's network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Link {
    /// The guest calls the VMM by an I/O port for each frame.
    Calls = 0,
    /// A virtio-net device over MMIO.
    Virtio = 1,
}

/// Task of the guest, after it has received an IPv4 address by DHCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Task {
    /// Send echo requests to the gateway.
    Ping = 0,
    /// Connect to the server, send a byte, receive a byte, and close the connection; repeatedly.
    Crr = 1,
    /// Send UDP datagrams to the server.
    Send = 2,
    /// Receive UDP datagrams from the server.
    Receive = 3,
}

/// Configuration of the guest, which the VMM writes to its memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BootParameters {
    /// Type of the network interface, a [`Link`].
    pub link: u32,
    /// Pacing of the network interface: 0 event, 1 hybrid, 2 poll.
    pub pacing: u32,
    /// 1 if the guest negotiates VIRTIO_F_EVENT_IDX, else 0.
    pub event_idx: u32,
    /// Task of the guest, a [`Task`].
    pub task: u32,
    /// Number of repetitions of the task.
    pub count: u32,
    /// TCP and UDP port of the server, which has the gateway's address.
    pub port: u32,
    /// Frequency of the time stamp counter in kHz.
    pub khz: u32,
}

/// Result of the task, which the guest writes to its memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TaskReport {
    /// IPv4 address that the guest has received by DHCP.
    pub address: [u8; 4],
    /// Number of repetitions that the guest has completed.
    pub done: u32,
    /// Number of frames that the guest has sent during the task.
    pub sent: u32,
    /// Number of frames that the guest has received during the task.
    pub received: u32,
    /// Number of notifications of the device during the task.
    pub doorbells: u32,
    /// Number of sleeps of the guest during the task.
    pub sleeps: u32,
    /// Error message in UTF-8, padded with zeros.
    pub error: [u8; 256],
}

impl TaskReport {
    /// A report without results.
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
