//! Test fixture for egress rules: an engine with rules, and its guest.

use core::net::IpAddr;

use super::*;
use crate::test_world::{FakeHost, FakeLink, GUEST, GUEST_V6, OWNED, READABLE, Sent, ip, net, with_frame};
use crate::{Counters, Engine, Instant, WorkerId};
use pontoon_wire::vnet::Segmentation;

pub(super) struct Fixture {
    pub(super) engine: Engine<FakeHost>,
    pub(super) host: FakeHost,
    pub(super) link: FakeLink,
    pub(super) now: Instant,
    before: Counters,
}

/// The result of sending a packet from the guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// These calls of the host were made, and no packet was sent to the guest.
    Out(Vec<String>),
    /// No host socket was opened, and this packet was sent to the guest.
    Replied(String),
}

impl Fixture {
    pub(super) fn new(lines: &[&str]) -> Self {
        let mut config = net().config;
        config.egress.set(&rules(lines));
        Self::with_config(config)
    }

    pub(super) fn with_config(config: crate::Config) -> Self {
        let now = Instant(1_000_000_000_000);
        let mut engine = Engine::new(config, WorkerId(0), [7; 32], now);
        let (mut host, mut link) = (FakeHost::default(), FakeLink::new());
        engine.set_owned_addresses(&OWNED.map(|owned| ip(owned).into()), &mut link, &mut host, now);
        Self {
            before: *engine.counters(),
            engine,
            host,
            link,
            now,
        }
    }

    pub(super) fn set_rules(&mut self, lines: &[&str]) {
        self.engine
            .set_rules(&rules(lines), &mut self.link, &mut self.host, self.now);
    }

    /// Replaces the rules, and keeps the flows that they refuse.
    pub(super) fn set_rules_for_new_flows(&mut self, lines: &[&str]) {
        let (link, host) = (&mut self.link, &mut self.host);
        self.engine
            .replace_rules(&rules(lines), RefusedFlows::Keep, link, host, self.now);
    }

    /// Ends flows by a rule; returns their number.
    pub(super) fn end(&mut self, rule: &str) -> u32 {
        let (what, link, host) = (rule.parse().unwrap(), &mut self.link, &mut self.host);
        self.engine.end_flows_to(&what, link, host, self.now)
    }

    /// Ends the flow of the host socket with this number; returns the number of flows that were ended.
    pub(super) fn end_socket(&mut self, socket: usize) -> u32 {
        let id = self.host.flow(socket);
        let (link, host) = (&mut self.link, &mut self.host);
        self.engine.end_flow(id, link, host, self.now)
    }

    /// Handles the events of a socket from which the host can read; returns the packets to the guest.
    pub(super) fn read(&mut self, socket: usize) -> Vec<String> {
        let flow = self.host.flow(socket);
        self.engine
            .handle_socket(flow, READABLE, &mut self.link, &mut self.host, self.now);
        self.host.take_calls();
        self.link.describe()
    }

    /// Sends a packet from the guest; a UDP datagram has five bytes.
    pub(super) fn send(&mut self, protocol: EgressProtocol, to: &str) -> Fate {
        self.send_from(4000, protocol, to)
    }

    pub(super) fn send_from(&mut self, port: u16, protocol: EgressProtocol, to: &str) -> Fate {
        let guest = if addr(to).is_ipv4() { GUEST } else { GUEST_V6 };
        let sent = Sent::new(&SocketAddr::new(addr(guest).ip(), port).to_string(), to, b"hello");
        self.take(&match protocol {
            EgressProtocol::Tcp => sent.syn(),
            EgressProtocol::Udp => sent.udp(),
            EgressProtocol::Icmp => sent.icmp(if sent.to.is_ipv4() { 8 } else { 128 }, 7, 1),
        });
        let calls = self.host.take_calls();
        let mut packets = self.link.describe();
        match packets.pop() {
            None => Fate::Out(calls),
            Some(line) => {
                assert!(packets.is_empty() && calls.is_empty(), "{packets:?} {calls:?}");
                Fate::Replied(line)
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        with_frame(bytes, Segmentation::Whole, |frame, _| {
            self.engine.handle_frames(
                std::slice::from_ref(frame),
                &mut self.link,
                &mut self.host,
                self.now,
            );
        });
    }

    /// Sends a query of the guest for an address of `name` to the forwarder, delivers the response that `answer` builds
    /// from the resolver, and checks that the guest receives it.
    pub(super) fn resolve(&mut self, name: &str, kind: u16, answer: impl FnOnce(&mut Answer)) {
        let question = question(name, kind);
        self.take(&Sent::new(GUEST, "10.0.2.3:53", &question).udp());
        let (socket, _, query) = self.host.sent.pop().expect("asked");
        let mut message = Answer::to(&query);
        answer(&mut message);
        self.host
            .queue(socket, "192.0.2.53:53", None, &message.0, message.0.len());
        let flow = self.host.flow(socket);
        self.engine
            .handle_socket(flow, READABLE, &mut self.link, &mut self.host, self.now);
        self.host.take_calls();
        let packets = self.link.describe();
        assert!(
            packets.iter().all(|line| line.starts_with("fragment "))
                || packets.len() == 1 && packets[0].starts_with("udp 10.0.2.3:53 >"),
            "{packets:?}"
        );
    }

    /// Advances the time, and handles timers when they expire.
    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.engine.next_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.engine
                .handle_timeout(&mut self.link, &mut self.host, self.now);
        }
        self.now = end;
        self.host.take_calls();
        self.link.frames.clear();
    }

    pub(super) fn news(&mut self) -> Vec<String> {
        self.engine.take_news().iter().map(ToString::to_string).collect()
    }

    /// Returns the number of matches of each rule that has matched a packet.
    pub(super) fn counts(&self) -> Vec<(String, u64)> {
        self.engine
            .egress()
            .counts()
            .filter(|(_, hits)| *hits > 0)
            .collect()
    }

    /// Returns the changes of counters since the previous call.
    pub(super) fn moved(&mut self) -> Vec<(&'static str, u64)> {
        let now = *self.engine.counters();
        let moved = now
            .iter()
            .zip(self.before.iter())
            .filter(|(now, before)| now != before)
            .map(|((name, now), (_, before))| (name, now - before))
            .collect();
        self.before = now;
        moved
    }
}

pub(super) fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message.extend(labels(name));
    message.extend(kind.to_be_bytes());
    message.extend([0, 1]);
    message
}

fn labels(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes
}

/// Builder of a DNS response.
pub(super) struct Answer(pub(super) Vec<u8>);

impl Answer {
    pub(super) fn to(query: &[u8]) -> Self {
        let mut message = query.to_vec();
        message[2] |= 0x80;
        Self(message)
    }

    pub(super) fn address(&mut self, name: &str, ttl: u32, address: &str) -> &mut Self {
        match address.parse().unwrap() {
            IpAddr::V4(v4) => self.record(name, 1, ttl, &v4.octets()),
            IpAddr::V6(v6) => self.record(name, 28, ttl, &v6.octets()),
        }
    }

    pub(super) fn alias(&mut self, name: &str, of: &str) -> &mut Self {
        self.record(name, 5, 1, &labels(of))
    }

    pub(super) fn failed(&mut self) {
        self.0[3] |= 3;
    }

    /// Adds an MX record of `name` that names the mail server `server`.
    pub(super) fn mail(&mut self, name: &str, server: &str) -> &mut Self {
        self.record(name, 15, 300, &[&[0, 1][..], &labels(server)].concat())
    }

    /// Adds an HTTPS record: of a service with address hints or, with priority 0, of an alias.
    pub(super) fn https(&mut self, name: &str, priority: u8, target: &str, hints: &[&str]) -> &mut Self {
        let (v4, v6): (Vec<_>, Vec<_>) = hints
            .iter()
            .map(|hint| hint.parse::<IpAddr>().unwrap())
            .partition(IpAddr::is_ipv4);
        let octets = |address: &IpAddr| match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let mut data = vec![0, priority];
        data.extend(labels(target));
        for (key, hints) in [(4_u16, v4), (6, v6)] {
            let value: Vec<u8> = hints.iter().flat_map(octets).collect();
            if !value.is_empty() {
                data.extend(key.to_be_bytes());
                data.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
                data.extend(value);
            }
        }
        self.record(name, 65, 300, &data)
    }

    /// Moves the last `count` records to the additional section.
    pub(super) fn beside(&mut self, count: u8) -> &mut Self {
        self.0[7] -= count;
        self.0[11] += count;
        self
    }

    fn record(&mut self, name: &str, kind: u16, ttl: u32, data: &[u8]) -> &mut Self {
        self.0[7] += 1;
        self.0.extend(labels(name));
        self.0.extend(kind.to_be_bytes());
        self.0.extend([0, 1]);
        self.0.extend(ttl.to_be_bytes());
        self.0.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        self.0.extend(data);
        self
    }
}
