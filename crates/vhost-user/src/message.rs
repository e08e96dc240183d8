//! Messages of a front-end: bytes and descriptors to types, once, at the door.
//!
//! Names and layouts are of the vhost-user specification (QEMU's docs/interop/vhost-user.rst). Numbers are in the byte
//! order of the machine that both ends run on.

use std::os::fd::OwnedFd;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A message's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Header {
    /// Which message.
    pub(crate) code: u32,
    /// Version in bits 0 and 1, then REPLY and NEED_REPLY.
    pub(crate) flags: u32,
    /// Bytes that follow.
    pub(crate) size: u32,
}

/// Bytes of a header.
pub(crate) const HEADER: usize = size_of::<Header>();

/// Bytes of the longest body: a memory table with all its regions.
pub(crate) const MAX_BODY: usize = 8 + MAX_REGIONS * size_of::<Region>();

/// Regions, and so descriptors, that one message may carry. The specification allows 8; rust-vmm's front-ends may send
/// this many.
pub(crate) const MAX_REGIONS: usize = 32;

/// A part of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Region {
    /// Its first byte, as the guest's physical address.
    pub(crate) guest: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Its first byte, as the front-end's virtual address.
    pub(crate) user: u64,
    /// Where it begins in its file.
    pub(crate) offset: u64,
}

/// Where a ring's parts lie, as the front-end's virtual addresses.
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
    /// The used ring, as the guest's physical address: for the log.
    pub(crate) log: u64,
}

/// What a front-end asks for.
#[derive(Debug)]
pub(crate) enum Request {
    /// Which virtio features there are.
    GetFeatures,
    /// Which of them the driver uses.
    SetFeatures(u64),
    /// The session begins, or (long obsolete) ends: means nothing here.
    Owner,
    /// All of the guest's memory.
    SetMemTable(Vec<(Region, OwnedFd)>),
    /// Where to mark what was written.
    SetLogBase {
        /// Bytes of the log.
        size: u64,
        /// Where it begins in its file.
        offset: u64,
        /// Its file.
        file: OwnedFd,
    },
    /// What to signal when something was marked; QEMU never does so.
    SetLogFd,
    /// A ring's size.
    SetVringNum {
        /// The ring.
        ring: u32,
        /// Descriptors.
        size: u32,
    },
    /// Where a ring lies.
    SetVringAddr(RingAddress),
    /// Where a ring goes on.
    SetVringBase {
        /// The ring.
        ring: u32,
        /// Available entries taken.
        base: u32,
    },
    /// Stop a ring, and say where it got to.
    GetVringBase {
        /// The ring.
        ring: u32,
    },
    /// What the driver signals; the ring starts.
    SetVringKick(RingFd),
    /// What signals the driver.
    SetVringCall(RingFd),
    /// What tells of errors.
    SetVringErr(RingFd),
    /// Which features of the protocol there are.
    GetProtocolFeatures,
    /// Which of them the front-end uses.
    SetProtocolFeatures(u64),
    /// How many queues there are.
    GetQueueNum,
    /// Serve a ring, or leave it alone.
    SetVringEnable {
        /// The ring.
        ring: u32,
        /// Serve it.
        enable: bool,
    },
    /// The MTU that the guest was told.
    NetSetMtu(u64),
    /// How many regions there may be.
    GetMaxMemSlots,
    /// One more part of the guest's memory.
    AddMemReg(Region, OwnedFd),
    /// One part less.
    RemMemReg(Region),
}

/// A descriptor for a ring; none is asking to be polled.
#[derive(Debug)]
pub(crate) struct RingFd {
    /// The ring.
    pub(crate) ring: u32,
    /// The descriptor.
    pub(crate) fd: Option<OwnedFd>,
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Not version 1, or a reply where none is due.
    #[error("flags {flags:#x} on message {code}")]
    Flags {
        /// Which message.
        code: u32,
        /// Its flags.
        flags: u32,
    },
    /// A message that no feature on offer leads to.
    #[error("unknown message {0}")]
    Unknown(u32),
    /// More or fewer bytes than the message has.
    #[error("message {code} with {size} bytes")]
    Size {
        /// Which message.
        code: u32,
        /// Bytes that follow its header.
        size: usize,
    },
    /// More or fewer descriptors than the message has.
    #[error("message {code} with {count} descriptors")]
    Descriptors {
        /// Which message.
        code: u32,
        /// Descriptors that came with it.
        count: usize,
    },
    /// A number that means nothing there.
    #[error("message {code} with {value:#x}")]
    Value {
        /// Which message.
        code: u32,
        /// The number.
        value: u64,
    },
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// It is of another version, a reply, or of a message longer than any.
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

    /// The header of the answer to message `code`.
    #[must_use]
    pub(crate) fn reply(code: u32, size: usize) -> Self {
        Self {
            code,
            flags: VERSION | REPLY,
            size: u32::try_from(size).expect("replies are short"),
        }
    }

    /// Whether the front-end waits to hear how it went.
    #[must_use]
    pub(crate) fn needs_reply(self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}

impl Request {
    /// Reads a message: its body and the descriptors that came with it.
    ///
    /// # Errors
    /// It is none that this device knows, or not as long, or not with as many descriptors, as it has to be.
    pub(crate) fn parse(code: u32, body: &[u8], fds: Vec<OwnedFd>) -> Result<Self, Malformed> {
        let mut message = Message { code, body, fds };
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
                // "For compatibility with existing incorrect implementations": a descriptor may come along.
                message.fds.clear();
                Self::RemMemReg(region)
            }
            code => return Err(Malformed::Unknown(code)),
        };
        message.end()?;
        Ok(request)
    }
}

/// A message while it is taken apart.
struct Message<'a> {
    code: u32,
    body: &'a [u8],
    fds: Vec<OwnedFd>,
}

impl Message<'_> {
    /// The body's next part.
    fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.body).map_err(|_| self.size())?;
        self.body = rest;
        Ok(value)
    }

    /// The one descriptor.
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

    /// Nothing may be left.
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
