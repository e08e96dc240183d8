//! Services that the guest finds on its LAN: address resolution, router and address configuration, and echo replies.
//!
//! Each service is one file and answers from the configuration; none has state. Local services precede policy: their packets
//! are never forwarded.

mod arp;
mod dhcp4;
mod dhcp6;
mod domains;
mod echo;
pub mod icmp_error;
mod ndp;
mod reply;

use core::net::IpAddr;

use pontoon_wire::frame::{self, Body, Transport};

use crate::ctx::Net;
use crate::{Frame, Transmit};

/// The result of offering a frame to the local services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// A local service has answered or dropped the frame.
    Yes,
    /// The frame is for another handler.
    No,
}

/// Processes a frame that is addressed to a local service. `parsed` are its headers.
pub fn handle<T: Transmit>(
    frame: &Frame<'_>,
    parsed: &frame::ParsedFrame,
    net: &mut Net,
    link: &mut T,
) -> Handled {
    let Body::Ip(ip, transport) = &parsed.body else {
        arp::handle(frame, parsed, net, link);
        return Handled::Yes;
    };
    match (ip.destination, transport) {
        (_, Transport::Icmp(icmp)) if ndp::is_link_scoped(ip, icmp) => {
            ndp::handle(frame, parsed.source, ip, icmp, net, link);
            Handled::Yes
        }
        (to, Transport::Icmp(icmp)) if echo::is_request(ip, icmp) && echo::answers(net, to) => {
            echo::handle(frame, ip, icmp, net, link);
            Handled::Yes
        }
        (IpAddr::V4(to), Transport::Udp(udp)) if udp.destination_port == 67 && dhcp4::is_server(net, to) => {
            dhcp4::handle(frame, udp, net, link);
            Handled::Yes
        }
        (IpAddr::V6(to), Transport::Udp(udp)) if udp.destination_port == 547 && dhcp6::is_server(net, to) => {
            dhcp6::handle(frame, parsed.source, ip, udp, net, link);
            Handled::Yes
        }
        // Membership reports: there are no other members.
        (IpAddr::V4(_), Transport::Other) if ip.protocol == IGMP => Handled::Yes,
        _ => Handled::No,
    }
}

/// A datagram's data, as much of it as `into` has room for.
fn data<'a>(frame: &Frame<'_>, udp: &frame::Udp, into: &'a mut [u8]) -> &'a [u8] {
    let most = udp.payload_len.min(into.len());
    let len = frame.copy(udp.payload_offset, &mut into[..most]);
    &into[..len]
}

/// IANA "Protocol Numbers".
const IGMP: u8 = 2;

#[cfg(test)]
mod tests;
