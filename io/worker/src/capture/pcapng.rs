//! Encoder of a pcapng file (draft-ietf-opsawg-pcapng) with one section and one interface, in little-endian order.

use std::time::SystemTime;

use pontoon_link::capturing::Way;

/// Counts of the interface between two times: an Interface Statistics Block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statistics {
    pub(crate) begin: SystemTime,
    pub(crate) end: SystemTime,
    /// Number of frames that passed the interface.
    pub(crate) received: u64,
    /// Number of those frames that are not in the file.
    pub(crate) dropped: u64,
}

/// Appends the first blocks of a file: a section header and the description of an Ethernet interface. `snap` is the limit
/// on the captured bytes of a frame.
pub(crate) fn begin(to: &mut Vec<u8>, snap: u32) {
    block(to, SECTION_HEADER, |to| {
        to.extend(0x1a2b_3c4d_u32.to_le_bytes());
        to.extend([1_u16, 0].map(u16::to_le_bytes).concat());
        // The section's length is -1, because it is not known in advance.
        to.extend((-1_i64).to_le_bytes());
        let application = concat!("pontoon ", env!("CARGO_PKG_VERSION"));
        option(to, SHB_USERAPPL, application.as_bytes());
        option(to, END_OF_OPTIONS, &[]);
    });
    block(to, INTERFACE_DESCRIPTION, |to| {
        to.extend([LINKTYPE_ETHERNET, 0].map(u16::to_le_bytes).concat());
        to.extend(snap.to_le_bytes());
        option(to, IF_NAME, b"guest");
        // Timestamps are in units of 10^-9 seconds.
        option(to, IF_TSRESOL, &[9]);
        option(to, END_OF_OPTIONS, &[]);
    });
}

/// Appends a frame of `len` bytes, of which `bytes` were captured: an Enhanced Packet Block.
pub(crate) fn frame(to: &mut Vec<u8>, at: SystemTime, way: Way, bytes: &[u8], len: u32) {
    block(to, ENHANCED_PACKET, |to| {
        to.extend(INTERFACE.to_le_bytes());
        to.extend(timestamp(at));
        to.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
        to.extend(len.to_le_bytes());
        to.extend(bytes);
        pad(to);
        option(to, EPB_FLAGS, &(way as u32).to_le_bytes());
        option(to, END_OF_OPTIONS, &[]);
    });
}

/// Appends an Interface Statistics Block.
pub(crate) fn statistics(to: &mut Vec<u8>, seen: Statistics) {
    block(to, INTERFACE_STATISTICS, |to| {
        to.extend(INTERFACE.to_le_bytes());
        to.extend(timestamp(seen.end));
        option(to, ISB_STARTTIME, &timestamp(seen.begin));
        option(to, ISB_ENDTIME, &timestamp(seen.end));
        option(to, ISB_IFRECV, &seen.received.to_le_bytes());
        option(to, ISB_IFDROP, &seen.dropped.to_le_bytes());
        option(to, END_OF_OPTIONS, &[]);
    });
}

/// Length in bytes of the block that [`statistics`] appends.
pub(crate) const STATISTICS_LEN: u64 = 12 + 12 + 4 * 12 + 4;

/// Length in bytes of the block that [`frame`] appends, without the captured bytes and their padding of at most 3 bytes.
pub(crate) const FRAME_OVERHEAD: u64 = 12 + 20 + 8 + 4;

fn block(to: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let begin = to.len();
    to.extend(kind.to_le_bytes());
    to.extend([0; 4]);
    body(to);
    // The length of a block is at both of its ends, and includes both.
    let len = u32::try_from(to.len() - begin + 4)
        .unwrap_or(u32::MAX)
        .to_le_bytes();
    to[begin + 4..begin + 8].copy_from_slice(&len);
    to.extend(len);
}

/// Appends an option, whose value must be shorter than 64 KiB.
fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    to.extend([code, len].map(u16::to_le_bytes).concat());
    to.extend(value);
    pad(to);
}

/// Pads to a multiple of 4 bytes, at which the next field or block begins.
fn pad(to: &mut Vec<u8>) {
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Returns the nanoseconds since 1970: the high 32-bit word, then the low one.
fn timestamp(at: SystemTime) -> [u8; 8] {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let [a, b, c, d, e, f, g, h] = nanoseconds.to_le_bytes();
    [e, f, g, h, a, b, c, d]
}

/// Index of the only interface.
const INTERFACE: u32 = 0;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

const LINKTYPE_ETHERNET: u16 = 1;

const END_OF_OPTIONS: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::capture::tests::blocks;

    #[test]
    fn section_has_one_interface() {
        let at = SystemTime::UNIX_EPOCH + Duration::new(5, 7);
        let mut file = Vec::new();
        begin(&mut file, 96);
        let begun = file.len();
        for len in 0..6_u8 {
            let before = file.len() as u64;
            frame(&mut file, at, Way::Down, &[1; 6][..len.into()], 60);
            let grown = file.len() as u64 - before - FRAME_OVERHEAD;
            assert_eq!(grown, u64::from(len).next_multiple_of(4));
        }
        let before = file.len() as u64;
        let seen = Statistics {
            begin: at,
            end: at,
            received: 8,
            dropped: 2,
        };
        statistics(&mut file, seen);
        assert_eq!(file.len() as u64 - before, STATISTICS_LEN);
        let blocks = blocks(&file);
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SECTION_HEADER, 1, 6, 6, 6, 6, 6, 6, 5]);
        assert_eq!(begun % 4, 0);
        let (_, third) = blocks[5];
        // The fields are: interface, time, lengths, the frame and its padding, flags, end.
        let nanoseconds = 5_000_000_007_u64;
        let high = (nanoseconds >> 32) as u32;
        let low = nanoseconds as u32;
        let words = [0, high, low, 3, 60, 0x0001_0101, 0x0004_0002, 2, 0];
        assert_eq!(third, words.map(u32::to_le_bytes).concat());
        let (_, last) = blocks[8];
        assert_eq!(last[last.len() - 12..last.len() - 4], 2_u64.to_le_bytes());
    }
}
