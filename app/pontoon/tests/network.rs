//! Tests of engines in threads of this process.

// A test panics on an error.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pontoon::engine::config::{self, Published};
use pontoon::engine::egress::{EgressProtocol, EgressRule, Match, Pattern, Target};
use pontoon::{Attachment, FrontEndSocket, Network, NetworkOptions, Pacing, Source, Stats};

/// Returns an ARP request (RFC 826) for the gateway's address, preceded by its length.
fn arp_request() -> Vec<u8> {
    let mut frame = vec![0, 0, 0, 42];
    frame.extend([0xff; 6]);
    frame.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([2, 0, 0, 0, 0, 1, 10, 0, 2, 15]);
    frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
    frame
}

/// Returns the statistics once `done` holds for them, within 10 s.
#[track_caller]
fn wait_for_stats(network: &mut Network, done: impl Fn(&Stats) -> bool) -> Stats {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let stats = network.stats().unwrap();
        if done(&stats) {
            return stats;
        }
        assert!(Instant::now() < deadline, "{stats:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The engine ends as its guest disconnects, and its error or end is returned instead of old numbers.
#[test]
fn stats_of_an_engine_that_has_ended_are_an_error() {
    let (guest, ours) = UnixStream::pair().unwrap();
    let link = Attachment::Stream(Source::Connected(OwnedFd::from(ours)));
    let mut network = Network::attach(NetworkOptions::default(), link).unwrap();
    drop(guest);
    let deadline = Instant::now() + Duration::from_secs(10);
    while network.stats().is_ok() {
        assert!(Instant::now() < deadline, "the engine runs");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(network.stats().is_err());
}

#[test]
fn guest_behind_a_socket_gets_an_arp_reply() {
    for pacing in [Pacing::Event, Pacing::Hybrid, Pacing::Poll] {
        let (mut guest, ours) = UnixStream::pair().unwrap();
        let options = NetworkOptions {
            pacing,
            ..NetworkOptions::default()
        };
        let link = Attachment::Stream(Source::Connected(OwnedFd::from(ours)));
        let mut network = Network::attach(options, link).unwrap();
        guest.write_all(&arp_request()).unwrap();
        let mut answer = [0; 46];
        guest.read_exact(&mut answer).unwrap();
        assert_eq!(answer[24..26], [0, 2], "an ARP reply");

        // The reply is sent before the worker publishes its counters.
        let received = wait_for_stats(&mut network, |stats| stats.counters.contains(&("frames_up", 1)));
        assert_eq!((received.flows, received.rules), (0, vec![0, 0]));
        let batches = received.histograms.last().unwrap();
        assert_eq!((batches.quantity.name, batches.sum), ("batch_frames", 1));
        network.set_resolvers(Vec::new()).unwrap();
        network
            .set_owned(vec![Ipv4Addr::new(192, 0, 2, 1).into()])
            .unwrap();
        network.set_rules(Vec::new()).unwrap();
        network.stop().unwrap();
    }
}

#[test]
fn several_networks_in_one_process_stop_independently() {
    let networks: Vec<_> = (0..8)
        .map(|_| Network::start(NetworkOptions::default()).unwrap())
        .collect();
    for (mut network, mut device) in networks {
        assert_eq!(network.stats().unwrap().flows, 0);
        assert_eq!(device.config()[10..], 1500_u16.to_le_bytes());
        drop(network);
        device.reset();
    }
}

/// The engine would not report that it cannot parse a set of rules, so the previous rules would stay in force without
/// notice.
#[test]
fn updates_that_cannot_be_decoded_are_invalid_input() {
    let (mut network, _device) = Network::start(NetworkOptions::default()).unwrap();
    let rule = |text: &str| -> EgressRule { text.parse().unwrap() };
    let with = |change: fn(&mut Match)| {
        let mut rule = rule("deny 192.0.2.0/24:80");
        change(&mut rule.to);
        rule
    };
    network.set_rules(vec![rule("deny 192.0.2.0/24:80")]).unwrap();
    for rules in [
        vec![with(|to| to.ports = Some((0, 1023)))],
        vec![with(|to| to.ports = Some((80, 79)))],
        vec![with(|to| to.protocol = Some(EgressProtocol::Icmp))],
        vec![with(|to| {
            to.target = Target::Name(Pattern::Exactly("a\nallow *".into()))
        })],
        vec![rule("deny 192.0.2.0/24:80"); 4000],
    ] {
        let refused = network.set_rules(rules).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
    let resolver = SocketAddr::from(([192, 0, 2, 1], 53));
    let refused = network.set_resolvers(vec![resolver; 6000]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    network.set_resolvers(vec![resolver]).unwrap();
    let addresses = (0..10_000).map(|at| Ipv4Addr::from_bits(at).into());
    network.set_owned(addresses.collect()).unwrap();
    // The counts are those of one rule, of flows that no rule matches, and of other resolvers.
    assert_eq!(network.stats().unwrap().rules.len(), 3);
}

/// A listener of the standard library is blocking: a worker that waited for its next client would do nothing else.
#[test]
fn published_listener_is_set_to_non_blocking() {
    let mut options = NetworkOptions::default();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let host = listener.local_addr().unwrap();
    options
        .config
        .published
        .push(Published::new(config::Protocol::Tcp, host, 80));
    options.published.push(listener.into());
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let (mut network, _device) = Network::start(options).unwrap();
        let _client = TcpStream::connect(host).unwrap();
        for _ in 0..20 {
            network.stats().unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        network.stop().unwrap();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(10)).unwrap();
}

#[test]
fn stats_of_workers_that_have_received_nothing_are_zero() {
    let (_guest, ours) = UnixStream::pair().unwrap();
    let attachment = Attachment::VhostUser(FrontEndSocket {
        source: Source::Connected(OwnedFd::from(ours)),
        workers: 3,
    });
    let mut network = Network::attach(NetworkOptions::default(), attachment).unwrap();
    let stats = network.stats().unwrap();
    assert_eq!((stats.flows, stats.rules.len()), (0, 2));
    assert!(stats.counters.iter().all(|(_, count)| *count == 0), "{stats:?}");
    network.stop().unwrap();
}
