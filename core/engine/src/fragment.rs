//! Reassembly of the guest's fragments (RFC 791 section 3.2, RFC 8200 section 4.5), both families alike.
//!
//! Fragments are stored at their offset in one buffer per datagram, behind room for headers: a complete datagram becomes a
//! frame without a copy. A buffer grows with its fragments, to 64 KiB at most, and is freed with its datagram; a worker
//! holds at most 64 datagrams, that is 4 MiB of data.
//!
//! A datagram with overlapping fragments, or fragments that disagree about its length, is dropped as a whole, with its later
//! fragments (RFC 5722). An exact duplicate of a fragment is ignored, as networks duplicate packets.
//!
//! Matching fragments may still be of two datagrams, as ids are reused (RFC 4963). So the transport's checksum is verified
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

#[cfg(test)]
mod tests;

/// Datagrams whose fragments a worker is gathering.
#[derive(Debug, Default)]
pub struct Reassembly {
    /// Oldest first.
    datagrams: Vec<Datagram>,
}

impl Reassembly {
    /// Adds a fragment: `ip` is the parsed header of `frame` (its transport is [`Transport::Fragment`]), `ether` the frame's
    /// Ethernet addresses. Returns the datagram that it completes.
    ///
    /// Expired timers must have been processed by [`Self::handle_timeout`] before.
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
        // A fragment without data, or one of invalid length: RFC 8200 section 4.5 discards only the fragment.
        if ip.payload_len == 0 || fragment.more && !ip.payload_len.is_multiple_of(8) {
            counters.fragments_dropped += 1;
            return None;
        }
        let index = self.find(DatagramKey::of(ip, fragment), counters, now);
        let datagram = &mut self.datagrams[index];
        let Assembly::Gathering(pieces) = &mut datagram.state else {
            counters.fragments_dropped += 1;
            return None;
        };
        match pieces.add(ether, ip, fragment, frame) {
            Added::More => None,
            Added::Refused => {
                counters.fragments_dropped += pieces.count() + 1;
                datagram.state = Assembly::Refused;
                None
            }
            Added::Complete(whole) => {
                counters.reassembled += 1;
                self.datagrams.remove(index);
                self.free();
                Some(whole)
            }
        }
    }

    /// Returns the time of the next call of [`Self::handle_timeout`]; `None` while there are no fragments.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.datagrams.iter().map(|datagram| datagram.expires).min()
    }

    /// Drops the datagrams that have expired.
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

    /// Returns the index of a datagram, which may be a new one: then the oldest is dropped if there is no room.
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
        self.datagrams.push(Datagram {
            key,
            expires: now + timeout,
            state: Assembly::Gathering(Pieces::default()),
        });
        self.datagrams.len() - 1
    }

    /// Frees all memory if there are no fragments.
    fn free(&mut self) {
        if self.datagrams.is_empty() {
            self.datagrams = Vec::new();
        }
    }
}

/// A reassembled datagram: a frame with plain headers, as if the guest had not fragmented it.
#[derive(Debug)]
pub struct Whole {
    bytes: Vec<u8>,
    /// The offset of the Ethernet header.
    start: usize,
    /// The transport's checksum is complete.
    checksum: bool,
}

impl Whole {
    /// Parses the frame and passes it to `sink`. `dont_fragment` is false, also for IPv6, as its sender has fragmented it.
    ///
    /// # Errors
    /// The frame is malformed, or a fragment again (behind destination options), or its checksum is wrong.
    pub fn open<R>(
        &mut self,
        sink: impl FnOnce(frame::ParsedFrame, &Frame<'_>) -> R,
    ) -> Result<R, FrameError> {
        let bytes = &mut self.bytes[self.start..];
        let len = bytes.len();
        // The slices of a frame are of shared memory, so its head is a copy here, too.
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

/// Returns true if a packet's checksum is valid or absent.
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

/// The fields that all fragments of one datagram share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DatagramKey {
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    /// The protocol in IPv4. In IPv6 the fragments may differ in it, and that of the first one counts (RFC 8200 section 4.5).
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

#[derive(Debug)]
struct Datagram {
    key: DatagramKey,
    expires: Instant,
    state: Assembly,
}

impl Datagram {
    /// Fragments held.
    fn held(&self) -> u64 {
        match &self.state {
            Assembly::Gathering(pieces) => pieces.count(),
            Assembly::Refused => 0,
        }
    }
}

#[derive(Debug)]
enum Assembly {
    Gathering(Pieces),
    /// Later fragments are dropped.
    Refused,
}

/// The fragments of a datagram that have been received.
#[derive(Debug, Default)]
struct Pieces {
    /// Room for headers, and data up to the highest byte received.
    bytes: Vec<u8>,
    /// The range of each fragment, in order; ranges do not overlap.
    spans: Vec<Span>,
    /// The number of bytes received.
    sum: usize,
    /// Length of the datagram, after the last fragment was received.
    total: Option<usize>,
    /// The headers of the first fragment.
    first: Option<(Ether, Ip)>,
    /// A fragment had a partial checksum. A sender completes the checksum before it fragments, so the bytes to be summed are
    /// unknown.
    partial: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    begin: usize,
    end: usize,
}

enum Added {
    More,
    Complete(Whole),
    Refused,
}

impl Pieces {
    fn count(&self) -> u64 {
        self.spans.len() as u64
    }

    fn add(&mut self, ether: Ether, ip: &Ip, fragment: Fragment, frame: &Frame<'_>) -> Added {
        let begin = fragment.offset as usize;
        let span = Span {
            begin,
            end: begin + ip.payload_len,
        };
        if !self.fits(span, largest(ip), fragment.more) {
            return Added::Refused;
        }
        let index = self.spans.partition_point(|held| held.end <= span.begin);
        match self.spans.get(index) {
            Some(held) if *held == span => return Added::More,
            Some(held) if held.begin < span.end => return Added::Refused,
            Some(_) | None if self.spans.len() == PIECES => return Added::Refused,
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
        self.finish().map_or(Added::More, Added::Complete)
    }

    /// Returns true if a fragment agrees with the known length of the datagram.
    fn fits(&self, span: Span, largest: usize, more: bool) -> bool {
        let furthest = self.spans.last().map_or(0, |last| last.end);
        let agrees = match self.total {
            Some(total) if more => span.end < total,
            Some(total) => span.end == total,
            None => more || span.end >= furthest,
        };
        agrees && span.end <= largest
    }

    /// Grows the buffer to `len` bytes. Its capacity doubles, so that small fragments do not copy it each time, up to the size
    /// of the largest datagram.
    fn grow(&mut self, len: usize) {
        if len > self.bytes.capacity() {
            let capacity = (2 * self.bytes.capacity()).clamp(len, ROOM + LARGEST_V6);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        if len > self.bytes.len() {
            self.bytes.resize(len, 0);
        }
    }

    /// Returns the frame if the datagram is complete.
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

/// The most data that the length field of the datagram's IP header can express.
const fn largest(ip: &Ip) -> usize {
    match ip.source {
        IpAddr::V4(_) => LARGEST_V4,
        IpAddr::V6(_) => LARGEST_V6,
    }
}

/// The limit on datagrams.
const DATAGRAMS: usize = 64;
/// The limit on fragments of one datagram: 65,535 bytes at an MTU of 296, the smallest in use, are 241.
const PIECES: usize = 256;
/// IPv4's total length counts the header.
const LARGEST_V4: usize = 65_535 - 20;
/// IPv6's payload length does not.
const LARGEST_V6: usize = 65_535;
/// RFC 768. All zeros mean no checksum, which IPv6 does not allow (RFC 8200 section 8.1).
const UDP_CHECKSUM: core::ops::Range<usize> = 6..8;
/// Ethernet and IPv6 headers.
const ROOM: usize = 14 + 40;
/// Linux's `ipfrag_time`; RFC 1122 section 3.3.2 has 60 to 120 s, in which a sender's 16-bit id wraps around.
const TIMEOUT_V4: Duration = Duration::from_secs(30);
/// RFC 8200 section 4.5.
const TIMEOUT_V6: Duration = Duration::from_secs(60);

const _: () = assert!(DATAGRAMS * LARGEST_V6 <= 4 << 20, "4 MiB of data at most");
