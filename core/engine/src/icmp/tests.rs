//! Transcripts of echo forwarding: the guest's echo requests, calls of the host, frames to the guest, and changes of
//! counters.

mod errors;
mod ids;
mod replies;

use pontoon_wire::frame::{Body, Transport};
use pontoon_wire::vnet::Segmentation;

use super::Icmp;
use crate::Readiness;
use crate::test_world::{READABLE, Sent, World, with_frame};

const GUEST: &str = "10.0.2.15";
const GUEST_V6: &str = "fd70:6f6e:746f::15";
const REMOTE: &str = "192.0.2.1";
const REMOTE_V6: &str = "2001:db8::1";
const BOTH: [(&str, &str); 2] = [(GUEST, REMOTE), (GUEST_V6, REMOTE_V6)];

struct Pinger {
    world: World,
    icmp: Icmp<usize>,
}

/// An echo request of the guest.
struct Request<'a> {
    kind: Option<u8>,
    hop_limit: u8,
    ident: u16,
    seq: u16,
    data: &'a [u8],
}

const REQUEST: Request<'_> = Request {
    kind: None,
    hop_limit: 64,
    ident: 7,
    seq: 1,
    data: b"hello",
};

impl Pinger {
    fn new() -> Self {
        let mut world = World::new();
        let icmp = Icmp::new(&mut world.net.random);
        Self { world, icmp }
    }

    fn send(&mut self, from: &str, to: &str, request: &Request<'_>) {
        let sent = Sent {
            hop_limit: request.hop_limit,
            ..Sent::new(from, to, request.data)
        };
        let kind = request.kind.unwrap_or(if sent.from.is_ipv4() { 8 } else { 128 });
        let bytes = sent.icmp(kind, request.ident, request.seq);
        with_frame(&bytes, Segmentation::Whole, |frame, parsed| {
            let Body::Ip(ip, Transport::Icmp(icmp)) = &parsed.body else {
                panic!("not ICMP: {parsed:?}");
            };
            self.icmp.handle_message(frame, ip, icmp, &mut self.world.ctx());
        });
    }

    fn event(&mut self, socket: usize, ready: Readiness) {
        let flow = self.world.host.flow(socket);
        self.icmp.handle_socket(flow, ready, &mut self.world.ctx());
    }

    fn wait(&mut self, seconds: u64) {
        self.world.wait(seconds);
        for flow in self.world.expired() {
            self.icmp.handle_timeout(flow, &mut self.world.ctx());
        }
    }
}
