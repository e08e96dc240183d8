//! Copies of the headers of the frames in a receive buffer.

use std::ops::Range;

use arrayvec::ArrayVec;
use pontoon_engine::Frame;
use pontoon_wire::frame::HEAD;
use pontoon_wire::vnet::Offload;
use vm_memory::VolatileSlice;

use crate::BURST;

/// Ranges of the receive buffer that contain the frames of a burst.
pub(super) type FrameRanges = ArrayVec<Range<usize>, BURST>;

/// Buffers into which the headers of a burst's frames are copied.
#[derive(Debug)]
pub(super) struct HeaderBuffers(Box<[[u8; HEAD]; BURST]>);

impl Default for HeaderBuffers {
    fn default() -> Self {
        Self(Box::new([[0; HEAD]; BURST]))
    }
}

impl HeaderBuffers {
    /// Passes the frames at `places` in `bytes` to `sink` in one call, unless there is none. Returns their number.
    pub(super) fn hand_on(
        &mut self,
        bytes: &mut [u8],
        places: &[Range<usize>],
        sink: impl FnOnce(&[Frame<'_>]),
    ) -> usize {
        for (place, head) in places.iter().zip(self.0.iter_mut()) {
            let len = place.len().min(HEAD);
            head[..len].copy_from_slice(&bytes[place.start..][..len]);
        }
        let whole = VolatileSlice::from(bytes);
        let parts: ArrayVec<_, BURST> = places
            .iter()
            .filter_map(|place| whole.subslice(place.start, place.len()).ok())
            .collect();
        let frames: ArrayVec<_, BURST> = parts
            .iter()
            .zip(self.0.iter())
            .map(|(part, head)| Frame {
                offload: Offload::NONE,
                head: &head[..part.len().min(HEAD)],
                parts: std::slice::from_ref(part),
                len: part.len(),
            })
            .collect();
        if !frames.is_empty() {
            sink(&frames);
        }
        frames.len()
    }
}
