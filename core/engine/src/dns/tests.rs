//! Transcripts of the DNS forwarder: queries of the guest, actions of resolvers, and responses to the guest.

mod answers;
mod bounds;
mod failover;
mod shared;

use core::net::SocketAddr;
use core::time::Duration;

use pontoon_wire::frame;
use pontoon_wire::vnet::Segmentation;

use super::Forwarder;
use crate::ctx::Ctx;
use crate::test_world::{
    FakeHost, FakeLink, GUEST, GUEST_V6, READABLE, Sent, World, addr, moved, with_frame,
};
use crate::{Failure, Kind};

const A: &str = "192.0.2.1:53";
const B: &str = "[2001:db8::2]:53";
const C: &str = "192.0.2.3:53";

/// Returns the forwarder's address in the family of `guest`.
fn forwarder_address(guest: &str) -> &'static str {
    match addr(guest) {
        SocketAddr::V4(_) => "10.0.2.3:53",
        SocketAddr::V6(_) => "[fd70:6f6e:746f::3]:53",
    }
}

/// Returns a query for the address of `name`, with recursion desired.
fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend(label.bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// Returns a response to `query` with `extra` bytes of records.
fn answer(query: &[u8], extra: usize) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2] |= 0x80;
    message.extend(vec![7; extra]);
    message
}

/// Returns the SERVFAIL response that the guest receives if no resolver responds.
fn server_failure(query: &[u8]) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2..4].copy_from_slice(&[0x81, 0x82]);
    message
}

/// A DNS forwarder with its test environment.
struct Bench {
    world: World,
    forwarder: Forwarder<usize>,
}

/// Returns a forwarder that has sent a query for `example.org` to the first of `resolvers`, with the guest's query and
/// the forwarded one (as [`Bench::asked`] returns it).
fn asking(resolvers: &[&str]) -> (Bench, Vec<u8>, (usize, SocketAddr, Vec<u8>)) {
    let mut bench = Bench::new(resolvers);
    let question = query(1, "example.org");
    bench.ask(&question);
    let asked = bench.asked();
    (bench, question, asked)
}

/// The result of one step: changes of counters, and datagrams to the guest.
type Step = (Vec<(&'static str, u64)>, Vec<Vec<u8>>);

impl Bench {
    fn new(resolvers: &[&str]) -> Self {
        let mut world = World::new();
        let resolvers: Vec<_> = resolvers.iter().map(|text| addr(text)).collect();
        Self {
            forwarder: Forwarder::new(&resolvers, &mut world.net.random),
            world,
        }
    }

    fn step(&mut self, act: impl FnOnce(&mut Forwarder<usize>, &mut Ctx<'_, FakeHost, FakeLink>)) -> Step {
        let before = self.world.net.counters;
        act(&mut self.forwarder, &mut self.world.ctx());
        let frames = self.world.link.take();
        let datagrams = frames.iter().map(|frame| datagram(frame)).collect();
        (moved(&self.world.net, &before), datagrams)
    }

    /// Sends a datagram from the guest to the forwarder's address.
    fn ask(&mut self, message: &[u8]) -> Step {
        self.ask_from(GUEST, message, Segmentation::Whole)
    }

    fn ask_from(&mut self, guest: &str, message: &[u8], segmentation: Segmentation) -> Step {
        let bytes = Sent::new(guest, forwarder_address(guest), message).udp();
        self.step(|forwarder, ctx| {
            with_frame(&bytes, segmentation, |frame, parsed| {
                let frame::Body::Ip(ip, frame::Transport::Udp(udp)) = &parsed.body else {
                    panic!("not a datagram");
                };
                forwarder.handle_query(frame, ip, udp, ctx);
            });
        })
    }

    /// Returns socket, resolver and content of the queries that were sent since the previous call, and checks that each
    /// was sent alone, by a connected socket.
    fn sent(&mut self) -> Vec<(usize, SocketAddr, Vec<u8>)> {
        let sent = core::mem::take(&mut self.world.host.sent);
        let calls = self.world.calls();
        let sends: Vec<_> = calls.iter().filter(|call| call.contains('>')).collect();
        let lines = sent
            .iter()
            .map(|(socket, _, query)| format!("{socket}: > peer hop 64 {}", query.len()));
        assert!(sends.into_iter().eq(&lines.collect::<Vec<_>>()), "{calls:?}");
        sent
    }

    /// Returns the only query that was sent since the previous call.
    fn asked(&mut self) -> (usize, SocketAddr, Vec<u8>) {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    /// Lets `socket` receive datagrams from `from`.
    fn answer(&mut self, socket: usize, from: &str, messages: &[impl AsRef<[u8]>]) -> Step {
        for message in messages.iter().map(AsRef::as_ref) {
            self.world.host.queue(socket, from, None, message, message.len());
        }
        self.event(socket)
    }

    /// Lets `socket` report an error.
    fn refuse(&mut self, socket: usize, failure: Failure) -> Step {
        self.world.host.queue_failure(socket, failure);
        self.event(socket)
    }

    fn event(&mut self, socket: usize) -> Step {
        let flow = self.world.host.flow(socket);
        self.step(|forwarder, ctx| forwarder.handle_socket(flow, READABLE, ctx))
    }

    /// Advances the time, and handles timers when they expire.
    fn wait(&mut self, time: Duration) -> Step {
        let end = self.world.now + time;
        let before = self.world.net.counters;
        let mut datagrams = vec![];
        while let Some(next) = self.world.net.timers.next().filter(|next| *next <= end) {
            self.world.now = self.world.now.max(next);
            for flow in self.world.expired() {
                assert_eq!(flow.kind, Kind::Dns);
                datagrams.extend(self.step(|forwarder, ctx| forwarder.handle_timeout(flow, ctx)).1);
            }
        }
        self.world.now = end;
        (moved(&self.world.net, &before), datagrams)
    }

    #[track_caller]
    fn idle(&self) {
        assert_eq!(self.forwarder.pending(), 0);
        assert_eq!(self.forwarder.clients, 0);
        assert!(self.forwarder.by_question.is_empty());
        assert_eq!(self.world.net.flows, 0);
        assert_eq!(self.world.host.open_sockets(), 0);
        assert_eq!(self.world.net.timers.next(), None);
    }
}

/// Returns the payload of a datagram from the forwarder's address to the guest.
#[track_caller]
fn datagram(bytes: &[u8]) -> Vec<u8> {
    let parsed = frame::parse(bytes, bytes.len()).unwrap();
    let frame::Body::Ip(ip, frame::Transport::Udp(udp)) = parsed.body else {
        // Tests that expect fragments check them themselves.
        return bytes.to_vec();
    };
    let to = SocketAddr::new(ip.destination, udp.destination_port);
    let guest = [GUEST, GUEST_V6].into_iter().find(|guest| addr(guest) == to);
    let from = SocketAddr::new(ip.source, udp.source_port);
    assert_eq!(
        guest.map(|guest| addr(forwarder_address(guest))),
        Some(from),
        "to {to}"
    );
    bytes[udp.payload_offset..].to_vec()
}

const SECOND: Duration = Duration::from_secs(1);
const ANSWERED: [(&str, u64); 2] = [("frames_down", 1), ("udp_down", 1)];
