//! The envelope of a state: what precedes the records.

use super::{MOST_BYTES, STATE_VERSION, StateError};
use crate::Instant;

/// First octets of a state.
const MAGIC: [u8; 8] = *b"ponteng\0";

/// Number of octets in front of the records: magic, version, length of the records, time.
const LEN: usize = MAGIC.len() + 4 + 8 + 8;

/// Oldest version that is read.
const OLDEST: u32 = if STATE_VERSION > 1 { STATE_VERSION - 1 } else { 1 };

/// The records of a state, with the version and the time at which they were written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope<'b> {
    pub(super) version: u32,
    pub(super) at: Instant,
    pub(super) records: &'b [u8],
}

/// Returns a state with these records.
pub(super) fn seal(records: &[u8], now: Instant) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LEN + records.len());
    bytes.extend(MAGIC);
    bytes.extend(STATE_VERSION.to_le_bytes());
    bytes.extend((records.len() as u64).to_le_bytes());
    bytes.extend(now.0.to_le_bytes());
    bytes.extend(records);
    bytes
}

/// Checks the envelope of a state.
pub(super) fn open(bytes: &[u8]) -> Result<Envelope<'_>, StateError> {
    if bytes.len() > MOST_BYTES {
        return Err(StateError::Limit);
    }
    let rest = bytes.strip_prefix(&MAGIC).ok_or(StateError::Magic)?;
    let (version, rest) = rest.split_first_chunk().ok_or(StateError::Truncated)?;
    let version = u32::from_le_bytes(*version);
    if !(OLDEST..=STATE_VERSION).contains(&version) {
        return Err(StateError::Version(version));
    }
    let (len, rest) = rest.split_first_chunk().ok_or(StateError::Truncated)?;
    let (at, records) = rest.split_first_chunk().ok_or(StateError::Truncated)?;
    match (records.len() as u64).cmp(&u64::from_le_bytes(*len)) {
        core::cmp::Ordering::Less => Err(StateError::Truncated),
        core::cmp::Ordering::Greater => Err(StateError::Malformed),
        core::cmp::Ordering::Equal => Ok(Envelope {
            version,
            at: Instant(u64::from_le_bytes(*at)),
            records,
        }),
    }
}
