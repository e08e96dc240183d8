//! Transcripts of UDP forwarding: frames from the guest, calls of the host, frames to the guest, and changes of
//! counters.

mod decided;
mod down;
mod errors;
mod events;
mod model;
mod published;
mod up;

use pontoon_wire::frame::{Body, Transport};

use super::{DatagramGather, Udp};
use crate::config::UdpFilter;
use crate::test_world::{GUEST, GUEST_V6, READABLE, Sent, World, addr, with_frames};
use crate::{FlowId, Readiness};

/// The UDP endpoints under test, with a fake host and link.
struct Nat {
    world: World,
    udp: Udp<usize>,
}

impl Nat {
    fn new() -> Self {
        let mut world = World::new();
        let udp = Udp::new(&mut world.net.random);
        Self { world, udp }
    }

    fn with_filter(filter: UdpFilter) -> Self {
        let mut nat = Self::new();
        nat.world.net.config.udp_filter = filter;
        nat
    }

    /// Sends a burst of datagrams from the guest.
    fn burst(&mut self, sent: &[Sent]) {
        self.burst_in_pieces(sent, usize::MAX);
    }

    fn burst_in_pieces(&mut self, sent: &[Sent], piece: usize) {
        let packets: Vec<_> = sent.iter().map(|sent| (sent.udp(), sent.segmentation)).collect();
        with_frames(&packets, piece, |frames| {
            let mut gather = DatagramGather::default();
            let ctx = &mut self.world.ctx();
            for (frame, parsed) in frames {
                let Body::Ip(ip, Transport::Udp(udp)) = &parsed.body else {
                    panic!("not UDP: {parsed:?}");
                };
                self.udp.handle_datagram(frame, ip, udp, &mut gather, ctx);
            }
            self.udp.flush(&mut gather, ctx);
        });
    }

    /// Sends one datagram of five bytes from the guest.
    fn send(&mut self, from: &str, to: &str) {
        self.burst(&[Sent::new(from, to, b"hello")]);
    }

    /// Lets a host socket receive a datagram of four bytes.
    fn arrive(&mut self, socket: usize, from: &str) {
        self.world.host.queue(socket, from, None, b"data", 4);
        self.event(socket, READABLE);
    }

    fn event(&mut self, socket: usize, ready: Readiness) {
        let flow = self.world.host.flow(socket);
        self.udp.handle_socket(flow, ready, &mut self.world.ctx());
    }

    fn ready(&mut self, flow: FlowId) {
        self.udp.handle_ready(flow, &mut self.world.ctx());
    }

    /// Advances the time, and handles timers when they expire.
    fn wait(&mut self, seconds: u64) {
        self.world.wait(seconds);
        for flow in self.world.expired() {
            self.udp.handle_timeout(flow, &mut self.world.ctx());
        }
    }
}
