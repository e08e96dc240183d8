//! Parsing of a front-end's messages: bytes and descriptors to types.
//!
//! Names and layouts are those of the vhost-user specification (QEMU's docs/interop/vhost-user.rst). Numbers are in
//! host byte order.

use std::os::fd::OwnedFd;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Header {
    /// The message.
    pub(crate) code: u32,
    /// Version in bits 0 and 1, then REPLY and NEED_REPLY.
    pub(crate) flags: u32,
    /// Bytes of the body.
    pub(crate) size: u32,
}

/// Bytes of a header.
pub(crate) const HEADER: usize = size_of::<Header>();

/// Bytes of the longest body: a memory table with the most regions.
pub(crate) const MAX_BODY: usize = 8 + MAX_REGIONS * size_of::<Region>();

/// Maximum number of regions, and so of descriptors, in one message. The specification allows 8; rust-vmm's front-ends
/// may send this many.
pub(crate) const MAX_REGIONS: usize = 32;

/// A part of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Region {
    /// Guest-physical address of its first byte.
    pub(crate) guest: u64,
    /// Length in bytes.
    pub(crate) size: u64,
    /// Front-end virtual address of its first byte.
    pub(crate) user: u64,
    /// Offset in its file.
    pub(crate) offset: u64,
}

/// Addresses of a ring's parts, as the front-end's virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RingAddress {
    /// The ring.
    pub(crate) ring: u32,
    /// Bit 0: writes to the used ring are logged.
    pub(crate) flags: u32,
    /// The descriptor table.
    pub(crate) descriptors: u64,
    /// The used ring.
    pub(crate) used: u64,
    /// The available ring.
    pub(crate) available: u64,
    /// Guest-physical address of the used ring, for the log.
    pub(crate) log: u64,
}

/// A message from the front-end.
#[derive(Debug)]
pub(crate) enum Request {
    /// Query the virtio features offered.
    GetFeatures,
    /// Set the virtio features accepted by the driver.
    SetFeatures(u64),
    /// SET_OWNER, or the obsolete RESET_OWNER: no effect.
    Owner,
    /// Replace all of the guest's memory.
    SetMemTable(Vec<(Region, OwnedFd)>),
    /// Set the dirty log.
    SetLogBase {
        /// Bytes of the log.
        size: u64,
        /// Offset in its file.
        offset: u64,
        /// The file.
        file: OwnedFd,
    },
    /// Set the descriptor to signal after marking; QEMU never sends this. No effect.
    SetLogFd,
    /// Set a ring's size.
    SetVringNum {
        /// The ring.
        ring: u32,
        /// Number of descriptors.
        size: u32,
    },
    /// Set the addresses of a ring.
    SetVringAddr(RingAddress),
    /// Set the position of a ring.
    SetVringBase {
        /// The ring.
        ring: u32,
        /// Available entries taken.
        base: u32,
    },
    /// Stop a ring and return its position.
    GetVringBase {
        /// The ring.
        ring: u32,
    },
    /// Set the descriptor that the driver signals, and start the ring.
    SetVringKick(RingFd),
    /// Set the descriptor that signals the driver.
    SetVringCall(RingFd),
    /// Set the descriptor that signals errors.
    SetVringErr(RingFd),
    /// Query the protocol features offered.
    GetProtocolFeatures,
    /// Set the protocol features that the front-end uses.
    SetProtocolFeatures(u64),
    /// Query the number of queues.
    GetQueueNum,
    /// Enable or disable a ring.
    SetVringEnable {
        /// The ring.
        ring: u32,
        /// The new state.
        enable: bool,
    },
    /// Set the MTU that the guest uses.
    NetSetMtu(u64),
    /// Query the maximum number of memory regions.
    GetMaxMemSlots,
    /// Add a region of memory.
    AddMemReg(Region, OwnedFd),
    /// Remove a region of memory.
    RemMemReg(Region),
}

/// A descriptor for a ring; `None` asks for polling.
#[derive(Debug)]
pub(crate) struct RingFd {
    /// The ring.
    pub(crate) ring: u32,
    /// The descriptor.
    pub(crate) fd: Option<OwnedFd>,
}

/// The reason why a message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Another version than 1, or the REPLY flag.
    #[error("message {code} has invalid flags {flags:#x}")]
    Flags {
        /// The message.
        code: u32,
        /// Its flags.
        flags: u32,
    },
    /// A message that no offered feature allows.
    #[error("unknown message {0}")]
    Unknown(u32),
    /// The body's length is wrong.
    #[error("message {code} has {size} bytes")]
    Size {
        /// The message.
        code: u32,
        /// Bytes of the body.
        size: usize,
    },
    /// The number of descriptors is wrong.
    #[error("message {code} has {count} descriptors")]
    Descriptors {
        /// The message.
        code: u32,
        /// Number of descriptors received.
        count: usize,
    },
    /// A number is out of range.
    #[error("message {code} has invalid value {value:#x}")]
    Value {
        /// The message.
        code: u32,
        /// The number.
        value: u64,
    },
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// The version is wrong, the message is a reply, or its body is too long.
    pub(crate) fn parse(bytes: &[u8; HEADER]) -> Result<Self, Malformed> {
        let header: Self = zerocopy::transmute!(*bytes);
        let Self { code, flags, size } = header;
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(Malformed::Flags { code, flags });
        }
        let size = size as usize;
        if size > MAX_BODY {
            return Err(Malformed::Size { code, size });
        }
        Ok(header)
    }

    /// Returns the header of the reply to message `code`.
    #[must_use]
    pub(crate) fn reply(code: u32, size: usize) -> Self {
        Self {
            code,
            flags: VERSION | REPLY,
            size: u32::try_from(size).expect("replies are short"),
        }
    }

    /// Returns whether the front-end requests a reply.
    #[must_use]
    pub(crate) fn needs_reply(self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}

impl Request {
    /// Parses the body of a message and the descriptors that came with it.
    ///
    /// # Errors
    /// The message is unknown, or its length or number of descriptors is wrong.
    pub(crate) fn parse(code: u32, body: &[u8], fds: Vec<OwnedFd>) -> Result<Self, Malformed> {
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
                        return Err(Malformed::Value { code, value });
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
                // "For compatibility with existing incorrect implementations": a descriptor is accepted and ignored.
                message.fds.clear();
                Self::RemMemReg(region)
            }
            code => return Err(Malformed::Unknown(code)),
        };
        message.end()?;
        Ok(request)
    }
}

/// A message being parsed.
struct MessageParser<'a> {
    code: u32,
    body: &'a [u8],
    fds: Vec<OwnedFd>,
}

impl MessageParser<'_> {
    /// Takes the next value off the body.
    fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.body).map_err(|_| self.size())?;
        self.body = rest;
        Ok(value)
    }

    /// Takes the only descriptor.
    fn fd(&mut self) -> Result<OwnedFd, Malformed> {
        self.fds.pop().ok_or_else(|| self.descriptors())
    }

    fn ring_fd(&mut self) -> Result<RingFd, Malformed> {
        let value: u64 = self.take()?;
        let Self { code, .. } = *self;
        if value & !0x1ff != 0 {
            return Err(Malformed::Value { code, value });
        }
        // Bit 8: no descriptor.
        let fd = (value & 0x100 == 0).then(|| self.fd()).transpose()?;
        let ring = (value & 0xff) as u32;
        Ok(RingFd { ring, fd })
    }

    fn regions(&mut self) -> Result<Vec<(Region, OwnedFd)>, Malformed> {
        let [count, _padding] = self.take::<[u32; 2]>()?;
        if count as usize > MAX_REGIONS {
            let (code, value) = (self.code, count.into());
            return Err(Malformed::Value { code, value });
        }
        if self.fds.len() != count as usize {
            return Err(self.descriptors());
        }
        std::mem::take(&mut self.fds)
            .into_iter()
            .map(|fd| Ok((self.take()?, fd)))
            .collect()
    }

    fn padded_region(&mut self) -> Result<Region, Malformed> {
        let _padding: u64 = self.take()?;
        self.take()
    }

    /// Checks that nothing is left.
    fn end(self) -> Result<(), Malformed> {
        if !self.body.is_empty() {
            return Err(self.size());
        }
        if !self.fds.is_empty() {
            return Err(self.descriptors());
        }
        Ok(())
    }

    fn size(&self) -> Malformed {
        Malformed::Size {
            code: self.code,
            size: self.body.len(),
        }
    }

    fn descriptors(&self) -> Malformed {
        Malformed::Descriptors {
            code: self.code,
            count: self.fds.len(),
        }
    }
}

const VERSION_MASK: u32 = 3;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
