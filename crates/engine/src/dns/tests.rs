//! Transcripts: queries of the guest's, what resolvers do about them, and what comes back.

mod host;

use core::net::SocketAddr;
use core::time::Duration;

use pontoon_wire::vnet::Segmentation;
use pontoon_wire::{emit, frame};
use proptest::prelude::*;

use self::host::{FakeHost, Said};
use super::Forwarder;
use crate::ctx::{Ctx, Net};
use crate::local::fake::{GUEST_MAC, Link, OUR_MAC, moved, net, with_frame};
use crate::{Failure, Instant, Kind, Readiness};

const GUEST: &str = "10.0.2.15:4000";
const GUEST_V6: &str = "[fd70:6f6e:746f::15]:4000";
const A: &str = "192.0.2.1:53";
const B: &str = "[2001:db8::2]:53";

const READABLE: Readiness = Readiness {
    readable: true,
    writable: false,
    end: false,
    error: false,
};

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The forwarder's address in the guest's family.
fn our_address(guest: SocketAddr) -> SocketAddr {
    match guest {
        SocketAddr::V4(_) => addr("10.0.2.3:53"),
        SocketAddr::V6(_) => addr("[fd70:6f6e:746f::3]:53"),
    }
}

/// Asks for the address of `name`, with recursion desired.
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

/// The answer to `query` with `extra` bytes of records.
fn answer(query: &[u8], extra: usize) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2] |= 0x80;
    message.extend(vec![7; extra]);
    message
}

/// What the guest is told when nobody answers.
fn server_failure(query: &[u8]) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2..4].copy_from_slice(&[0x81, 0x82]);
    message
}

struct Bench {
    forwarder: Forwarder<u32>,
    net: Net,
    host: FakeHost,
    link: Link,
    now: Instant,
}

/// What one step did: counters that moved, datagrams to the guest.
type Step = (Vec<(&'static str, u64)>, Vec<Vec<u8>>);

impl Bench {
    fn new(resolvers: &[&str]) -> Self {
        let mut net = net();
        let resolvers: Vec<_> = resolvers.iter().map(|text| addr(text)).collect();
        Self {
            forwarder: Forwarder::new(&resolvers, &mut net.random),
            net,
            host: FakeHost::default(),
            link: Link::new(),
            now: Instant(1_000_000_000),
        }
    }

    fn step(&mut self, act: impl FnOnce(&mut Forwarder<u32>, &mut Ctx<'_, FakeHost, Link>)) -> Step {
        let before = self.net.counters;
        let mut ctx = Ctx {
            host: &mut self.host,
            link: &mut self.link,
            net: &mut self.net,
            now: self.now,
        };
        act(&mut self.forwarder, &mut ctx);
        let sent = self.link.take().iter().map(|frame| datagram(frame)).collect();
        (moved(&self.net, &before), sent)
    }

    /// The guest sends a datagram to the DNS address.
    fn ask(&mut self, message: &[u8]) -> Step {
        self.ask_from(GUEST, message, Segmentation::Whole)
    }

    fn ask_from(&mut self, guest: &str, message: &[u8], segmentation: Segmentation) -> Step {
        let guest = addr(guest);
        let dns = our_address(guest);
        let ip = emit::Ip {
            source: guest.ip(),
            destination: dns.ip(),
            hop_limit: 64,
            traffic_class: 0,
            dont_fragment: true,
            ident: 0,
        };
        let ether = emit::Ether {
            source: GUEST_MAC,
            destination: OUR_MAC,
        };
        let head = emit::udp(ether, ip, guest.port(), dns.port(), message.len());
        let mut bytes = [head.bytes(), message].concat();
        self.step(|forwarder, ctx| {
            with_frame(&mut bytes, segmentation, |frame| {
                let parsed = frame::parse(frame.head, frame.len).unwrap();
                let frame::Body::Ip(ip, frame::Transport::Udp(udp)) = parsed.body else {
                    panic!("not a datagram");
                };
                forwarder.handle_query(frame, &ip, &udp, ctx);
            });
        })
    }

    /// The query that `socket` was given last, as the resolver sees it.
    fn asked(&mut self) -> (u32, SocketAddr, Vec<u8>) {
        let mut sent = self.host.take_sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    /// `socket` has these to receive.
    fn event(&mut self, socket: u32, said: Vec<Said>) -> Step {
        let flow = self.host.flow(socket);
        self.host.say(socket, said);
        self.step(|forwarder, ctx| forwarder.handle_socket(flow, READABLE, ctx))
    }

    /// Time passes, timers fire.
    fn wait(&mut self, time: Duration) -> Step {
        let end = self.now + time;
        let mut all = (self.net.counters, vec![]);
        while let Some(next) = self.net.timers.next().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            while let Some(flow) = self.net.timers.expired(self.now) {
                assert_eq!(flow.kind, Kind::Dns);
                all.1
                    .extend(self.step(|forwarder, ctx| forwarder.handle_timeout(flow, ctx)).1);
            }
        }
        self.now = end;
        (moved(&self.net, &all.0), all.1)
    }

    #[track_caller]
    fn idle(&self) {
        assert_eq!(self.forwarder.pending(), 0);
        assert!(self.forwarder.by_query.is_empty());
        assert_eq!(self.net.flows, 0);
        assert_eq!(self.host.open(), 0);
        assert_eq!(self.net.timers.next(), None);
    }
}

/// The payload of a datagram from the DNS address to the guest.
#[track_caller]
fn datagram(bytes: &[u8]) -> Vec<u8> {
    let parsed = frame::parse(bytes, bytes.len()).unwrap();
    let frame::Body::Ip(ip, frame::Transport::Udp(udp)) = parsed.body else {
        // Fragments are looked at by those who expect them.
        return bytes.to_vec();
    };
    let guest = SocketAddr::new(ip.destination, udp.destination_port);
    assert!([addr(GUEST), addr(GUEST_V6)].contains(&guest));
    assert_eq!(SocketAddr::new(ip.source, udp.source_port), our_address(guest));
    bytes[udp.payload_offset..].to_vec()
}

const SECOND: Duration = Duration::from_secs(1);
const ANSWERED: [(&str, u64); 2] = [("frames_down", 1), ("udp_down", 1)];

#[test]
fn an_answer_comes_back_with_the_guests_id() {
    let mut bench = Bench::new(&[A]);
    let question = query(0x1234, "example.org");
    assert_eq!(bench.ask(&question), (vec![("dns_queries", 1)], vec![]));
    let (socket, to, asked) = bench.asked();
    assert_eq!(to, addr(A));
    assert_eq!(asked[2..], question[2..]);
    assert_ne!(asked[..2], question[..2], "a fresh id");
    assert_eq!(bench.forwarder.pending(), 1);

    let step = bench.event(socket, vec![Said::Datagram(addr(A), answer(&asked, 40))]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 40)]));
    bench.idle();
}

#[test]
fn ids_and_sockets_are_fresh_for_each_query() {
    let mut bench = Bench::new(&[A]);
    let mut ids = std::collections::BTreeSet::new();
    for n in 0..200 {
        bench.ask(&query(n, "example.org"));
        let (socket, _, asked) = bench.asked();
        assert_eq!(socket, u32::from(n));
        ids.insert([asked[0], asked[1]]);
    }
    assert!(ids.len() > 190, "{} different ids of 200", ids.len());
}

#[test]
fn only_what_answers_the_question_counts() {
    let mut bench = Bench::new(&[A]);
    let question = query(1, "example.org");
    bench.ask(&question);
    let (socket, _, asked) = bench.asked();
    let right = answer(&asked, 4);
    let with = |at: usize, bits: u8| {
        let mut wrong = right.clone();
        wrong[at] ^= bits;
        wrong
    };
    let wrong = [
        with(0, 1),    // id
        with(1, 0x80), // id
        with(2, 0x80), // a query
        with(2, 0x08), // another operation
        with(5, 1),    // no question
        with(13, 1),   // another name
        with(13, 32),  // in another case
        with(26, 1),   // another type
        right[..11].to_vec(),
        right[..20].to_vec(),
    ];
    let count = wrong.len() as u64;
    let said = wrong.map(|wrong| Said::Datagram(addr(A), wrong));
    let step = bench.event(socket, said.into());
    assert_eq!(step, (vec![("dns_mismatched", count)], vec![]));
    // Another sender, as an unconnected socket would let in.
    let step = bench.event(socket, vec![Said::Datagram(addr("192.0.2.9:53"), right.clone())]);
    assert_eq!(step, (vec![("dns_mismatched", 1)], vec![]));
    let step = bench.event(socket, vec![Said::Datagram(addr("192.0.2.1:54"), right.clone())]);
    assert_eq!(step, (vec![("dns_mismatched", 1)], vec![]));
    let step = bench.event(socket, vec![Said::Datagram(addr(A), right)]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 4)]));
    bench.idle();
}

#[test]
fn a_silent_resolver_loses_the_query_and_is_remembered() {
    let mut bench = Bench::new(&[A, B]);
    let question = query(1, "example.org");
    bench.ask(&question);
    let (first, to, _) = bench.asked();
    assert_eq!(to, addr(A));
    assert_eq!(bench.wait(SECOND / 2), (vec![], vec![]));
    assert_eq!(bench.wait(SECOND), (vec![("dns_failovers", 1)], vec![]));
    let (second, to, asked) = bench.asked();
    assert_eq!(to, addr(B));
    assert_ne!(first, second, "a fresh socket");
    assert_eq!(bench.host.open(), 1);
    let step = bench.event(second, vec![Said::Datagram(addr(B), answer(&asked, 0))]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 0)]));
    bench.idle();

    // The dead one is not asked first, nor offered to TCP, until half a minute has passed.
    assert_eq!(bench.forwarder.current_resolver(bench.now), Some(addr(B)));
    bench.wait(SECOND * 29);
    bench.ask(&query(2, "example.org"));
    let (socket, to, asked) = bench.asked();
    assert_eq!(to, addr(B));
    bench.event(socket, vec![Said::Datagram(addr(B), answer(&asked, 0))]);
    bench.wait(SECOND);
    assert_eq!(bench.forwarder.current_resolver(bench.now), Some(addr(A)));
    bench.ask(&query(3, "example.org"));
    assert_eq!(bench.asked().1, addr(A));
}

#[test]
fn a_slow_name_does_not_kill_a_resolver_that_answers_others() {
    let mut bench = Bench::new(&[A, B]);
    bench.ask(&query(1, "slow.example"));
    bench.asked();
    bench.wait(SECOND / 2);
    bench.ask(&query(2, "quick.example"));
    let (socket, _, asked) = bench.asked();
    bench.event(socket, vec![Said::Datagram(addr(A), answer(&asked, 0))]);
    assert_eq!(bench.wait(SECOND), (vec![("dns_failovers", 1)], vec![]));
    assert_eq!(bench.asked().1, addr(B));
    assert_eq!(bench.forwarder.current_resolver(bench.now), Some(addr(A)));
}

#[test]
fn one_resolver_is_asked_again_and_given_up_after_five_seconds() {
    let mut bench = Bench::new(&[A]);
    let question = query(1, "example.org");
    bench.ask(&question);
    let (socket, _, asked) = bench.asked();
    for _ in 0..3 {
        assert_eq!(bench.wait(SECOND + SECOND / 10), (vec![], vec![]));
        assert_eq!(bench.asked(), (socket, addr(A), asked.clone()), "the same again");
    }
    bench.wait(SECOND);
    bench.host.take_sent();
    let (moved, sent) = bench.wait(SECOND);
    assert_eq!(moved, [("frames_down", 1), ("udp_down", 1), ("dns_failed", 1)]);
    assert_eq!(sent, [server_failure(&question)]);
    bench.idle();
}

#[test]
fn a_refusal_fails_over_at_once() {
    let mut bench = Bench::new(&[A, B]);
    let question = query(1, "example.org");
    bench.ask(&question);
    let (socket, ..) = bench.asked();
    let step = bench.event(socket, vec![Said::Failed(Failure::Refused)]);
    assert_eq!(step, (vec![("dns_failovers", 1)], vec![]));
    let (socket, to, asked) = bench.asked();
    assert_eq!(to, addr(B));
    let step = bench.event(socket, vec![Said::Datagram(addr(B), answer(&asked, 0))]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 0)]));
    bench.idle();
}

#[test]
fn an_error_that_is_only_in_the_queue_counts_as_a_refusal() {
    let mut bench = Bench::new(&[A, B]);
    bench.ask(&query(1, "example.org"));
    let (socket, ..) = bench.asked();
    let flow = bench.host.flow(socket);
    let error = Readiness {
        error: true,
        ..READABLE
    };
    // An event of a socket that is gone by now says nothing.
    let step = bench.step(|forwarder, ctx| forwarder.handle_socket(flow, error, ctx));
    assert_eq!(step, (vec![], vec![]));
    bench.host.report(socket);
    let step = bench.step(|forwarder, ctx| forwarder.handle_socket(flow, error, ctx));
    assert_eq!(step, (vec![("dns_failovers", 1)], vec![]));
    assert_eq!(bench.asked().1, addr(B));
}

#[test]
fn when_each_has_refused_the_guest_is_told_at_once() {
    let mut bench = Bench::new(&[A, B]);
    let question = query(1, "example.org");
    bench.ask(&question);
    let (socket, ..) = bench.asked();
    bench.event(socket, vec![Said::Failed(Failure::Refused)]);
    let (socket, ..) = bench.asked();
    let (moved, sent) = bench.event(socket, vec![Said::Failed(Failure::HostUnreachable)]);
    assert_eq!(moved, [("frames_down", 1), ("udp_down", 1), ("dns_failed", 1)]);
    assert_eq!(sent, [server_failure(&question)]);
    bench.idle();
}

#[test]
fn a_resolver_that_cannot_be_connected_to_is_passed_over() {
    let mut bench = Bench::new(&[B, A]);
    bench.host.unreachable.push(addr(B));
    assert_eq!(
        bench.ask(&query(1, "example.org")).0,
        [("dns_queries", 1), ("dns_failovers", 1)]
    );
    assert_eq!(bench.asked().1, addr(A));
    assert_eq!(bench.host.open(), 1);

    bench.host.unreachable.push(addr(A));
    let question = query(2, "example.org");
    let (moved, sent) = bench.ask(&question);
    assert_eq!(
        moved,
        [
            ("frames_down", 1),
            ("udp_down", 1),
            ("dns_queries", 1),
            ("dns_failed", 1),
            ("dns_failovers", 1)
        ]
    );
    assert_eq!(sent, [server_failure(&question)]);
    assert_eq!(bench.forwarder.pending(), 1, "the first");
}

#[test]
fn without_resolvers_the_guest_is_told_at_once() {
    let mut bench = Bench::new(&[]);
    assert_eq!(bench.forwarder.current_resolver(bench.now), None);
    let question = query(1, "example.org");
    let (moved, sent) = bench.ask(&question);
    assert_eq!(
        moved,
        [
            ("frames_down", 1),
            ("udp_down", 1),
            ("dns_queries", 1),
            ("dns_failed", 1)
        ]
    );
    assert_eq!(sent, [server_failure(&question)]);
    bench.idle();
}

#[test]
fn out_of_descriptors_the_query_is_dropped() {
    let mut bench = Bench::new(&[A, B]);
    bench.host.exhausted = true;
    let (moved, sent) = bench.ask(&query(1, "example.org"));
    assert_eq!(moved, [("host_exhausted", 1), ("dns_queries", 1)]);
    assert!(sent.is_empty());
    bench.idle();
}

#[test]
fn a_repeated_query_waits_with_the_first() {
    let mut bench = Bench::new(&[A]);
    let question = query(1, "example.org");
    bench.ask(&question);
    bench.asked();
    assert_eq!(bench.ask(&question), (vec![], vec![]));
    assert!(bench.host.take_sent().is_empty());
    // Another id, name, or port is another query.
    bench.ask(&query(2, "example.org"));
    bench.ask(&query(1, "example.net"));
    bench.ask_from("10.0.2.15:4001", &question, Segmentation::Whole);
    assert_eq!(bench.host.take_sent().len(), 3);
    assert_eq!(bench.forwarder.pending(), 4);
}

#[test]
fn beyond_the_limit_the_newest_is_dropped() {
    let mut bench = Bench::new(&[A]);
    for n in 0..4_096 {
        assert_eq!(bench.ask(&query(n, "example.org")).0, [("dns_queries", 1)]);
    }
    assert_eq!(
        bench.ask(&query(5_000, "example.org")),
        (vec![("dns_dropped", 1)], vec![])
    );
    let (socket, _, asked) = bench.host.take_sent().remove(0);
    bench.event(socket, vec![Said::Datagram(addr(A), answer(&asked, 0))]);
    assert_eq!(bench.ask(&query(5_000, "example.org")).0, [("dns_queries", 1)]);
    let (moved, sent) = bench.wait(SECOND * 6);
    assert_eq!(
        moved,
        [("frames_down", 4_096), ("udp_down", 4_096), ("dns_failed", 4_096)]
    );
    assert_eq!(sent.len(), 4_096);
    bench.host.take_sent();
    bench.idle();
}

#[test]
fn large_answers_fit_and_are_cut_into_fragments() {
    let mut bench = Bench::new(&[A]);
    for len in [4_096, 60_000] {
        let question = query(1, "example.org");
        bench.ask(&question);
        let (socket, _, asked) = bench.asked();
        let message = answer(&asked, len - asked.len());
        let (moved, sent) = bench.event(socket, vec![Said::Datagram(addr(A), message)]);
        let frames = (8 + len).div_ceil(1_480);
        assert_eq!(moved, [("frames_down", frames as u64), ("udp_down", 1)]);
        assert_eq!(sent.len(), frames);
    }
    bench.idle();
}

#[test]
fn a_query_longer_than_udp_carries_is_sent_to_tcp() {
    let mut bench = Bench::new(&[A]);
    let mut question = query(1, "example.org");
    let mut truncated = question.clone();
    truncated[2..4].copy_from_slice(&[0x83, 0x80]);
    question.resize(512, 0);
    bench.ask(&question);
    assert_eq!(bench.asked().2[2..], question[2..]);
    question.resize(513, 0);
    question[1] = 2;
    truncated[1] = 2;
    let (moved, sent) = bench.ask(&question);
    assert_eq!(moved, [("frames_down", 1), ("udp_down", 1), ("dns_queries", 1)]);
    assert_eq!(sent, [truncated]);
}

#[test]
fn what_is_no_query_is_malformed() {
    let mut bench = Bench::new(&[A]);
    let whole = query(1, "example.org");
    let with = |at: usize, byte: u8| {
        let mut wrong = whole.clone();
        wrong[at] = byte;
        wrong
    };
    let mut cases: Vec<_> = (1..whole.len()).map(|len| whole[..len].to_vec()).collect();
    cases.extend([
        with(2, 0x81),
        with(4, 1),
        with(5, 2),
        with(12, 64),
        with(12, 0xc0),
    ]);
    let mut long = query(1, &["x".repeat(63).as_str(); 4].join("."));
    cases.push(long.clone());
    for wrong in cases {
        assert_eq!(bench.ask(&wrong), (vec![("malformed", 1)], vec![]), "{wrong:?}");
    }
    // 255 bytes of name are the most (RFC 1035 section 2.3.4).
    long.drain(12..14);
    long[12] = 61;
    assert_eq!(bench.ask(&long).0, [("dns_queries", 1)]);
}

#[test]
fn a_super_frame_holds_several_queries() {
    let mut bench = Bench::new(&[A]);
    let queries = [
        query(1, "example.org"),
        query(2, "example.org"),
        query(3, "example.org"),
    ];
    let len = u16::try_from(queries[0].len()).unwrap();
    let step = bench.ask_from(GUEST, &queries.concat(), Segmentation::Udp { len });
    assert_eq!(step, (vec![("dns_queries", 3)], vec![]));
    assert_eq!(bench.host.take_sent().len(), 3);
}

#[test]
fn new_resolvers_leave_waiting_queries_in_peace() {
    let mut bench = Bench::new(&[A]);
    let question = query(1, "example.org");
    bench.ask(&question);
    let (socket, _, asked) = bench.asked();
    bench.forwarder.set_resolvers(&[addr(B)]);
    bench.ask(&query(2, "example.org"));
    assert_eq!(bench.asked().1, addr(B));
    let step = bench.event(socket, vec![Said::Datagram(addr(A), answer(&asked, 0))]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 0)]));

    // One that goes unanswered moves to the new list.
    let mut bench = Bench::new(&[A]);
    bench.ask(&question);
    bench.asked();
    bench.forwarder.set_resolvers(&[addr(B)]);
    assert_eq!(bench.wait(SECOND + SECOND / 10).0, [("dns_failovers", 1)]);
    assert_eq!(bench.asked().1, addr(B));
}

#[test]
fn a_flood_on_one_port_takes_turns_with_the_rest() {
    let mut bench = Bench::new(&[A]);
    bench.ask(&query(1, "example.org"));
    let (socket, ..) = bench.asked();
    let junk = vec![Said::Datagram(addr(A), vec![0; 20]); 40];
    let step = bench.event(socket, junk);
    assert_eq!(step, (vec![("dns_mismatched", 32)], vec![]));
    let flow = bench.net.ready.pop_front().unwrap();
    let step = bench.step(|forwarder, ctx| forwarder.handle_ready(flow, ctx));
    assert_eq!(step, (vec![("dns_mismatched", 8)], vec![]));
    assert!(bench.net.ready.is_empty());
}

#[test]
fn events_of_an_earlier_life_are_ignored() {
    let mut bench = Bench::new(&[A]);
    bench.ask(&query(1, "example.org"));
    let (socket, _, asked) = bench.asked();
    let flow = bench.host.flow(socket);
    bench.event(socket, vec![Said::Datagram(addr(A), answer(&asked, 0))]);
    bench.ask(&query(2, "example.org"));
    assert_eq!(bench.host.flow(1).index, flow.index, "the slot lives again");
    bench.host.say(1, vec![Said::Failed(Failure::Refused)]);
    let step = bench.step(|forwarder, ctx| forwarder.handle_socket(flow, READABLE, ctx));
    assert_eq!(step, (vec![], vec![]));
    let step = bench.step(|forwarder, ctx| forwarder.handle_timeout(flow, ctx));
    assert_eq!(step, (vec![], vec![]));
}

#[test]
fn ipv6_guests_are_answered_from_the_ipv6_address() {
    let mut bench = Bench::new(&[A]);
    let question = query(1, "example.org");
    bench.ask_from(GUEST_V6, &question, Segmentation::Whole);
    let (socket, _, asked) = bench.asked();
    let step = bench.event(socket, vec![Said::Datagram(addr(A), answer(&asked, 0))]);
    assert_eq!(step, (ANSWERED.into(), vec![answer(&question, 0)]));
    bench.idle();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn nothing_that_anybody_says_panics(
        header in proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 12),
        rest in proptest::collection::vec(prop_oneof![Just(0_u8), 0..70_u8, any::<u8>()], 0..600),
        said in proptest::collection::vec(any::<u8>(), 0..600),
        fails: bool,
    ) {
        let mut bench = Bench::new(&[A, B]);
        bench.ask(&[header, rest].concat());
        if let Some((socket, to, asked)) = bench.host.take_sent().pop() {
            let mut close = asked;
            for (byte, other) in close.iter_mut().zip(&said).skip(2).step_by(7) {
                *byte ^= other;
            }
            bench.event(socket, vec![Said::Datagram(to, said), Said::Datagram(to, close)]);
            if fails && bench.forwarder.pending() > 0 {
                bench.event(socket, vec![Said::Failed(Failure::Other(5))]);
            }
        }
        bench.wait(SECOND * 6);
        bench.idle();
    }
}
