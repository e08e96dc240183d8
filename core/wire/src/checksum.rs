//! The Internet checksum (RFC 1071): ones' complement sums, pseudo-header sums, and completion of partial checksums.

use core::net::{IpAddr, Ipv6Addr};

use crate::vnet::Checksum;

#[cfg(test)]
mod tests;

/// Ones' complement sum of bytes (RFC 1071), before the complement is taken.
///
/// Bytes may be added in parts of any length; a part of odd length does not change the result. An ICMPv6 checksum, for
/// example, is `Sum::pseudo(source, destination, protocol::ICMPV6, len).add(message).finish()` over a message whose
/// checksum field is zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Sum of the bytes as 16-bit words in host byte order; byte order does not change a sum (RFC 1071 section 2 (B)).
    total: u64,
    /// True if an odd number of bytes was added, so that the next byte is the second byte of a 16-bit word.
    odd: bool,
}

impl Sum {
    /// Returns the sum of zero bytes, which is 0.
    #[must_use]
    pub const fn new() -> Self {
        Self { total: 0, odd: false }
    }

    /// Returns the sum of a TCP, UDP or ICMPv6 pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1) for an
    /// upper-layer packet of `len` bytes, header included. If the addresses are of different families, the IPv4 address
    /// is converted to an IPv4-mapped IPv6 address.
    #[must_use]
    pub fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> Self {
        let sum = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Self::new().add(&source.octets()).add(&destination.octets())
            }
            (source, destination) => Self::new()
                .add(&v6(source).octets())
                .add(&v6(destination).octets()),
        };
        // The pseudo-headers of IPv4 and IPv6 have the same sum: length and protocol are whole words between zeros.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a packet's length has 32 bits at most"
        )]
        let len = len as u32;
        sum.add(&len.to_be_bytes()).add(&[0, protocol])
    }

    /// Returns the sum with the bytes of `bytes` added behind those that were added before.
    #[must_use]
    #[expect(
        clippy::should_implement_trait,
        reason = "the operand is bytes, not another sum"
    )]
    #[inline]
    pub fn add(self, bytes: &[u8]) -> Self {
        let run = sum(bytes);
        // Bytes that begin in the middle of a word are swapped (RFC 1071 section 2 (B)).
        let run = if self.odd {
            u64::from(fold(run).swap_bytes())
        } else {
            run
        };
        Self {
            // Less than 2^34, however many bytes are added, because the previous total is folded to 16 bits.
            total: u64::from(fold(self.total)) + run,
            odd: self.odd ^ (bytes.len() % 2 == 1),
        }
    }

    /// Returns the sum without the final complement, which is the content of a checksum field with a partial checksum.
    #[must_use]
    #[inline]
    pub fn partial(self) -> u16 {
        u16::from_be(fold(self.total))
    }

    /// Returns the checksum, which is the complement of the sum. For bytes that include their correct checksum the
    /// result is 0.
    #[must_use]
    #[inline]
    pub fn finish(self) -> u16 {
        !self.partial()
    }
}

/// Error of [`complete`]: the checksum field of a partial checksum is not within the header bytes passed to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checksum field at {start}+{offset} is not within the first {len} bytes")]
pub struct MisplacedChecksumField {
    /// Offset of the first byte that the checksum covers, from the frame's first byte.
    pub start: u16,
    /// Offset of the checksum field, from `start`.
    pub offset: u16,
    /// Number of header bytes that were passed to [`complete`].
    pub len: usize,
}

/// Completes the partial checksum of a frame: `head` is the frame's first bytes, `payload` the rest of the frame in
/// order.
///
/// A checksum of 0 is written as 0xffff, which is equal in ones' complement, because a UDP checksum field of 0 means
/// that there is no checksum (RFC 768), and IPv6 requires one.
///
/// # Errors
/// The checksum field is not in `head`; then nothing is written.
pub fn complete<'a>(
    head: &mut [u8],
    checksum: Checksum,
    payload: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(), MisplacedChecksumField> {
    let Checksum::Partial { start, offset } = checksum else {
        return Ok(());
    };
    let place = usize::from(start) + usize::from(offset);
    let len = head.len();
    if place + 2 > len {
        return Err(MisplacedChecksumField { start, offset, len });
    }
    let sum = payload
        .into_iter()
        .fold(Sum::new().add(&head[start.into()..]), |sum, part| sum.add(part));
    let checksum = match sum.finish() {
        0 => 0xffff,
        checksum => checksum,
    };
    head[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// Converts an IPv4 address to an IPv4-mapped IPv6 address; returns an IPv6 address unchanged.
pub(crate) fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Returns the sum of the 32-bit words of `bytes`, folded once to less than 2^33. A trailing odd byte is padded with
/// zeros.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    // Sixteen independent sums, so that the compiler generates vector additions.
    let (blocks, rest) = bytes.as_chunks::<64>();
    let mut total = 0;
    if !blocks.is_empty() {
        let mut lanes = [0_u64; LANES];
        for block in blocks {
            let (words, _) = block.as_chunks::<4>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane += u64::from(u32::from_ne_bytes(*word));
            }
        }
        total = lanes.iter().map(|lane| once(*lane)).sum();
    }
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    once(total + u64::from(u32::from_ne_bytes(last)))
}

/// Folds a ones' complement sum of 64 bits to 33 bits.
#[inline]
const fn once(sum: u64) -> u64 {
    (sum >> 32) + (sum & 0xffff_ffff)
}

/// Folds a ones' complement sum of 64 bits to 16 bits.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the last step leaves 16 bits")]
const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff); // 33 bits
    let sum = (sum >> 16) + (sum & 0xffff); // 18 bits
    let sum = (sum >> 16) + (sum & 0xffff); // 17 bits
    ((sum >> 16) + (sum & 0xffff)) as u16
}

/// Number of 32-bit words in a block of 64 bytes, each of which is added to a sum of its own.
const LANES: usize = 16;
