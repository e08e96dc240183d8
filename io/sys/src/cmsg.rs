//! Encoding and decoding of control messages (cmsg(3)): length, level, type, then data padded to the word size.

use crate::address::array;

/// Size of `cmsghdr` in bytes: `cmsg_len` is a `size_t`, level and type are ints.
const HEADER: usize = size_of::<usize>() + 8;

const fn align(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// Returns the bytes that a control message with `len` bytes of data occupies (`CMSG_SPACE`).
#[must_use]
pub const fn space(len: usize) -> usize {
    HEADER + align(len)
}

/// Encoder of the control messages of one sendmsg(2), at most `N` bytes in all.
#[derive(Debug)]
pub struct ControlEncoder<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> ControlEncoder<N> {
    /// Creates an encoder without control messages.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }

    /// Appends a control message of the given level and type.
    ///
    /// # Panics
    /// If the message does not fit: `N` has to be the sum of [`space`] over all messages that the caller appends.
    pub fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let room = &mut self.bytes[self.len..];
        room[..size_of::<usize>()].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        room[size_of::<usize>()..][..4].copy_from_slice(&level.to_ne_bytes());
        room[size_of::<usize>() + 4..][..4].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..][..data.len()].copy_from_slice(data);
        self.len += space(data.len());
        assert!(
            self.len <= N,
            "{} bytes of control messages, room for {N}",
            self.len
        );
    }

    /// Returns the encoded control messages.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const N: usize> Default for ControlEncoder<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// A control message that was received with recvmsg(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlMessage<'a> {
    /// Level of the message (`cmsg_level`): the protocol, for example `SOL_IP`.
    pub level: i32,
    /// Type of the message within its level (`cmsg_type`).
    pub kind: i32,
    /// Data of the message, without padding.
    pub data: &'a [u8],
}

impl ControlMessage<'_> {
    /// Returns the first four bytes of the data as an int; `None` if there are fewer.
    #[must_use]
    pub fn int(&self) -> Option<i32> {
        Some(i32::from_ne_bytes(array(self.data, 0)?))
    }
}

/// Returns the control messages in `bytes`, up to the first truncated message.
pub fn decode(mut bytes: &[u8]) -> impl Iterator<Item = ControlMessage<'_>> {
    std::iter::from_fn(move || {
        let len = usize::from_ne_bytes(array(bytes, 0)?);
        let level = i32::from_ne_bytes(array(bytes, size_of::<usize>())?);
        let kind = i32::from_ne_bytes(array(bytes, size_of::<usize>() + 4)?);
        let data = bytes.get(HEADER..len)?;
        bytes = bytes.get(align(len)..).unwrap_or_default();
        Some(ControlMessage { level, kind, data })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_messages_equal_the_encoded_ones() {
        let mut encoder = ControlEncoder::<{ space(2) + space(20) }>::new();
        encoder.push(17, 103, &1400_u16.to_ne_bytes());
        encoder.push(41, 50, &[7; 20]);
        let messages: Vec<_> = decode(encoder.bytes()).collect();
        assert_eq!(messages.len(), 2);
        assert_eq!(
            (messages[0].level, messages[0].kind, messages[0].data),
            (17, 103, &[120, 5][..])
        );
        assert_eq!(
            (messages[1].level, messages[1].kind, messages[1].data),
            (41, 50, &[7; 20][..])
        );
    }

    #[test]
    fn encoded_layout_is_that_of_the_c_library() {
        // SAFETY: both functions of libc compute a number from their argument and access no memory.
        let (space_of_2, len_of_2) = unsafe { (libc::CMSG_SPACE(2), libc::CMSG_LEN(2)) };
        assert_eq!(space(2), usize::try_from(space_of_2).unwrap());
        assert_eq!(HEADER + 2, usize::try_from(len_of_2).unwrap());
        assert_eq!(HEADER, size_of::<libc::cmsghdr>());
    }

    #[test]
    fn decode_ends_at_malformed_messages() {
        let mut encoder = ControlEncoder::<64>::new();
        encoder.push(1, 2, &[3; 8]);
        for cut in 0..encoder.bytes().len() {
            assert_eq!(decode(&encoder.bytes()[..cut]).count(), 0, "{cut}");
        }
        assert_eq!(decode(&[0xff; 64]).count(), 0);
        assert_eq!(decode(&[0; 64]).count(), 0);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn push_panics_on_overflow() {
        ControlEncoder::<16>::new().push(1, 2, &[0; 4]);
    }
}
