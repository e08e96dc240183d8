//! Sends replies of the local services to the guest.

use core::net::IpAddr;

use pontoon_wire::checksum::Sum;
use pontoon_wire::vnet::Offload;
use pontoon_wire::{Mac, emit, protocol};

use crate::Transmit;
use crate::ctx::Net;
use crate::udp_emit::{self, Emitted};

/// Ethernet and IP header fields of a local service's reply to the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    /// Ethernet address to which the reply is sent.
    pub(super) to: Mac,
    /// Source IP address of the reply.
    pub(super) source: IpAddr,
    /// Destination IP address, of the same family as the source.
    pub(super) destination: IpAddr,
    /// TTL (IPv4) or hop limit (IPv6) of the reply.
    pub(super) hop_limit: u8,
}

impl Reply {
    /// Sends an ICMP or ICMPv6 message, by the addresses' family, with its checksum, and counts it.
    pub(super) fn icmp<T: Transmit>(self, net: &mut Net, link: &mut T, message: &mut [u8]) -> Emitted {
        let (protocol, sum) = match self.source {
            IpAddr::V4(_) => (protocol::ICMP, Sum::new()),
            IpAddr::V6(_) => (protocol::ICMPV6, self.pseudo(protocol::ICMPV6, message.len())),
        };
        message[2..4].fill(0);
        let sum = sum.add(message).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.send(net, link, protocol, message)
    }

    /// Sends a UDP datagram. The first eight bytes of `datagram` are room for the UDP header; the data follows.
    pub(super) fn udp<T: Transmit>(
        self,
        net: &mut Net,
        link: &mut T,
        source_port: u16,
        destination_port: u16,
        datagram: &mut [u8],
    ) -> Emitted {
        let len = u16::try_from(datagram.len()).expect("a service's datagram is short");
        datagram[0..2].copy_from_slice(&source_port.to_be_bytes());
        datagram[2..4].copy_from_slice(&destination_port.to_be_bytes());
        datagram[4..6].copy_from_slice(&len.to_be_bytes());
        datagram[6..8].fill(0);
        let sum = self.pseudo(protocol::UDP, datagram.len()).add(datagram).finish();
        // A checksum of 0 would mean that there is none (RFC 768).
        let sum = if sum == 0 { 0xffff } else { sum };
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        self.send(net, link, protocol::UDP, datagram)
    }

    fn pseudo(self, protocol: u8, len: usize) -> Sum {
        Sum::pseudo(self.source, self.destination, protocol, len)
    }

    fn send<T: Transmit>(self, net: &mut Net, link: &mut T, protocol: u8, content: &[u8]) -> Emitted {
        let ip = emit::Ip {
            source: self.source,
            destination: self.destination,
            hop_limit: self.hop_limit,
            traffic_class: 0,
            dont_fragment: true,
            ident: 0,
        };
        if udp_emit::ip_header(self.source) + content.len() > link.limits().mtu {
            let (upper, rest) = content.split_at(8);
            return udp_emit::in_fragments(net, link, ip, protocol, upper, rest);
        }
        let ether = emit::Ether {
            source: net.config.our_mac,
            destination: self.to,
        };
        let head = emit::ip(ether, ip, protocol, content.len());
        let sent = link.send(Offload::NONE, head.bytes(), content);
        udp_emit::count(net, head.bytes().len() + content.len(), sent)
    }
}
