//! Tests of the order in which flows that wait for bandwidth continue.

mod claims;

use core::num::NonZeroU64;
use core::time::Duration;

use pontoon_wire::vnet::Segmentation;

use super::Engine;
use crate::test_world::{FakeHost, FakeLink, READABLE, Sent, net, with_frame};
use crate::{Bandwidth, Instant, WorkerId};

/// An engine with 40 UDP downloads, each of which has 1,000 datagrams in its host socket, and a limit of 64 kbit/s.
struct Saturated {
    engine: Engine<FakeHost>,
    host: FakeHost,
    link: FakeLink,
    now: Instant,
    queries: u16,
}

/// Bytes that the guest has received, without headers.
#[derive(Clone, Copy, Debug, Default)]
struct ReceivedBytes {
    dns: usize,
    bulk: usize,
}

impl Saturated {
    fn new() -> Self {
        let mut config = net().config;
        config.bandwidth = NonZeroU64::new(64_000).map(Bandwidth::new);
        let now = Instant(1_000_000_000_000);
        let mut saturated = Self {
            engine: Engine::new(config, WorkerId(0), [7; 32], now),
            host: FakeHost::default(),
            link: FakeLink::new(),
            now,
            queries: 0,
        };
        for socket in 0..DOWNLOADS {
            saturated.send(&format!("10.0.2.15:{}", 5000 + socket), "192.0.2.1:7", &[1]);
            for _ in 0..1_000 {
                saturated
                    .host
                    .queue(socket, "192.0.2.1:7", None, &[7; 1_400], 1_400);
            }
            saturated.readable(socket);
        }
        saturated
    }

    fn send(&mut self, from: &str, to: &str, payload: &[u8]) {
        self.frame(&Sent::new(from, to, payload).udp());
    }

    /// Passes a frame of the guest to the engine.
    fn frame(&mut self, bytes: &[u8]) {
        let (engine, link, host) = (&mut self.engine, &mut self.link, &mut self.host);
        with_frame(bytes, Segmentation::Whole, |frame, _| {
            engine.handle_frames(std::slice::from_ref(frame), link, host, self.now);
        });
    }

    fn readable(&mut self, socket: usize) {
        let flow = self.host.flow(socket);
        self.engine
            .handle_socket(flow, READABLE, &mut self.link, &mut self.host, self.now);
    }

    /// Sends a DNS query of the guest, whose response of about 500 bytes arrives at once.
    fn query(&mut self) {
        self.queries += 1;
        let name = format!("{:05}", self.queries);
        let mut query = self.queries.to_be_bytes().to_vec();
        query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 5]);
        query.extend(name.bytes());
        query.extend([0, 0, 1, 0, 1]);
        self.send("10.0.2.15:4000", "10.0.2.3:53", &query);
        let (socket, _, mut response) = self.host.sent.pop().expect("a forwarded query");
        response[2] |= 0x80;
        response.extend([7; 480]);
        let len = response.len();
        self.host.queue(socket, "192.0.2.53:53", None, &response, len);
        self.readable(socket);
    }

    /// Handles the timers that expire until `end`, at the times of their expiry, and returns the bytes that the guest
    /// has received.
    fn run_until(&mut self, end: Instant) -> ReceivedBytes {
        let mut received = ReceivedBytes::default();
        loop {
            while self.engine.has_ready() {
                self.engine.handle_ready(&mut self.link, &mut self.host, self.now);
            }
            for frame in self.link.take() {
                match frame[34..36] {
                    [0, 53] => received.dns += frame.len() - 42,
                    _ => received.bulk += frame.len() - 42,
                }
            }
            let Some(next) = self.engine.next_timeout().filter(|next| *next <= end) else {
                break;
            };
            self.now = self.now.max(next);
            self.engine
                .handle_timeout(&mut self.link, &mut self.host, self.now);
        }
        self.now = end;
        received
    }
}

#[test]
fn dns_response_does_not_wait_behind_downloads() {
    let mut saturated = Saturated::new();
    saturated.run_until(saturated.now + Duration::from_secs(2));
    saturated.query();
    let received = saturated.run_until(saturated.now + Duration::from_secs(1));
    assert!(received.dns > 480, "{received:?}");
}

/// Tests that neither class of traffic takes much more than half of the bandwidth while data of both waits.
#[test]
fn dns_responses_and_downloads_share_the_bandwidth() {
    let mut saturated = Saturated::new();
    let (mut dns, mut bulk) = (0, 0);
    for _ in 0..200 {
        // More responses than fit into 100 ms.
        for _ in 0..4 {
            saturated.query();
        }
        let received = saturated.run_until(saturated.now + Duration::from_millis(100));
        dns += received.dns;
        bulk += received.bulk;
    }
    assert!(bulk * 10 > (dns + bulk) * 4, "{dns} {bulk}");
    assert!(dns * 10 > (dns + bulk) * 4, "{dns} {bulk}");
    // 20 s at 64 kbit/s are 160,000 bytes. Responses that are sent at the timeout of their queries exceed the rate only
    // briefly.
    assert!(dns + bulk < 175_000, "{dns} {bulk}");
}

/// Tests that answers of the engine itself are dropped while the traffic exceeds the rate by more than a quarter of a
/// second, and that ARP replies are not.
#[test]
fn answers_of_the_engine_are_subject_to_the_rate() {
    let mut saturated = Saturated::new();
    saturated.run_until(saturated.now + Duration::from_secs(2));
    let closed = Sent::new("10.0.2.15:4000", "127.0.0.1:7", &[0; 500]).udp();
    let mut echo = Sent::new("10.0.2.15:0", "10.0.2.2:0", &[0; 500]);
    echo.hop_limit = 64;
    let echo = echo.icmp(8, 1, 1);
    let before = *saturated.engine.counters();
    for _ in 0..20 {
        saturated.frame(&echo);
        saturated.frame(&closed);
    }
    let counters = saturated.engine.counters();
    let sent = counters.frames_down - before.frames_down;
    let dropped = counters.answers_dropped - before.answers_dropped;
    assert_eq!(sent + dropped, 40);
    // A quarter of a second is 2,000 bytes.
    assert!((1..=5).contains(&sent), "{sent}");
    let arp = [
        &[0xff; 6][..],
        &[2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &[2, 0, 0, 0, 0, 2, 10, 0, 2, 15],
        &[0, 0, 0, 0, 0, 0, 10, 0, 2, 2],
    ]
    .concat();
    saturated.link.take();
    saturated.frame(&arp);
    assert_eq!(saturated.link.take().len(), 1);
}

const DOWNLOADS: usize = 40;
