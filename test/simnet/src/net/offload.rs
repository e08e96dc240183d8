//! Offloads of network cards: merges consecutive segments into one frame (GRO), and segments frames (GSO).

use pontoon_wire::frame::Flags;
use pontoon_wire::vnet::{Offload, Segmentation};

use crate::frames::{Datagram, EtherAddresses, Packet, Segment};
use crate::rng::Rng;

/// Parameters for the merging of the guest's segments into larger frames before the engine receives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merging {
    /// Largest number of payload bytes in a merged segment; 0 disables merging.
    pub most: usize,
    /// Number of frames in 1,000 that have a partial checksum though they were not merged. A merged frame always has
    /// one.
    pub partial: u32,
}

/// Merges consecutive segments of one connection, as a guest with segmentation offload would have sent them.
pub fn merge(rng: &mut Rng, merging: Merging, frames: Vec<Vec<u8>>) -> Vec<(Offload, Vec<u8>)> {
    let mut out = Vec::with_capacity(frames.len());
    let mut open: Option<MergeRun> = None;
    for frame in frames {
        match Packet::parse(Offload::NONE, &frame) {
            Ok((ether, packet @ (Packet::Tcp(_) | Packet::Udp(_)))) => {
                if let (Some(run), Packet::Tcp(segment)) = (&mut open, &packet)
                    && run.append(segment)
                {
                    continue;
                }
                out.extend(open.take().map(|run| run.finish(rng, merging)));
                open = Some(MergeRun::new(rng, merging, ether, packet));
            }
            // ICMP never has a partial checksum, and malformed frames are delivered unchanged.
            Ok(_) | Err(_) => {
                out.extend(open.take().map(|run| run.finish(rng, merging)));
                out.push((Offload::NONE, frame));
            }
        }
    }
    out.extend(open.map(|run| run.finish(rng, merging)));
    out
}

/// Segments a frame from the engine into packets. If `loose` is true, the sizes are random (as the guest's card may
/// merge segments, and a middlebox may split them), otherwise those of the frame's offload metadata.
///
/// # Errors
/// The frame contradicts its metadata.
pub fn split(rng: &mut Rng, loose: bool, offload: Offload, frame: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let (ether, packet) = Packet::parse(offload, frame)?;
    match (offload.segmentation, packet) {
        (Segmentation::Whole, packet) => Ok(vec![packet.emit(ether)]),
        (Segmentation::Tcp4 { mss }, Packet::Tcp(segment)) if segment.from.is_ipv4() => {
            Ok(cut(rng, loose, mss, ether, segment))
        }
        (Segmentation::Tcp6 { mss }, Packet::Tcp(segment)) if segment.from.is_ipv6() => {
            Ok(cut(rng, loose, mss, ether, segment))
        }
        (Segmentation::Udp { len }, Packet::Udp(datagram)) if len > 0 => Ok(datagram
            .payload
            .chunks(usize::from(len))
            .map(|payload| {
                let payload = payload.to_vec();
                Packet::Udp(Datagram { payload, ..datagram }).emit(ether)
            })
            .collect()),
        (segmentation, packet) => Err(format!("{segmentation:?} of {packet:?}")),
    }
}

fn cut(rng: &mut Rng, loose: bool, mss: u16, ether: EtherAddresses, whole: Segment) -> Vec<Vec<u8>> {
    let mss = usize::from(mss.max(1));
    let mut out = Vec::new();
    let mut at = 0;
    while at < whole.payload.len() {
        let left = whole.payload.len() - at;
        let len = match rng.below(8) {
            0 if loose => rng.size(1..=mss),
            1 if loose => mss * rng.size(2..=16),
            _ => mss,
        }
        .min(left);
        let last = len == left;
        let keep = if last {
            0xff
        } else {
            !(Flags::FIN.0 | Flags::PSH.0)
        };
        let segment = Segment {
            seq: whole.seq.wrapping_add(at as u32),
            flags: Flags(whole.flags.0 & keep),
            payload: whole.payload[at..at + len].to_vec(),
            sack: whole.sack.clone(),
            ..whole
        };
        out.push(Packet::Tcp(segment).emit(ether));
        at += len;
    }
    out
}

/// Consecutive packets of one connection that are merged into one frame.
struct MergeRun {
    ether: EtherAddresses,
    packet: Packet,
    mss: usize,
    room: usize,
    parts: usize,
    sealed: bool,
}

impl MergeRun {
    fn new(rng: &mut Rng, merging: Merging, ether: EtherAddresses, packet: Packet) -> Self {
        let mss = match &packet {
            Packet::Tcp(segment) => segment.payload.len(),
            Packet::Udp(_) | Packet::Icmp(_) | Packet::Other(..) => 0,
        };
        Self {
            ether,
            packet,
            mss,
            room: rng.size(0..=merging.most.max(1)).min(merging.most),
            parts: 1,
            sealed: false,
        }
    }

    /// Merges the segment `next` into the run, if possible, and returns true if it did. By the rules of GSO only the
    /// last segment may be shorter or carry FIN or PSH.
    fn append(&mut self, next: &Segment) -> bool {
        let Packet::Tcp(run) = &mut self.packet else {
            return false;
        };
        let plain = |flags: Flags| flags.0 & !(Flags::FIN.0 | Flags::PSH.0) == Flags::ACK.0;
        let follows = (run.from, run.to, run.ack, run.window, run.end())
            == (next.from, next.to, next.ack, next.window, next.seq);
        let fits = !next.payload.is_empty()
            && next.payload.len() <= self.mss
            && run.payload.len() + next.payload.len() <= self.room;
        if self.sealed
            || !follows
            || !fits
            || run.flags != Flags::ACK
            || !plain(next.flags)
            || run.sack != next.sack
        {
            return false;
        }
        run.flags = next.flags;
        run.payload.extend(&next.payload);
        self.parts += 1;
        self.sealed = next.payload.len() < self.mss;
        true
    }

    fn finish(self, rng: &mut Rng, merging: Merging) -> (Offload, Vec<u8>) {
        let mss = self.mss as u16;
        let segmentation = match &self.packet {
            Packet::Tcp(segment) if self.parts > 1 && segment.from.is_ipv4() => Segmentation::Tcp4 { mss },
            Packet::Tcp(_) if self.parts > 1 => Segmentation::Tcp6 { mss },
            Packet::Tcp(_) | Packet::Udp(_) | Packet::Icmp(_) | Packet::Other(..) => Segmentation::Whole,
        };
        if self.parts > 1 || rng.chance(merging.partial) {
            self.packet.emit_partial(self.ether, segmentation)
        } else {
            (Offload::NONE, self.packet.emit(self.ether))
        }
    }
}

#[cfg(test)]
mod tests;
