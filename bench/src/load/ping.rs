//! The job `Echo`: ICMP echo (RFC 792, RFC 4443).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use pontoon_sys::Family;
use pontoon_sys::icmp::only_echo_replies;
use pontoon_wire::checksum::Sum;
use rustix::net::{SocketFlags, SocketType, connect, ipproto, socket_with};

use crate::job::JobMessage;

use super::client::JobClient;
use super::datagram_round_trip::{DEADLINE, exchange};
use super::latency;
use super::{failed, socket, unreachable};

/// Bytes of an echo message with its ICMP header, as ping(8) sends by default.
const LEN: usize = 64;

/// Runs the load client for the job `Echo`. The host at `address` answers without a server.
pub(crate) fn run(client: &mut JobClient, address: IpAddr) -> Result<(), JobMessage> {
    let (socket, kind) = open(Family::of(address))?;
    socket::bound_waits(&socket, DEADLINE).map_err(failed)?;
    connect(&socket, &SocketAddr::new(address, 0))
        .map_err(|error| unreachable(format_args!("cannot send to {address}: {error}")))?;
    // The kernel replaces the identifier of a ping socket by its own.
    let id = std::process::id() as u16;
    let mut sequence = 0_u16;
    latency::measure(client, None, || {
        sequence = sequence.wrapping_add(1);
        let request = request(Family::of(address), id, sequence);
        exchange(&socket, &request, |reply| kind.answers(reply, &request))
    })
}

/// The kind of socket that sends echo requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketKind {
    /// A ping socket: the kernel chooses the identifier and delivers only its replies.
    Ping,
    /// A raw socket: the kernel delivers all echo replies, in IPv4 with the IP header.
    Raw,
}

fn open(family: Family) -> Result<(OwnedFd, SocketKind), JobMessage> {
    let protocol = match family {
        Family::V4 => ipproto::ICMP,
        Family::V6 => ipproto::ICMPV6,
    };
    let socket = |kind| socket_with(family.domain(), kind, SocketFlags::CLOEXEC, Some(protocol));
    if let Ok(socket) = socket(SocketType::DGRAM) {
        return Ok((socket, SocketKind::Ping));
    }
    let raw = socket(SocketType::RAW).map_err(|error| {
        unreachable(format_args!(
            "neither a ping socket (net.ipv4.ping_group_range) nor a raw socket: {error}"
        ))
    })?;
    only_echo_replies(&raw, family).map_err(failed)?;
    Ok((raw, SocketKind::Raw))
}

fn request(family: Family, id: u16, sequence: u16) -> [u8; LEN] {
    let mut request = [0; LEN];
    request[0] = match family {
        Family::V4 => 8,
        Family::V6 => 128,
    };
    request[4..6].copy_from_slice(&id.to_be_bytes());
    request[6..8].copy_from_slice(&sequence.to_be_bytes());
    if family == Family::V4 {
        // The kernel computes the checksum of ICMPv6.
        let checksum = Sum::new().add(&request).finish();
        request[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    request
}

impl SocketKind {
    fn answers(self, reply: &[u8], request: &[u8; LEN]) -> bool {
        let (reply_type, ip_header) = match request[0] {
            8 => (0, reply.first().map_or(0, |first| usize::from(first & 0xf) * 4)),
            _ => (129, 0),
        };
        let (skip, compared) = match self {
            Self::Ping => (0, 6..LEN),
            Self::Raw => (ip_header, 4..LEN),
        };
        reply.get(skip..).is_some_and(|reply| {
            reply.len() == LEN && reply[0] == reply_type && reply[compared.clone()] == request[compared]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reply_to_its_request_is_accepted() {
        let request = request(Family::V4, 7, 9);
        assert_eq!(Sum::new().add(&request).finish(), 0);
        let mut reply = request;
        assert!(
            !SocketKind::Ping.answers(&reply, &request),
            "a request is no reply"
        );
        reply[0] = 0;
        assert!(SocketKind::Ping.answers(&reply, &request));
        let with_header = [&[0x45; 20][..], &reply].concat();
        assert!(SocketKind::Raw.answers(&with_header, &request));
        reply[5] = 8;
        assert!(
            SocketKind::Ping.answers(&reply, &request),
            "the identifier is the kernel's"
        );
        assert!(!SocketKind::Raw.answers(&[&[0x45; 20][..], &reply].concat(), &request));
        reply[7] = 8;
        assert!(
            !SocketKind::Ping.answers(&reply, &request),
            "the reply to another request"
        );
        assert!(!SocketKind::Raw.answers(&[], &request));
    }
}
