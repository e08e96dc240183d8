//! Reassembles IP fragments from the guest, IPv4 (RFC 791 section 3.2) and IPv6 (RFC 8200 section 4.5).
//!
//! Each datagram has a buffer with room for headers, in which its fragments are stored at their offsets, so that a
//! complete datagram becomes a frame without a copy. A buffer grows with its fragments, to 64 KiB at most, and is freed
//! with its datagram; a worker holds at most 64 datagrams, which is 4 MiB of data.
//!
//! A datagram with overlapping fragments, or with fragments that imply different lengths, is dropped as a whole, as are
//! its later fragments (RFC 5722). An exact duplicate of a fragment is ignored, because networks duplicate packets.
//!
//! Fragments with equal ids may belong to two datagrams, because ids are reused (RFC 4963). Therefore the transport
//! checksum is verified here; the host's kernel computes a new checksum for the data, which would hide the error.
//! here: the host's kernel computes a new one for the data.

use core::net::IpAddr;
use core::time::Duration;

use pontoon_wire::checksum::Sum;
use pontoon_wire::emit::{self, Ether};
use pontoon_wire::frame::{self, Body, Fragment, FrameError, HEAD, Ip, Transport};
use pontoon_wire::protocol;
use pontoon_wire::vnet::{Checksum, Offload};
use vm_memory::VolatileSlice;

use crate::{Counters, Frame, Instant};

mod state;
#[cfg(test)]
mod tests;

/// Incomplete datagrams of which this worker has received IP fragments.
#[derive(Debug, Default)]
pub struct Reassembly {
    /// Incomplete datagrams, the oldest first.
    datagrams: Vec<PartialDatagram>,
}

impl Reassembly {
    /// Adds a fragment. `ip` is the parsed header of `frame`, whose transport is [`Transport::Fragment`], and `ether`
    /// has the frame's Ethernet addresses. Returns the datagram if this fragment completes it.
    ///
    /// The caller must have called [`Self::handle_timeout`] for `now` before.
    pub fn add(
        &mut self,
        ether: Ether,
        ip: &Ip,
        frame: &Frame<'_>,
        counters: &mut Counters,
        now: Instant,
    ) -> Option<Whole> {
        let fragment = ip.fragment?;
        counters.fragments_up += 1;
        // RFC 8200 section 4.5: of fragments without data or of invalid length, only the fragment itself is discarded.
        if ip.payload_len == 0 || fragment.more && !ip.payload_len.is_multiple_of(8) {
            counters.fragments_dropped += 1;
            return None;
        }
        let index = self.find(DatagramKey::of(ip, fragment), counters, now);
        let datagram = &mut self.datagrams[index];
        let AssemblyState::Gathering(pieces) = &mut datagram.state else {
            counters.fragments_dropped += 1;
            return None;
        };
        match pieces.add(ether, ip, fragment, frame) {
            AddOutcome::More => None,
            AddOutcome::Refused => {
                counters.fragments_dropped += pieces.count() + 1;
                datagram.state = AssemblyState::Refused;
                None
            }
            AddOutcome::Complete(whole) => {
                counters.reassembled += 1;
                self.datagrams.remove(index);
                self.free();
                Some(whole)
            }
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] has to be called next; `None` if there is no incomplete
    /// datagram.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.datagrams.iter().map(|datagram| datagram.expires).min()
    }

    /// Drops the datagrams whose reassembly timeout has expired.
    pub fn handle_timeout(&mut self, counters: &mut Counters, now: Instant) {
        self.datagrams.retain(|datagram| {
            let keep = datagram.expires > now;
            if !keep {
                counters.fragments_dropped += datagram.held();
            }
            keep
        });
        self.free();
    }

    /// Returns the index of the incomplete datagram with this key. If it is new and there is no room, the oldest
    /// datagram is dropped.
    fn find(&mut self, key: DatagramKey, counters: &mut Counters, now: Instant) -> usize {
        if let Some(index) = self.datagrams.iter().position(|datagram| datagram.key == key) {
            return index;
        }
        if self.datagrams.len() == DATAGRAMS {
            counters.fragments_dropped += self.datagrams.remove(0).held();
        }
        let timeout = match key.source {
            IpAddr::V4(_) => TIMEOUT_V4,
            IpAddr::V6(_) => TIMEOUT_V6,
        };
        self.datagrams.push(PartialDatagram {
            key,
            expires: now + timeout,
            state: AssemblyState::Gathering(FragmentBuffer::default()),
        });
        self.datagrams.len() - 1
    }

    /// Frees all memory if there is no incomplete datagram.
    fn free(&mut self) {
        if self.datagrams.is_empty() {
            self.datagrams = Vec::new();
        }
    }
}

/// A reassembled datagram as a frame without fragmentation headers, as if the guest had not fragmented it.
#[derive(Debug)]
pub struct Whole {
    bytes: Vec<u8>,
    /// Offset of the Ethernet header in `bytes`.
    start: usize,
    /// True if the transport checksum in the datagram is complete, so that it can be verified.
    checksum: bool,
}

impl Whole {
    /// Parses the frame and passes it to `sink`. `dont_fragment` is false, for IPv6 too, because the guest has
    /// fragmented the datagram itself.
    ///
    /// # Errors
    /// The datagram is malformed, or is a fragment again (behind destination options), or its transport checksum is
    /// wrong.
    pub fn open<R>(
        &mut self,
        sink: impl FnOnce(frame::ParsedFrame, &Frame<'_>) -> R,
    ) -> Result<R, FrameError> {
        let bytes = &mut self.bytes[self.start..];
        let len = bytes.len();
        // The slices of a frame are treated as shared memory, so the head that is parsed is a copy of them here, too.
        let mut head = [0; HEAD];
        let head = &mut head[..len.min(HEAD)];
        head.copy_from_slice(&bytes[..len.min(HEAD)]);
        let mut parsed = frame::parse(head, len)?;
        match &mut parsed.body {
            Body::Arp | Body::Ip(_, Transport::Fragment) => return Err(FrameError::IpHeader),
            Body::Ip(ip, transport) => {
                if self.checksum && !is_sound(ip, transport, bytes) {
                    return Err(FrameError::Transport(ip.protocol));
                }
                ip.dont_fragment = false;
            }
        }
        let frame = Frame {
            offload: Offload::NONE,
            head,
            parts: &[VolatileSlice::from(bytes)],
            len,
        };
        Ok(sink(parsed, &frame))
    }
}

/// Returns true if the transport checksum of a complete packet is valid or absent.
fn is_sound(ip: &Ip, transport: &Transport, frame: &[u8]) -> bool {
    let bytes = &frame[ip.payload_offset..][..ip.payload_len];
    let bytes = match transport {
        Transport::Udp(_) if bytes[UDP_CHECKSUM] == [0, 0] => return ip.source.is_ipv4(),
        Transport::Udp(udp) => &frame[ip.payload_offset..udp.payload_offset + udp.payload_len],
        Transport::Tcp(_) | Transport::Icmp(_) => bytes,
        Transport::Fragment | Transport::Other => return true,
    };
    let sum = match ip.protocol {
        protocol::ICMP => Sum::new(),
        _ => Sum::pseudo(ip.source, ip.destination, ip.protocol, bytes.len()),
    };
    sum.add(bytes).finish() == 0
}

/// The header fields that are equal in all fragments of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DatagramKey {
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    /// IPv4's protocol field. `None` for IPv6, whose fragments may have different next headers; that of the first
    /// fragment is used (RFC 8200 section 4.5).
    protocol: Option<u8>,
}

impl DatagramKey {
    fn of(ip: &Ip, fragment: Fragment) -> Self {
        Self {
            source: ip.source,
            destination: ip.destination,
            id: fragment.id,
            protocol: ip.source.is_ipv4().then_some(ip.protocol),
        }
    }
}

/// An incomplete datagram: its key, the end of its reassembly timeout, and its fragments.
#[derive(Debug)]
struct PartialDatagram {
    key: DatagramKey,
    expires: Instant,
    state: AssemblyState,
}

impl PartialDatagram {
    /// Returns the number of fragments stored for this datagram.
    fn held(&self) -> u64 {
        match &self.state {
            AssemblyState::Gathering(pieces) => pieces.count(),
            AssemblyState::Refused => 0,
        }
    }
}

/// State of an incomplete datagram.
#[derive(Debug)]
enum AssemblyState {
    Gathering(FragmentBuffer),
    /// The datagram was dropped because of an invalid fragment; its later fragments are dropped, too.
    Refused,
}

/// The received IP fragments of an incomplete datagram.
#[derive(Debug, Default)]
struct FragmentBuffer {
    /// Buffer with room for headers, followed by the datagram's data up to the highest byte received.
    bytes: Vec<u8>,
    /// Byte range of each fragment, in ascending order without overlaps.
    spans: Vec<ByteRange>,
    /// Number of data bytes of the datagram that were received.
    sum: usize,
    /// Length of the complete datagram's data, known after the last fragment was received.
    total: Option<usize>,
    /// Headers of the first fragment, with which the datagram is delivered.
    first: Option<(Ether, Ip)>,
    /// True if a fragment had a partial checksum. The bytes that such a checksum covers are unknown, because a correct
    /// sender completes the checksum before it fragments.
    partial: bool,
}

/// Byte range of a fragment in the data of its datagram; `end` is exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ByteRange {
    begin: usize,
    end: usize,
}

/// The result of adding a fragment to a datagram: more fragments are missing, the datagram is complete, or the fragment
/// is inconsistent with the others.
enum AddOutcome {
    More,
    Complete(Whole),
    Refused,
}

impl FragmentBuffer {
    fn count(&self) -> u64 {
        self.spans.len() as u64
    }

    fn add(&mut self, ether: Ether, ip: &Ip, fragment: Fragment, frame: &Frame<'_>) -> AddOutcome {
        let begin = fragment.offset as usize;
        let span = ByteRange {
            begin,
            end: begin + ip.payload_len,
        };
        if !self.fits(span, largest(ip), fragment.more) {
            return AddOutcome::Refused;
        }
        let index = self.spans.partition_point(|held| held.end <= span.begin);
        match self.spans.get(index) {
            Some(held) if *held == span => return AddOutcome::More,
            Some(held) if held.begin < span.end => return AddOutcome::Refused,
            Some(_) | None if self.spans.len() == PIECES => return AddOutcome::Refused,
            Some(_) | None => self.spans.insert(index, span),
        }
        self.sum += ip.payload_len;
        self.partial |= frame.offload.checksum != Checksum::Complete;
        if !fragment.more {
            self.total = Some(span.end);
        }
        if begin == 0 {
            self.first = Some((ether, *ip));
        }
        self.grow(ROOM + span.end);
        frame.copy(ip.payload_offset, &mut self.bytes[ROOM + begin..ROOM + span.end]);
        self.finish().map_or(AddOutcome::More, AddOutcome::Complete)
    }

    /// Returns true if the byte range of a fragment is consistent with the datagram's length, as far as it is known.
    fn fits(&self, span: ByteRange, largest: usize, more: bool) -> bool {
        let furthest = self.spans.last().map_or(0, |last| last.end);
        let agrees = match self.total {
            Some(total) if more => span.end < total,
            Some(total) => span.end == total,
            None => more || span.end >= furthest,
        };
        agrees && span.end <= largest
    }

    /// Grows the buffer to `len` bytes. The capacity doubles, up to the size of the largest datagram, so that small
    /// fragments do not cause a copy each.
    fn grow(&mut self, len: usize) {
        if len > self.bytes.capacity() {
            let capacity = (2 * self.bytes.capacity()).clamp(len, ROOM + LARGEST_V6);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        if len > self.bytes.len() {
            self.bytes.resize(len, 0);
        }
    }

    /// Returns the datagram as a frame if all fragments have been received.
    fn finish(&mut self) -> Option<Whole> {
        let (ether, ip) = self.first?;
        let total = self.total.filter(|total| *total == self.sum)?;
        let header = emit::Ip {
            source: ip.source,
            destination: ip.destination,
            hop_limit: ip.hop_limit,
            traffic_class: ip.traffic_class,
            dont_fragment: false,
            ident: 0,
        };
        let head = emit::ip(ether, header, ip.protocol, total);
        let start = ROOM - head.bytes().len();
        self.bytes[start..ROOM].copy_from_slice(head.bytes());
        Some(Whole {
            bytes: core::mem::take(&mut self.bytes),
            start,
            checksum: !self.partial,
        })
    }
}

/// Returns the maximum number of data bytes that the length field of the datagram's IP header can express.
const fn largest(ip: &Ip) -> usize {
    match ip.source {
        IpAddr::V4(_) => LARGEST_V4,
        IpAddr::V6(_) => LARGEST_V6,
    }
}

/// Maximum number of incomplete datagrams in one worker.
const DATAGRAMS: usize = 64;
/// Maximum number of fragments of one datagram: 65,535 bytes at an MTU of 296, the smallest in use, are 241 fragments.
const PIECES: usize = 256;
/// Maximum data of an IPv4 datagram in bytes; its field Total Length includes the header of at least 20 bytes.
const LARGEST_V4: usize = 65_535 - 20;
/// Maximum data of an IPv6 packet in bytes; its field Payload Length does not include the header.
const LARGEST_V6: usize = 65_535;
/// Position of the checksum in the UDP header (RFC 768). A checksum of 0 means that there is none, which IPv6 does not
/// permit (RFC 8200 section 8.1).
const UDP_CHECKSUM: core::ops::Range<usize> = 6..8;
/// Room in bytes for the Ethernet header and an IPv4 or IPv6 header.
const ROOM: usize = 14 + 40;
/// Reassembly timeout of IPv4, equal to Linux's `ipfrag_time`. RFC 1122 section 3.3.2 suggests 60 to 120 s, in which a
/// sender's 16-bit id wraps around.
const TIMEOUT_V4: Duration = Duration::from_secs(30);
/// Reassembly timeout of IPv6 (RFC 8200 section 4.5).
const TIMEOUT_V6: Duration = Duration::from_secs(60);

const _: () = assert!(
    DATAGRAMS * LARGEST_V6 <= 4 << 20,
    "incomplete datagrams exceed 4 MiB of data"
);
