//! Byte layouts of the headers that the packet path parses and encodes.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Ethernet II header (IEEE 802.3 section 3.2).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct EthernetHeader {
    pub(crate) destination: [u8; 6],
    pub(crate) source: [u8; 6],
    pub(crate) ether_type: U16,
}

/// IPv4 header without options (RFC 791 section 3.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Ipv4Header {
    pub(crate) version_length: u8,
    pub(crate) traffic_class: u8,
    pub(crate) total_length: U16,
    pub(crate) ident: U16,
    pub(crate) flags_offset: U16,
    pub(crate) ttl: u8,
    pub(crate) protocol: u8,
    pub(crate) checksum: [u8; 2],
    pub(crate) source: [u8; 4],
    pub(crate) destination: [u8; 4],
}

impl Ipv4Header {
    /// Flag Don't Fragment in the field `flags_offset`.
    pub(crate) const DF: u16 = 0x4000;
    /// Flag More Fragments in the field `flags_offset`.
    pub(crate) const MF: u16 = 0x2000;
    /// Mask of the fragment offset, in units of 8 bytes, in the field `flags_offset`.
    pub(crate) const OFFSET: u16 = 0x1fff;
}

/// IPv6 header without extension headers (RFC 8200 section 3).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Ipv6Header {
    pub(crate) version_class_label: U32,
    pub(crate) payload_length: U16,
    pub(crate) next_header: u8,
    pub(crate) hop_limit: u8,
    pub(crate) source: [u8; 16],
    pub(crate) destination: [u8; 16],
}

/// First bytes that the IPv6 extension headers have in common (RFC 6564 section 4); the fields for type and segments
/// left are those of the routing header (RFC 8200 section 4.4).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ExtensionHeader {
    pub(crate) next_header: u8,
    pub(crate) length: u8,
    pub(crate) routing_type: u8,
    pub(crate) segments_left: u8,
}

/// IPv6 fragment header (RFC 8200 section 4.5).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct FragmentHeader {
    pub(crate) next_header: u8,
    pub(crate) reserved: u8,
    /// Fragment offset in the upper 13 bits, More Fragments in bit 0. The offset's unit is 8 bytes, so the masked field
    /// is the offset in bytes.
    pub(crate) offset_more: U16,
    pub(crate) id: U32,
}

impl FragmentHeader {
    /// Mask of the fragment offset in bytes in the field `offset_more`.
    pub(crate) const OFFSET: u16 = 0xfff8;
    /// Flag More Fragments in the field `offset_more`.
    pub(crate) const MORE: u16 = 0x0001;
}

/// TCP header without options (RFC 9293 section 3.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct TcpHeader {
    pub(crate) source_port: U16,
    pub(crate) destination_port: U16,
    pub(crate) seq: U32,
    pub(crate) ack: U32,
    /// Header length in 32-bit words, in the upper four bits.
    pub(crate) data_offset: u8,
    pub(crate) flags: u8,
    pub(crate) window: U16,
    pub(crate) checksum: [u8; 2],
    pub(crate) urgent: U16,
}

/// First eight bytes of a [`TcpHeader`], the minimum that an ICMP error quotes (RFC 792).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct TcpStart {
    pub(crate) source_port: U16,
    pub(crate) destination_port: U16,
    pub(crate) seq: U32,
}

/// UDP header (RFC 768).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct UdpHeader {
    pub(crate) source_port: U16,
    pub(crate) destination_port: U16,
    pub(crate) length: U16,
    pub(crate) checksum: [u8; 2],
}

/// First eight bytes of an ICMP or ICMPv6 message; the fields are named as in an echo request (RFC 792, RFC 4443
/// section 4.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct IcmpHeader {
    pub(crate) kind: u8,
    pub(crate) code: u8,
    pub(crate) checksum: [u8; 2],
    pub(crate) ident: U16,
    pub(crate) seq: U16,
}

/// `struct virtio_net_hdr` without `num_buffers` (virtio 1.2 section 5.1.6), little endian.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct VnetHeader {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) hdr_len: zerocopy::little_endian::U16,
    pub(crate) gso_size: zerocopy::little_endian::U16,
    pub(crate) csum_start: zerocopy::little_endian::U16,
    pub(crate) csum_offset: zerocopy::little_endian::U16,
}

/// `struct virtio_net_hdr` with `num_buffers`, as in virtio 1.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct VnetHeader1 {
    pub(crate) vnet: VnetHeader,
    pub(crate) num_buffers: zerocopy::little_endian::U16,
}

pub(crate) mod ether_type {
    pub(crate) const IPV4: u16 = 0x0800;
    pub(crate) const ARP: u16 = 0x0806;
    pub(crate) const IPV6: u16 = 0x86dd;
}

/// Type numbers of IPv6 extension headers (IANA "IPv6 Extension Header Types").
pub(crate) mod extension {
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const AUTHENTICATION: u8 = 51;
    pub(crate) const DESTINATION_OPTIONS: u8 = 60;
}
