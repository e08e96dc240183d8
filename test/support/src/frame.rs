//! Checks that offsets and lengths that the frame parser returns are within the frame.

use pontoon_wire::frame::{self, Body, HEAD, Transport};
use pontoon_wire::vnet;

/// Parses a frame that has its `virtio_net_hdr` in front, and checks the result.
pub fn run(bytes: &[u8]) {
    let Ok((_, frame)) = vnet::parse(bytes) else {
        return;
    };
    let len = frame.len();
    let whole = frame::parse(&frame[..len.min(HEAD)], len);
    let Ok(parsed) = whole else {
        return;
    };
    let Body::Ip(ip, transport) = &parsed.body else {
        return;
    };
    let within = |offset: usize, payload: usize| {
        assert!(offset + payload <= len, "{payload} bytes at {offset} of {len}");
    };
    within(ip.payload_offset, ip.payload_len);
    match transport {
        Transport::Tcp(tcp) => within(tcp.payload_offset, tcp.payload_len),
        Transport::Udp(udp) => within(udp.payload_offset, udp.payload_len),
        Transport::Icmp(icmp) => within(icmp.payload_offset, icmp.payload_len),
        Transport::Fragment => assert!(ip.fragment.is_some(), "a fragment of nothing"),
        Transport::Other => {}
    }
}
