//! Header blocks of frames towards the guest.
//!
//! A block is everything in front of the payload. TCP and UDP blocks carry a partial checksum (the pseudo-header's
//! sum): the link, or the guest behind it, completes it.

use core::net::IpAddr;

use crate::{Mac, frame::Flags, vnet::Checksum};

/// Room for the longest block: Ethernet, IPv6, TCP with 40 bytes of options.
const ROOM: usize = 14 + 40 + 60;

/// A header block.
#[derive(Clone, Debug)]
pub struct Head {
    bytes: [u8; ROOM],
    len: usize,
    /// What the link still has to do about the checksum.
    pub checksum: Checksum,
}

impl Head {
    /// The block's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Addresses of the Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct Ether {
    /// Sender: ours.
    pub source: Mac,
    /// Receiver: the guest's.
    pub destination: Mac,
}

/// What the IP header says. Both addresses are of one family.
#[derive(Clone, Copy, Debug)]
pub struct Ip {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// IPv4: the DF bit (with it, identification is 0: RFC 6864 section 4.1).
    pub dont_fragment: bool,
    /// IPv4 identification, used without DF.
    pub ident: u16,
}

/// What the TCP header says.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags.
    pub flags: Flags,
    /// Window field, already scaled.
    pub window: u16,
    /// SYN options: MSS, window scale, SACK permitted.
    pub syn: Option<Syn>,
    /// SACK blocks, at most four.
    pub sack: &'a [(u32, u32)],
}

/// Options of our SYN or SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub struct Syn {
    /// Maximum segment size.
    pub mss: u16,
    /// Window scale, absent where the guest offered none.
    pub window_scale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
}

/// Headers of a TCP segment with `payload_len` bytes of data to follow.
#[must_use]
pub fn tcp(ether: Ether, ip: Ip, tcp: Tcp<'_>, payload_len: usize) -> Head {
    let _ = (ether, ip, tcp, payload_len);
    todo!()
}

/// Headers of a UDP datagram (or of a super-frame of several) with `payload_len` bytes of data to follow.
#[must_use]
pub fn udp(ether: Ether, ip: Ip, source_port: u16, destination_port: u16, payload_len: usize) -> Head {
    let _ = (ether, ip, source_port, destination_port, payload_len);
    todo!()
}

/// Ethernet and IP headers for `protocol` with `payload_len` bytes to follow (ICMP, fragments).
#[must_use]
pub fn ip(ether: Ether, ip: Ip, protocol: u8, payload_len: usize) -> Head {
    let _ = (ether, ip, protocol, payload_len);
    todo!()
}

// also: fragment(ether, ip, protocol, fragment: frame::Fragment, payload_len) -> Head   (IPv6: fragment extension header)
