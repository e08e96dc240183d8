//! Parses received UDP packets and verifies their lengths and checksums.
//!
//! A packet socket receives a packet before the host's IP and UDP have verified it, so the relay verifies it:
//! forwarding a damaged datagram with a recomputed checksum would hide the damage.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use pontoon_wire::checksum::Sum;
use pontoon_wire::protocol;

#[cfg(test)]
mod tests;

/// A parsed UDP packet: one datagram, or several of one flow that the kernel coalesced into one packet (GRO).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source IP address of the datagram.
    pub from: IpAddr,
    /// Source UDP port of the datagram.
    pub from_port: u16,
    /// Destination IP address of the datagram.
    pub to: IpAddr,
    /// Destination UDP port of the datagram.
    pub to_port: u16,
    /// TTL or hop limit with which the packet arrived.
    pub hops: u8,
    /// DSCP and ECN bits: the IPv4 field Type of Service, the IPv6 field Traffic Class.
    pub class: u8,
    /// Range of the UDP payload in the packet's bytes.
    pub payload: Range<usize>,
}

/// The reason why the relay does not forward a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramError {
    /// The packet is not a complete UDP packet, or its destination port is 0.
    Malformed,
    /// The packet is an IP fragment.
    Fragment,
    /// The IPv4 header checksum or the UDP checksum is wrong.
    Checksum,
}

/// State of the UDP checksum of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// The kernel or the device has verified the checksum, or the packet was sent on this host.
    Verified,
    /// The checksum has not been verified yet.
    Unverified,
}

impl Datagram {
    /// Parses a packet that begins with the IP header. Bytes behind the IP packet (Ethernet padding) are ignored.
    ///
    /// # Errors
    /// The packet is not a valid, unfragmented UDP packet.
    pub fn parse(packet: &[u8], checksum: ChecksumState) -> Result<Self, DatagramError> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => v4(packet, checksum),
            Some(6) => v6(packet, checksum),
            _ => Err(DatagramError::Malformed),
        }
    }

    /// Returns the number of header bytes (IP and UDP) of a packet with these first bytes; IPv6 extension headers are
    /// not counted.
    #[must_use]
    pub fn headers(begin: &[u8]) -> usize {
        let ip = match begin.first() {
            Some(first) if first >> 4 == 4 => usize::from(first & 0xf) * 4,
            Some(_) | None => V6_HEADER,
        };
        ip + UDP_HEADER
    }
}

fn v4(packet: &[u8], checksum: ChecksumState) -> Result<Datagram, DatagramError> {
    let header_len = usize::from(packet[0] & 0xf) * 4;
    let header = packet
        .get(..header_len)
        .filter(|header| header.len() >= V4_HEADER);
    let header = header.ok_or(DatagramError::Malformed)?;
    let packet = packet
        .get(..word(header, 2).into())
        .ok_or(DatagramError::Malformed)?;
    if packet.len() < header_len || header[9] != protocol::UDP {
        return Err(DatagramError::Malformed);
    }
    if Sum::new().add(header).finish() != 0 {
        return Err(DatagramError::Checksum);
    }
    // More Fragments flag or fragment offset (RFC 791).
    if word(header, 6) & 0x3fff != 0 {
        return Err(DatagramError::Fragment);
    }
    let addresses = (
        Ipv4Addr::from_octets(array(header, 12)).into(),
        Ipv4Addr::from_octets(array(header, 16)).into(),
    );
    udp(packet, header_len, addresses, (header[8], header[1]), checksum)
}

fn v6(packet: &[u8], checksum: ChecksumState) -> Result<Datagram, DatagramError> {
    let header = packet.get(..V6_HEADER).ok_or(DatagramError::Malformed)?;
    let packet = packet.get(..V6_HEADER + usize::from(word(header, 4)));
    let packet = packet.ok_or(DatagramError::Malformed)?;
    let (mut next, mut at) = (header[6], V6_HEADER);
    while next != protocol::UDP {
        match next {
            HOP_BY_HOP | ROUTING | DESTINATION => {}
            FRAGMENT => return Err(DatagramError::Fragment),
            _ => return Err(DatagramError::Malformed),
        }
        let [following, length] = *packet
            .get(at..at + 2)
            .and_then(|two| two.first_chunk())
            .ok_or(DatagramError::Malformed)?;
        next = following;
        at += 8 + 8 * usize::from(length);
    }
    let addresses = (
        Ipv6Addr::from_octets(array(header, 8)).into(),
        Ipv6Addr::from_octets(array(header, 24)).into(),
    );
    let class = (word(header, 0) >> 4).to_be_bytes()[1];
    udp(packet, at, addresses, (header[7], class), checksum)
}

fn udp(
    packet: &[u8],
    at: usize,
    (from, to): (IpAddr, IpAddr),
    (hops, class): (u8, u8),
    checksum: ChecksumState,
) -> Result<Datagram, DatagramError> {
    let udp = packet.get(at..).filter(|udp| udp.len() >= UDP_HEADER);
    let udp = udp.ok_or(DatagramError::Malformed)?;
    let length = usize::from(word(udp, 4));
    let udp = udp.get(..length).filter(|udp| udp.len() >= UDP_HEADER);
    let udp = udp.ok_or(DatagramError::Malformed)?;
    if checksum == ChecksumState::Unverified {
        // Only IPv4 allows a datagram without a checksum (RFC 8200 section 8.1).
        match (word(udp, 6), to) {
            (0, IpAddr::V4(_)) => {}
            (0, IpAddr::V6(_)) => return Err(DatagramError::Checksum),
            _ if Sum::pseudo(from, to, protocol::UDP, length).add(udp).finish() != 0 => {
                return Err(DatagramError::Checksum);
            }
            _ => {}
        }
    }
    // The kernel sends nothing to port 0, so a copy that keeps the port could not be sent.
    let to_port = word(udp, 2);
    if to_port == 0 {
        return Err(DatagramError::Malformed);
    }
    Ok(Datagram {
        from,
        from_port: word(udp, 0),
        to,
        to_port,
        hops,
        class,
        payload: at + UDP_HEADER..at + length,
    })
}

/// Returns the big-endian 16-bit word at offset `at`. The caller has checked the length.
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// Returns the `N` bytes at offset `at`. The caller has checked the length.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;

// IPv6 extension headers that are allowed before UDP (RFC 8200 section 4).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
