//! Local services, which the engine provides to the guest: ARP, NDP, DHCP, router advertisements, and echo replies.
//!
//! Each service is one file, answers from the configuration, and has no state. Frames to local services are handled
//! before the egress policy, and never forwarded.

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

use crate::config::LinkService;
use crate::ctx::Net;
use crate::{Frame, Transmit};

/// Return value of [`handle`]: whether a local service has handled the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// A local service has answered or dropped the frame.
    Yes,
    /// The frame is not for a local service.
    No,
}

/// Handles a frame that is addressed to a local service. `parsed` has the frame's headers.
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
            if !net.config.disabled.contains(LinkService::Icmp) && net.admits_answer() {
                echo::handle(frame, ip, icmp, net, link);
            }
            Handled::Yes
        }
        (IpAddr::V4(to), Transport::Udp(udp)) if udp.destination_port == 67 && dhcp4::is_server(net, to) => {
            if !net.config.disabled.contains(LinkService::Dhcp) && net.admits_answer() {
                dhcp4::handle(frame, udp, net, link);
            }
            Handled::Yes
        }
        (IpAddr::V6(to), Transport::Udp(udp)) if udp.destination_port == 547 && dhcp6::is_server(net, to) => {
            if !net.config.disabled.contains(LinkService::Dhcpv6) && net.admits_answer() {
                dhcp6::handle(frame, parsed.source, ip, udp, net, link);
            }
            Handled::Yes
        }
        // IGMP membership reports are dropped: the link has no other members.
        (IpAddr::V4(_), Transport::Other) if ip.protocol == IGMP => Handled::Yes,
        _ => Handled::No,
    }
}

/// Requests the guest's Ethernet address, which the engine learns from any frame of the guest.
pub fn solicit_guest<T: Transmit>(net: &mut Net, link: &mut T) {
    arp::request(net, link);
    ndp::solicit(net, link);
}

/// Copies a UDP datagram's data into `into`, truncated to its length, and returns the copy.
fn data<'a>(frame: &Frame<'_>, udp: &frame::Udp, into: &'a mut [u8]) -> &'a [u8] {
    let most = udp.payload_len.min(into.len());
    let len = frame.copy(udp.payload_offset, &mut into[..most]);
    &into[..len]
}

/// Protocol number of IGMP (IANA "Protocol Numbers").
const IGMP: u8 = 2;

#[cfg(test)]
mod tests;
