//! Packets that are built byte by byte, and the parser of responses to them.

use std::net::{IpAddr, Ipv6Addr};

/// The transport protocol of a probe packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
    Icmp,
}

impl Transport {
    pub(crate) const ALL: [(&'static str, Self); 3] =
        [("tcp", Self::Tcp), ("udp", Self::Udp), ("icmp", Self::Icmp)];

    fn number(self, to: IpAddr) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Icmp if to.is_ipv4() => 1,
            Self::Icmp => 58,
        }
    }
}

/// An IPv6 extension header (RFC 8200 section 4).
#[derive(Clone, Copy)]
pub(crate) enum Extension {
    HopByHop,
    Destination,
    /// A fragment header in a datagram that is not fragmented (RFC 6946).
    AtomicFragment,
}

impl Extension {
    fn number(self) -> u8 {
        match self {
            Self::HopByHop => 0,
            Self::Destination => 60,
            Self::AtomicFragment => 44,
        }
    }

    fn bytes(self, next: u8) -> [u8; 8] {
        match self {
            // PadN of four bytes.
            Self::HopByHop | Self::Destination => [next, 0, 1, 4, 0, 0, 0, 0],
            Self::AtomicFragment => [next, 0, 0, 0, 1, 2, 3, 4],
        }
    }
}

/// The fields from which a packet is built.
pub(crate) struct ProbePacket<'a> {
    from: IpAddr,
    to: IpAddr,
    transport: Transport,
    /// Source port, echo id and IP identification of the packet.
    id: u16,
    port: u16,
    payload: &'a [u8],
    extensions: &'a [Extension],
}

impl<'a> ProbePacket<'a> {
    pub(crate) fn new(from: IpAddr, to: IpAddr, transport: Transport, id: u16, port: u16) -> Self {
        Self {
            from,
            to,
            transport,
            id,
            port,
            payload: &[],
            extensions: &[],
        }
    }

    pub(crate) fn payload(mut self, payload: &'a [u8]) -> Self {
        self.payload = payload;
        self
    }

    pub(crate) fn extensions(mut self, extensions: &'a [Extension]) -> Self {
        self.extensions = extensions;
        self
    }

    /// Returns the packet, without an Ethernet header.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut next = self.transport.number(self.to);
        let mut body = self.segment();
        for extension in self.extensions.iter().rev() {
            body.splice(0..0, extension.bytes(next));
            next = extension.number();
        }
        self.ip(next, 0, &body)
    }

    /// Returns the packet in IP fragments of at most `size` bytes of payload.
    pub(crate) fn fragments(&self, size: usize) -> Vec<Vec<u8>> {
        let segment = self.segment();
        let count = segment.len().div_ceil(size);
        let cut =
            |index: usize| self.fragment(&segment, index * size, size.min(segment.len() - index * size));
        (0..count).map(cut).collect()
    }

    /// Returns the packet in fragments of which one begins inside of its predecessor (RFC 5722 section 4: all must be
    /// dropped).
    pub(crate) fn overlapping(&self, size: usize) -> Vec<Vec<u8>> {
        let segment = self.segment();
        let second = size - 16;
        vec![
            self.fragment(&segment, 0, size),
            self.fragment(&segment, second, size),
            self.fragment(&segment, second + size, segment.len() - second - size),
        ]
    }

    fn fragment(&self, segment: &[u8], at: usize, len: usize) -> Vec<u8> {
        let more = at + len < segment.len();
        let part = &segment[at..at + len];
        let next = self.transport.number(self.to);
        if self.to.is_ipv4() {
            return self.ip(next, (at / 8) as u16 | if more { 0x2000 } else { 0 }, part);
        }
        let mut body = vec![next, 0];
        body.extend((at as u16 | u16::from(more)).to_be_bytes());
        body.extend([0, 0]);
        body.extend(self.id.to_be_bytes());
        body.extend(part);
        self.ip(44, 0, &body)
    }

    /// Returns an IP header, with `body` after it.
    fn ip(&self, next: u8, fragment: u16, body: &[u8]) -> Vec<u8> {
        let mut packet = Vec::with_capacity(body.len() + 40);
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                packet.extend([0x45, 0]);
                packet.extend((body.len() as u16 + 20).to_be_bytes());
                packet.extend(self.id.to_be_bytes());
                packet.extend(fragment.to_be_bytes());
                packet.extend([64, next, 0, 0]);
                packet.extend(from.octets());
                packet.extend(to.octets());
                let sum = checksum(&packet);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (from, to) => {
                packet.extend([0x60, 0, 0, 0]);
                packet.extend((body.len() as u16).to_be_bytes());
                packet.extend([next, 64]);
                packet.extend(octets(from));
                packet.extend(octets(to));
            }
        }
        packet.extend(body);
        packet
    }

    /// Returns the transport header and the payload, with their checksum.
    fn segment(&self) -> Vec<u8> {
        let mut segment = Vec::new();
        let at = match self.transport {
            Transport::Tcp => {
                segment.extend([self.id.to_be_bytes(), self.port.to_be_bytes()].concat());
                // Sequence number, acknowledgement number 0; data offset 5, SYN, window 64240.
                segment.extend([1, 2, 3, 4, 0, 0, 0, 0, 0x50, 0x02, 0xfa, 0xf0, 0, 0, 0, 0]);
                16
            }
            Transport::Udp => {
                segment.extend([self.id.to_be_bytes(), self.port.to_be_bytes()].concat());
                segment.extend((self.payload.len() as u16 + 8).to_be_bytes());
                segment.extend([0, 0]);
                segment.extend(self.payload);
                6
            }
            Transport::Icmp => {
                segment.extend([if self.to.is_ipv4() { 8 } else { 128 }, 0, 0, 0]);
                segment.extend(self.id.to_be_bytes());
                segment.extend([0, 1]);
                segment.extend(self.payload);
                2
            }
        };
        let number = self.transport.number(self.to);
        let sum = match sum(self.from, self.to, number, &segment) {
            // A UDP checksum of 0 means that there is none, so 0xffff is sent (RFC 768).
            0 if self.transport == Transport::Udp => 0xffff,
            sum => sum,
        };
        segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        segment
    }
}

/// Returns a neighbour solicitation (RFC 4861 section 4.3) that is sent to the unicast address `target`.
pub(crate) fn solicitation(from: Ipv6Addr, target: Ipv6Addr, own: &[u8]) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    message.extend([1, 1]);
    message.extend(own);
    let sum = sum(from.into(), target.into(), 58, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0, 0, message.len() as u8, 58, 255];
    packet.extend(from.octets());
    packet.extend(target.octets());
    packet.extend(message);
    packet
}

/// Returns the checksum of a transport header with its payload. Except for ICMP in IPv4 it includes the
/// pseudo-header.
fn sum(from: IpAddr, to: IpAddr, number: u8, segment: &[u8]) -> u16 {
    let mut summed = Vec::new();
    if number != 1 {
        summed.extend(octets(from));
        summed.extend(octets(to));
        summed.extend((segment.len() as u32).to_be_bytes());
        summed.extend([0, 0, 0, number]);
    }
    summed.extend(segment);
    checksum(&summed)
}

/// The response to a probe packet.
#[derive(Clone, Copy)]
pub(crate) struct ProbeResponse {
    /// True for a SYN-ACK, a datagram or an echo reply; false for a RST.
    pub(crate) open: bool,
}

impl ProbeResponse {
    /// Parses a response. Returns the source port or echo id of the probe to which it belongs.
    pub(crate) fn parse(packet: &[u8]) -> Option<(u16, Self)> {
        let (protocol, body) = match packet.first()? >> 4 {
            // Only the first fragment contains the ports, and it suffices.
            4 if packet.get(6..8)?[0] & 0x1f == 0 && packet[7] == 0 => (packet[9], packet.get(20..)?),
            6 if packet.get(6)? == &44 => (*packet.get(40)?, packet.get(48..)?),
            6 => (packet[6], packet.get(40..)?),
            _ => return None,
        };
        let word = |at: usize| Some(u16::from_be_bytes([*body.get(at)?, *body.get(at + 1)?]));
        match protocol {
            6 => Some((
                word(2)?,
                Self {
                    open: body.get(13)? & 0x16 == 0x12,
                },
            )),
            17 => Some((word(2)?, Self { open: true })),
            1 | 58 => Some((
                word(4)?,
                Self {
                    open: matches!(body[0], 0 | 129) && word(4)? != 0,
                },
            )),
            _ => None,
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Returns the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
