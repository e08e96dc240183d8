//! A fake link that records the frames sent to the guest.

use pontoon_wire::checksum;
use pontoon_wire::vnet::{Offload, Segmentation};
use vm_memory::VolatileSlice;

use super::describe::describe;
use crate::link::{Room, TransmitError};
use crate::{Limits, Transmit};

/// A fake link, which accepts IP packets of the largest size.
pub(crate) struct FakeLink {
    pub(crate) frames: Vec<(Offload, Vec<u8>)>,
    pub(crate) limits: Limits,
    /// Number of further frames that the link accepts.
    pub(crate) room: usize,
    memory: Vec<u8>,
}

impl FakeLink {
    pub(crate) fn new() -> Self {
        Self {
            frames: Vec::new(),
            limits: Limits {
                mtu: 1_500,
                max_gso: 65_535,
                tso4: true,
                tso6: true,
                uso: true,
            },
            room: usize::MAX,
            memory: vec![0; 65_536],
        }
    }

    /// Returns a one-line description of each frame that was sent since the previous call of this function.
    pub(crate) fn describe(&mut self) -> Vec<String> {
        core::mem::take(&mut self.frames)
            .iter()
            .map(|(offload, bytes)| describe(*offload, bytes))
            .collect()
    }

    /// Returns the frames sent since the previous call of this function, with completed checksums.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        let frames = core::mem::take(&mut self.frames);
        let complete = |(offload, mut frame): (Offload, Vec<u8>)| {
            checksum::complete(&mut frame, offload.checksum, []).unwrap();
            frame
        };
        frames.into_iter().map(complete).collect()
    }
}

impl Transmit for FakeLink {
    type Room<'a> = FakeRoom<'a>;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), TransmitError> {
        let len = head.len() + payload.len();
        assert!(len <= self.limits.mtu + 14, "a frame larger than the MTU");
        self.room = self.room.checked_sub(1).ok_or(TransmitError::Full)?;
        self.frames.push((offload, [head, payload].concat()));
        Ok(())
    }

    fn reserve(&mut self, _: usize, _: usize, payload: usize) -> Option<FakeRoom<'_>> {
        let slice = VolatileSlice::from(&mut self.memory[..payload]);
        let fits = payload <= self.limits.max_gso;
        (fits && self.room > 0).then_some(FakeRoom {
            frames: &mut self.frames,
            limits: self.limits,
            room: &mut self.room,
            slices: [slice],
        })
    }

    fn flush(&mut self) {}
}

pub(crate) struct FakeRoom<'a> {
    frames: &'a mut Vec<(Offload, Vec<u8>)>,
    limits: Limits,
    room: &'a mut usize,
    slices: [VolatileSlice<'a>; 1],
}

impl Room for FakeRoom<'_> {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        &self.slices
    }

    fn commit(&mut self, offload: Offload, head: &[u8], len: usize) -> Result<(), TransmitError> {
        let most = match offload.segmentation {
            Segmentation::Whole => self.limits.mtu,
            _ => self.limits.max_gso,
        };
        assert!(
            head.len() + len <= most + 14,
            "a frame larger than the link's limit"
        );
        *self.room -= 1;
        let mut frame = head.to_vec();
        frame.resize(head.len() + len, 0);
        self.slices[0].copy_to(&mut frame[head.len()..]);
        self.frames.push((offload, frame));
        Ok(())
    }
}
