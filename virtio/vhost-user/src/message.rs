//! Parsing of a front-end's messages from bytes and descriptors into types.
//!
//! Names and layouts are those of the vhost-user specification (QEMU's docs/interop/vhost-user.rst). Integers are in
//! host byte order.

use std::os::fd::OwnedFd;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Header of a vhost-user message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct MessageHeader {
    /// Number of the message (VHOST_USER_*).
    pub(crate) code: u32,
    /// Version in bits 0 and 1, then the flags REPLY and NEED_REPLY.
    pub(crate) flags: u32,
    /// Size of the body of the message in bytes.
    pub(crate) size: u32,
}

/// Size of a message's header in bytes.
pub(crate) const HEADER: usize = size_of::<MessageHeader>();

/// Size in bytes of the longest body, a memory table with [`MAX_REGIONS`] regions.
pub(crate) const MAX_BODY: usize = 8 + MAX_REGIONS * size_of::<RegionDescription>();

/// Limit on the number of regions, and so of descriptors, in one message. The specification allows 8; rust-vmm's
/// front-ends may send this many.
pub(crate) const MAX_REGIONS: usize = 32;

/// Description of a memory region in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RegionDescription {
    /// Guest-physical address of the region's first byte.
    pub(crate) guest: u64,
    /// Length of the region in bytes.
    pub(crate) size: u64,
    /// Virtual address of the region's first byte in the front-end.
    pub(crate) user: u64,
    /// Offset of the region's first byte in its file.
    pub(crate) offset: u64,
}

/// Body of SET_VRING_ADDR: the parts of a ring, as virtual addresses of the front-end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RingAddress {
    /// Index of the ring: 2n is the receive queue of pair n, 2n + 1 its transmit queue.
    pub(crate) ring: u32,
    /// Flags; bit 0 (VHOST_VRING_F_LOG): writes to the used ring are logged.
    pub(crate) flags: u32,
    /// Address of the descriptor table.
    pub(crate) descriptors: u64,
    /// Address of the used ring.
    pub(crate) used: u64,
    /// Address of the available ring.
    pub(crate) available: u64,
    /// Guest-physical address of the used ring in the dirty log.
    pub(crate) log: u64,
}

/// A message from the front-end, after parsing.
#[derive(Debug)]
pub(crate) enum FrontEndRequest {
    /// Queries the virtio features that the device offers.
    GetFeatures,
    /// Sets the virtio features that the driver has accepted.
    SetFeatures(u64),
    /// SET_OWNER or the obsolete RESET_OWNER, which have no effect.
    Owner,
    /// Replaces all regions of the guest's memory.
    SetMemTable(Vec<(RegionDescription, OwnedFd)>),
    /// Sets the memory of the dirty log, which records writes to guest memory.
    SetLogBase {
        /// Size of the dirty log in bytes.
        size: u64,
        /// Offset of the dirty log in its file, in bytes.
        offset: u64,
        /// File that contains the dirty log.
        file: OwnedFd,
    },
    /// Sets a descriptor to signal after pages were marked. It has no effect, as QEMU never sends it.
    SetLogFd,
    /// Sets the number of descriptors of a ring.
    SetVringNum {
        /// Index of the ring: 2n is the receive queue of pair n, 2n + 1 its transmit queue.
        ring: u32,
        /// Number of descriptors of the ring.
        size: u32,
    },
    /// Sets the addresses of the three parts of a ring.
    SetVringAddr(RingAddress),
    /// Sets the position at which a ring continues.
    SetVringBase {
        /// Index of the ring: 2n is the receive queue of pair n, 2n + 1 its transmit queue.
        ring: u32,
        /// Number of available entries that were taken already.
        base: u32,
    },
    /// Stops a ring and queries its position.
    GetVringBase {
        /// Index of the ring: 2n is the receive queue of pair n, 2n + 1 its transmit queue.
        ring: u32,
    },
    /// Sets the descriptor that the driver signals (kick), and starts the ring.
    SetVringKick(RingFd),
    /// Sets the descriptor that signals the driver (call).
    SetVringCall(RingFd),
    /// Sets the descriptor that signals errors to the front-end.
    SetVringErr(RingFd),
    /// Queries the protocol features that the device offers.
    GetProtocolFeatures,
    /// Sets the protocol features that the front-end uses.
    SetProtocolFeatures(u64),
    /// Queries the number of queue pairs.
    GetQueueNum,
    /// Enables or disables a ring.
    SetVringEnable {
        /// Index of the ring: 2n is the receive queue of pair n, 2n + 1 its transmit queue.
        ring: u32,
        /// True if the ring becomes enabled.
        enable: bool,
    },
    /// Sets the MTU of the guest's interface in bytes.
    NetSetMtu(u64),
    /// Queries the limit on the number of memory regions.
    GetMaxMemSlots,
    /// Adds a memory region, which the descriptor's file contains.
    AddMemReg(RegionDescription, OwnedFd),
    /// Removes a region of the guest's memory.
    RemMemReg(RegionDescription),
}

/// Body of SET_VRING_KICK, SET_VRING_CALL or SET_VRING_ERR: a descriptor for a ring.
#[derive(Debug)]
pub(crate) struct RingFd {
    /// Index of the ring: 2n is the receive queue of pair n, 2n + 1 its transmit queue.
    pub(crate) ring: u32,
    /// The descriptor; `None` requests polling mode.
    pub(crate) fd: Option<OwnedFd>,
}

/// Reason why a message cannot be parsed. `code` is the number of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MalformedMessage {
    /// The version is not 1, or the flag REPLY is set.
    #[error("message {code} has invalid flags {flags:#x}")]
    Flags {
        /// Number of the message in its header (VHOST_USER_*).
        code: u32,
        /// Flags in the header of the message.
        flags: u32,
    },
    /// The message is unknown or needs a feature that is not offered.
    #[error("unknown message {0}")]
    Unknown(u32),
    /// The body of the message does not have the length that the message requires.
    #[error("message {code} has an invalid length of {size} bytes")]
    Size {
        /// Number of the message in its header (VHOST_USER_*).
        code: u32,
        /// Size of the body of the message in bytes.
        size: usize,
    },
    /// The message does not have the number of file descriptors that it requires.
    #[error("message {code} has an invalid number of descriptors, {count}")]
    Descriptors {
        /// Number of the message in its header (VHOST_USER_*).
        code: u32,
        /// Number of file descriptors that were received with the message.
        count: usize,
    },
    /// A value in the body is out of range.
    #[error("message {code} has invalid value {value:#x}")]
    Value {
        /// Number of the message in its header (VHOST_USER_*).
        code: u32,
        /// The value that is out of range.
        value: u64,
    },
}

impl MessageHeader {
    /// Parses and validates the header of a message.
    ///
    /// # Errors
    /// The version is wrong, the message is a reply, or its body is too long.
    pub(crate) fn parse(bytes: &[u8; HEADER]) -> Result<Self, MalformedMessage> {
        let header: Self = zerocopy::transmute!(*bytes);
        let Self { code, flags, size } = header;
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(MalformedMessage::Flags { code, flags });
        }
        let size = size as usize;
        if size > MAX_BODY {
            return Err(MalformedMessage::Size { code, size });
        }
        Ok(header)
    }

    /// Returns the header of the reply to message `code` with a body of `size` bytes.
    #[must_use]
    pub(crate) fn reply(code: u32, size: usize) -> Self {
        Self {
            code,
            flags: VERSION | REPLY,
            size: u32::try_from(size).expect("the body of a reply fits 32 bits"),
        }
    }

    /// Returns true if the front-end requests a reply (NEED_REPLY).
    #[must_use]
    pub(crate) fn needs_reply(self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}

impl FrontEndRequest {
    /// Parses the body of a message and the descriptors that were sent with it.
    ///
    /// # Errors
    /// The message is unknown, or its length or its number of descriptors is wrong.
    pub(crate) fn parse(code: u32, body: &[u8], fds: Vec<OwnedFd>) -> Result<Self, MalformedMessage> {
        let mut message = MessageParser { code, body, fds };
        let request = match code {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(message.take()?),
            3 | 4 => Self::Owner,
            5 => Self::SetMemTable(message.regions()?),
            6 => {
                let [size, offset] = message.take()?;
                let file = message.fd()?;
                Self::SetLogBase { size, offset, file }
            }
            7 => {
                message.fd()?;
                Self::SetLogFd
            }
            8 => {
                let [ring, size] = message.take()?;
                Self::SetVringNum { ring, size }
            }
            9 => Self::SetVringAddr(message.take()?),
            10 => {
                let [ring, base] = message.take()?;
                Self::SetVringBase { ring, base }
            }
            11 => {
                let [ring, _] = message.take::<[u32; 2]>()?;
                Self::GetVringBase { ring }
            }
            12 => Self::SetVringKick(message.ring_fd()?),
            13 => Self::SetVringCall(message.ring_fd()?),
            14 => Self::SetVringErr(message.ring_fd()?),
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(message.take()?),
            17 => Self::GetQueueNum,
            18 => {
                let [ring, enable] = message.take::<[u32; 2]>()?;
                let enable = match enable {
                    0 => false,
                    1 => true,
                    value => {
                        let value = value.into();
                        return Err(MalformedMessage::Value { code, value });
                    }
                };
                Self::SetVringEnable { ring, enable }
            }
            20 => Self::NetSetMtu(message.take()?),
            36 => Self::GetMaxMemSlots,
            37 => {
                let region = message.padded_region()?;
                Self::AddMemReg(region, message.fd()?)
            }
            38 => {
                let region = message.padded_region()?;
                // Specification: "For compatibility with existing incorrect implementations", a descriptor is accepted
                // and ignored.
                message.fds.clear();
                Self::RemMemReg(region)
            }
            code => return Err(MalformedMessage::Unknown(code)),
        };
        message.end()?;
        Ok(request)
    }
}

/// A message of which a part was parsed already.
struct MessageParser<'a> {
    code: u32,
    body: &'a [u8],
    fds: Vec<OwnedFd>,
}

impl MessageParser<'_> {
    /// Removes the next value from the body.
    fn take<T: FromBytes>(&mut self) -> Result<T, MalformedMessage> {
        let (value, rest) = T::read_from_prefix(self.body).map_err(|_| self.size())?;
        self.body = rest;
        Ok(value)
    }

    /// Removes and returns the only descriptor.
    fn fd(&mut self) -> Result<OwnedFd, MalformedMessage> {
        self.fds.pop().ok_or_else(|| self.descriptors())
    }

    fn ring_fd(&mut self) -> Result<RingFd, MalformedMessage> {
        let value: u64 = self.take()?;
        let Self { code, .. } = *self;
        if value & !0x1ff != 0 {
            return Err(MalformedMessage::Value { code, value });
        }
        // Bit 8 (VHOST_USER_VRING_NOFD_MASK): the message has no descriptor.
        let fd = (value & 0x100 == 0).then(|| self.fd()).transpose()?;
        let ring = (value & 0xff) as u32;
        Ok(RingFd { ring, fd })
    }

    fn regions(&mut self) -> Result<Vec<(RegionDescription, OwnedFd)>, MalformedMessage> {
        let [count, _padding] = self.take::<[u32; 2]>()?;
        if count as usize > MAX_REGIONS {
            let (code, value) = (self.code, count.into());
            return Err(MalformedMessage::Value { code, value });
        }
        if self.fds.len() != count as usize {
            return Err(self.descriptors());
        }
        std::mem::take(&mut self.fds)
            .into_iter()
            .map(|fd| Ok((self.take()?, fd)))
            .collect()
    }

    fn padded_region(&mut self) -> Result<RegionDescription, MalformedMessage> {
        let _padding: u64 = self.take()?;
        self.take()
    }

    /// Checks that neither bytes nor descriptors remain.
    fn end(self) -> Result<(), MalformedMessage> {
        if !self.body.is_empty() {
            return Err(self.size());
        }
        if !self.fds.is_empty() {
            return Err(self.descriptors());
        }
        Ok(())
    }

    fn size(&self) -> MalformedMessage {
        MalformedMessage::Size {
            code: self.code,
            size: self.body.len(),
        }
    }

    fn descriptors(&self) -> MalformedMessage {
        MalformedMessage::Descriptors {
            code: self.code,
            count: self.fds.len(),
        }
    }
}

const VERSION_MASK: u32 = 3;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
