//! ARP (RFC 826, RFC 5227): the engine answers requests for all addresses except the guest's.

use core::net::Ipv4Addr;

use pontoon_wire::smol::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};
use pontoon_wire::vnet::Offload;
use pontoon_wire::{Mac, frame, smol};

use crate::ctx::Net;
use crate::{Frame, Transmit, udp_emit};

/// Answers an ARP request, unless it is an announcement, or a probe for an address that is not in use.
pub(super) fn handle<T: Transmit>(
    frame: &Frame<'_>,
    parsed: &frame::ParsedFrame,
    net: &mut Net,
    link: &mut T,
) {
    let packet = frame.head.get(ETHERNET..).unwrap_or_default();
    let parse = |packet| ArpRepr::parse(&ArpPacket::new_checked(packet)?);
    let Ok(ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: asker_mac,
        source_protocol_addr: asker,
        target_protocol_addr: wanted,
        ..
    }) = parse(packet)
    else {
        net.counters.malformed += 1;
        return;
    };
    if operation != ArpOperation::Request || !answers(net, asker, wanted) {
        return;
    }
    let reply = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: EthernetAddress(net.config.our_mac.0),
        source_protocol_addr: wanted,
        target_hardware_addr: asker_mac,
        target_protocol_addr: asker,
    };
    send(parsed.source, &reply, net, link);
}

/// Requests the Ethernet address of the guest's IPv4 address, from the gateway's.
pub(super) fn request<T: Transmit>(net: &mut Net, link: &mut T) {
    let Some(own) = &net.config.plan.v4 else {
        return;
    };
    let request = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: EthernetAddress(net.config.our_mac.0),
        source_protocol_addr: own.gateway,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: own.address.addr(),
    };
    send(BROADCAST, &request, net, link);
}

fn send<T: Transmit>(to: Mac, packet: &ArpRepr, net: &mut Net, link: &mut T) {
    let mut bytes = [0; ETHERNET + ARP];
    bytes[0..6].copy_from_slice(&to.0);
    bytes[6..12].copy_from_slice(&net.config.our_mac.0);
    bytes[12..14].copy_from_slice(&u16::from(smol::EthernetProtocol::Arp).to_be_bytes());
    packet.emit(&mut ArpPacket::new_unchecked(&mut bytes[ETHERNET..]));
    udp_emit::count(net, bytes.len(), link.send(Offload::NONE, &bytes, &[]));
}

fn answers(net: &Net, asker: Ipv4Addr, wanted: Ipv4Addr) -> bool {
    let Some(own) = &net.config.plan.v4 else {
        return false;
    };
    if wanted == asker || own.addresses().any(|net| net.addr() == wanted) {
        // The guest probes for or announces its own address (RFC 5227 section 1.2).
        return false;
    }
    // An answer to a probe prevents the guest from using an address of the engine (RFC 5227 section 2.1.1).
    !asker.is_unspecified() || own.is_engine(wanted)
}

const BROADCAST: Mac = Mac([0xff; 6]);
const ETHERNET: usize = 14;
/// Length in bytes of an ARP packet for Ethernet and IPv4.
const ARP: usize = 28;
