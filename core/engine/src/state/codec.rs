//! The encoding of records: integers of fixed size, least significant byte first; lists behind their number of elements;
//! optional values behind a byte. A record has no field names: the version of the state determines its fields.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::num::NonZeroU32;
use core::time::Duration;
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use pontoon_wire::Mac;
use pontoon_wire::vnet::{Checksum, Offload, Segmentation};

use super::StateError;
use crate::pool::Pool;
use crate::{FlowId, Instant, Token};

/// A value that a state contains.
pub(crate) trait Record: Sized {
    /// Appends the value.
    fn save(&self, to: &mut Writer<'_>);

    /// Reads a value. The result is not consistent with other values yet.
    fn load(from: &mut Reader<'_>) -> Result<Self, StateError>;
}

/// The state that is being written.
#[derive(Debug)]
pub(crate) struct Writer<'p> {
    bytes: Vec<u8>,
    pool: &'p Pool,
}

impl<'p> Writer<'p> {
    pub(crate) const fn new(pool: &'p Pool) -> Self {
        Self {
            bytes: Vec::new(),
            pool,
        }
    }

    /// Returns the pool, whose blocks belong to the values that are written.
    pub(crate) const fn pool(&self) -> &'p Pool {
        self.pool
    }

    pub(crate) fn put<T: Record>(&mut self, value: &T) {
        value.save(self);
    }

    /// Appends octets without their number.
    pub(crate) fn octets(&mut self, octets: &[u8]) {
        self.bytes.extend_from_slice(octets);
    }

    /// Appends the number of elements of a list.
    pub(crate) fn count(&mut self, count: usize) {
        self.put(&u32::try_from(count).expect("lists have limits far below 2^32"));
    }

    pub(crate) fn list<'a, T: Record + 'a>(&mut self, list: impl ExactSizeIterator<Item = &'a T>) {
        self.count(list.len());
        list.for_each(|value| self.put(value));
    }

    /// Appends what `write` appends, behind its length, so that a reader can skip it.
    pub(crate) fn frame(&mut self, write: impl FnOnce(&mut Self)) {
        let begin = self.bytes.len();
        self.put(&0_u32);
        write(self);
        let len = self.bytes.len() - begin - LENGTH;
        let len = u32::try_from(len).expect("a record is shorter than the pool");
        self.bytes[begin..begin + LENGTH].copy_from_slice(&len.to_le_bytes());
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// A state that is being read, which is untrusted.
#[derive(Debug)]
pub(crate) struct Reader<'b> {
    bytes: &'b [u8],
    version: u32,
    /// Difference between the clocks of the reading and the writing engine.
    shift: i64,
    pool: &'b mut Pool,
}

impl<'b> Reader<'b> {
    pub(crate) const fn new(bytes: &'b [u8], version: u32, shift: i64, pool: &'b mut Pool) -> Self {
        Self {
            bytes,
            version,
            shift,
            pool,
        }
    }

    /// Returns the version of the state, which determines the fields of its records.
    #[cfg_attr(not(test), expect(dead_code, reason = "no field was added since the first version"))]
    pub(crate) const fn version(&self) -> u32 {
        self.version
    }

    /// Returns the pool, from which values take their blocks.
    pub(crate) const fn pool(&mut self) -> &mut Pool {
        self.pool
    }

    pub(crate) fn get<T: Record>(&mut self) -> Result<T, StateError> {
        T::load(self)
    }

    /// Reads the next `len` octets.
    pub(crate) fn octets(&mut self, len: usize) -> Result<&'b [u8], StateError> {
        let (octets, rest) = self.bytes.split_at_checked(len).ok_or(StateError::Truncated)?;
        self.bytes = rest;
        Ok(octets)
    }

    /// Reads the number of elements of a list, which is at most `most`.
    pub(crate) fn count(&mut self, most: usize) -> Result<usize, StateError> {
        let count = self.get::<u32>()? as usize;
        match count <= most {
            true => Ok(count),
            false => Err(StateError::Limit),
        }
    }

    pub(crate) fn list<T: Record>(&mut self, most: usize) -> Result<Vec<T>, StateError> {
        let count = self.count(most)?;
        (0..count).map(|_| self.get()).collect()
    }

    /// Reads a part that [`Writer::frame`] has written. `read` has to read all of it, unless it returns `None`.
    pub(crate) fn frame<R>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Option<R>, StateError>,
    ) -> Result<Option<R>, StateError> {
        let len = self.get::<u32>()? as usize;
        let octets = self.octets(len)?;
        let behind = core::mem::replace(&mut self.bytes, octets);
        let value = read(self);
        let rest = core::mem::replace(&mut self.bytes, behind);
        match value? {
            Some(_) if !rest.is_empty() => Err(StateError::Malformed),
            value => Ok(value),
        }
    }

    /// Checks that everything was read.
    pub(crate) const fn finish(&self) -> Result<(), StateError> {
        match self.bytes.is_empty() {
            true => Ok(()),
            false => Err(StateError::Malformed),
        }
    }
}

/// Returns `Ok` if `is_sound`, or else the error that the state contradicts itself.
pub(crate) const fn check(is_sound: bool) -> Result<(), StateError> {
    match is_sound {
        true => Ok(()),
        false => Err(StateError::Inconsistent),
    }
}

macro_rules! integers {
    ($($Int:ident)*) => {$(
        impl Record for $Int {
            fn save(&self, to: &mut Writer<'_>) {
                to.octets(&self.to_le_bytes());
            }

            fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
                let octets = from.octets(size_of::<Self>())?;
                Ok(Self::from_le_bytes(octets.try_into().expect("of this length")))
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 i32);

impl Record for usize {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&(*self as u64));
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        Self::try_from(from.get::<u64>()?).map_err(|_| StateError::Malformed)
    }
}

impl Record for NonZeroU32 {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&self.get());
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        Self::new(from.get()?).ok_or(StateError::Malformed)
    }
}

impl Record for bool {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&u8::from(*self));
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        match from.get::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(StateError::Malformed),
        }
    }
}

impl<T: Record> Record for Option<T> {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&self.is_some());
        if let Some(value) = self {
            to.put(value);
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        from.get::<bool>()?.then(|| from.get()).transpose()
    }
}

impl<T: Record> Record for Box<T> {
    fn save(&self, to: &mut Writer<'_>) {
        (**self).save(to);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        from.get().map(Self::new)
    }
}

impl<A: Record, B: Record> Record for (A, B) {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&self.0);
        to.put(&self.1);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        Ok((from.get()?, from.get()?))
    }
}

impl<T: Record, const N: usize> Record for [T; N] {
    fn save(&self, to: &mut Writer<'_>) {
        self.iter().for_each(|value| to.put(value));
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let list = (0..N).map(|_| from.get()).collect::<Result<ArrayVec<T, N>, _>>()?;
        list.into_inner().map_err(|_| StateError::Malformed)
    }
}

impl<T: Record, const N: usize> Record for ArrayVec<T, N> {
    fn save(&self, to: &mut Writer<'_>) {
        to.list(self.iter());
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let count = from.count(N)?;
        (0..count).map(|_| from.get()).collect()
    }
}

/// The number of elements is limited by the length of the state. Owners of lists check their own limits.
impl<T: Record> Record for Vec<T> {
    fn save(&self, to: &mut Writer<'_>) {
        to.list(self.iter());
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        from.list(usize::MAX)
    }
}

impl<T: Record> Record for VecDeque<T> {
    fn save(&self, to: &mut Writer<'_>) {
        to.list(self.iter());
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        from.get::<Vec<T>>().map(Self::from)
    }
}

impl Record for IpAddr {
    fn save(&self, to: &mut Writer<'_>) {
        match self {
            Self::V4(address) => {
                to.put(&4_u8);
                to.put(&address.octets());
            }
            Self::V6(address) => {
                to.put(&6_u8);
                to.put(&address.octets());
            }
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        match from.get::<u8>()? {
            4 => Ok(Ipv4Addr::from(from.get::<[u8; 4]>()?).into()),
            6 => Ok(Ipv6Addr::from(from.get::<[u8; 16]>()?).into()),
            _ => Err(StateError::Malformed),
        }
    }
}

/// The engine uses no flow labels and scopes.
impl Record for SocketAddr {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&self.ip());
        to.put(&self.port());
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        Ok(Self::new(from.get()?, from.get()?))
    }
}

impl Record for Mac {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&self.0);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        from.get().map(Self)
    }
}

impl Record for Duration {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&u64::try_from(self.as_nanos()).unwrap_or(u64::MAX));
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        from.get().map(Self::from_nanos)
    }
}

/// Times are moved by the difference of the clocks. The first and the last instant have a meaning of their own and stay.
impl Record for Instant {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&self.0);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let at = from.get()?;
        Ok(match at {
            0 | u64::MAX => Self(at),
            _ => Self(at.saturating_add_signed(from.shift)),
        })
    }
}

impl Record for Offload {
    fn save(&self, to: &mut Writer<'_>) {
        let Self { checksum, segmentation } = *self;
        to.put(&match checksum {
            Checksum::Complete => None,
            Checksum::Partial { start, offset } => Some((start, offset)),
        });
        let (code, size) = match segmentation {
            Segmentation::Whole => (0, 0),
            Segmentation::Tcp4 { mss } => (1, mss),
            Segmentation::Tcp6 { mss } => (2, mss),
            Segmentation::Udp { len } => (3, len),
        };
        to.put::<(u8, u16)>(&(code, size));
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let checksum = match from.get()? {
            None => Checksum::Complete,
            Some((start, offset)) => Checksum::Partial { start, offset },
        };
        let segmentation = match from.get::<(u8, u16)>()? {
            (0, 0) => Segmentation::Whole,
            (1, mss @ 1..) => Segmentation::Tcp4 { mss },
            (2, mss @ 1..) => Segmentation::Tcp6 { mss },
            (3, len @ 1..) => Segmentation::Udp { len },
            _ => return Err(StateError::Malformed),
        };
        Ok(Self { checksum, segmentation })
    }
}

impl Record for FlowId {
    fn save(&self, to: &mut Writer<'_>) {
        to.put(&Token::from(*self).0);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        Token(from.get()?).flow().ok_or(StateError::Malformed)
    }
}

/// Number of octets of the length in front of a part.
const LENGTH: usize = size_of::<u32>();
