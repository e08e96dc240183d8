//! Tests of networks in this process.

// A test panics on an error.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use pontoon::{ErrorKind, Guest, LinkService, Network, NetworkBuilder, Pacing, Stats, UdpFilter};
use pontoon_test_support::process::free_port;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns options whose addresses do not depend on the host.
fn options() -> NetworkBuilder {
    Network::builder().ipv4_subnet("10.0.2.0/24").unwrap()
}

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
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stats = network.stats().unwrap();
        if done(&stats) {
            return stats;
        }
        assert!(Instant::now() < deadline, "{stats:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a network with a guest behind a stream socket.
fn stream(options: NetworkBuilder) -> (Network, UnixStream) {
    let (guest, ours) = UnixStream::pair().unwrap();
    let network = options
        .attach(Guest::stream(OwnedFd::from(ours)).unwrap())
        .unwrap();
    (network, guest)
}

/// The engine ends as its guest disconnects, and its error or end is returned instead of old numbers.
#[test]
fn stats_of_an_engine_that_has_ended_are_an_error() {
    let (mut network, guest) = stream(options());
    drop(guest);
    let deadline = Instant::now() + PATIENCE;
    while network.stats().is_ok() {
        assert!(Instant::now() < deadline, "the engine runs");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(network.stats().unwrap_err().kind(), ErrorKind::Ended);
    assert_eq!(network.dispatch().unwrap_err().kind(), ErrorKind::Ended);
    assert_eq!(
        network.publish("127.0.0.1:0:80").unwrap_err().kind(),
        ErrorKind::InvalidOption
    );
    assert_eq!(
        network.set_rules(&["deny *"]).unwrap_err().kind(),
        ErrorKind::Ended
    );
}

/// Receives a frame.
fn frame(guest: &mut UnixStream) -> Vec<u8> {
    let mut len = [0; 4];
    guest.read_exact(&mut len).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(len) as usize];
    guest.read_exact(&mut frame).unwrap();
    frame
}

/// Returns true if the frame is an ARP packet with the operation reply (RFC 826).
fn is_arp_reply(frame: &[u8]) -> bool {
    frame[12..14] == [8, 6] && frame[20..22] == [0, 2]
}

#[test]
fn guest_behind_a_socket_gets_an_arp_reply() {
    for pacing in [Pacing::Event, Pacing::Hybrid, Pacing::Poll] {
        let (mut network, mut guest) = stream(options().pacing(pacing));
        guest.write_all(&arp_request()).unwrap();
        // The engine has requested the guest's Ethernet address when the guest attached.
        while !is_arp_reply(&frame(&mut guest)) {}

        // The reply is sent before the worker publishes its counters.
        let received = wait_for_stats(&mut network, |stats| stats.counter("frames_up") == Some(1));
        assert_eq!((received.flows, received.rules), (0, vec![]));
        let batches = received.histograms.last().unwrap();
        assert_eq!((batches.name, batches.sum), ("batch_frames", 1));
        network.set_resolvers(&[]).unwrap();
        network.refresh_host().unwrap();
        network.set_rules(&["allow 192.0.2.0/24", "deny *:25"]).unwrap();
        assert_eq!(network.stats().unwrap().rules, [0, 0]);
        network.dispatch().unwrap();
        network.stop().unwrap();
    }
}

#[test]
fn several_networks_in_one_process_stop_independently() {
    let networks: Vec<_> = (0..8).map(|_| options().device().unwrap()).collect();
    for (mut network, mut device) in networks {
        assert_eq!(network.stats().unwrap().flows, 0);
        assert_eq!(device.config()[10..], 1500_u16.to_le_bytes());
        drop(network);
        device.reset();
    }
}

/// Values may be moved to other threads, and those that have no `&mut self` be shared.
#[test]
fn types_are_send() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    is_send::<Network>();
    is_send::<NetworkBuilder>();
    is_send::<Guest>();
    is_send::<pontoon::NetDevice>();
    is_shared::<pontoon::FramePort>();
    is_shared::<pontoon::VerdictSender>();
    is_shared::<pontoon::RequestQueue>();
    is_shared::<pontoon::EventQueue>();
    is_shared::<pontoon::Error>();
}

#[test]
fn invalid_options_are_refused() {
    let (_guest, ours) = UnixStream::pair().unwrap();
    let kind = |result: Result<_, pontoon::Error>| result.map(drop).unwrap_err().kind();
    assert_eq!(kind(Guest::packet(ours.into())), ErrorKind::InvalidOption);
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(kind(Guest::tap(file.into())), ErrorKind::InvalidOption);
    for (what, result) in [
        ("rule", options().allow("192.0.2.0/24:80-79").map(drop)),
        ("rule", options().deny("").map(drop)),
        ("port", options().publish("80:http").map(drop)),
        ("subnet", options().ipv4_subnet("10.0.0.0").map(drop)),
        (
            "prefix",
            options().ipv4_subnet("10.0.0.0/30").unwrap().device().map(drop),
        ),
        (
            "families",
            options().without_ipv4().without_ipv6().device().map(drop),
        ),
        ("MTU", options().mtu(100).device().map(drop)),
        (
            "MAC",
            options()
                .gateway_mac([2, 0, 0, 0, 0, 1])
                .guest_mac([2, 0, 0, 0, 0, 1])
                .device()
                .map(drop),
        ),
        ("forward", options().guest_forward("auto").map(drop)),
        (
            "forward",
            options()
                .guest_forward("10.0.2.15:80:80")
                .unwrap()
                .device()
                .map(drop),
        ),
        (
            "mapping",
            options().map_host([10, 0, 2, 15].into()).device().map(drop),
        ),
        (
            "address",
            options()
                .outbound_address([192, 0, 2, 1].into())
                .device()
                .map(drop),
        ),
        (
            "interface",
            options().outbound_interface("absent0").device().map(drop),
        ),
        ("thread", options().without_thread().device().map(drop)),
        (
            "loopback",
            options().host_loopback([10, 0, 2, 15].into()).device().map(drop),
        ),
    ] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidOption, "{what}");
    }
}

#[test]
fn network_starts_with_each_service_disabled_and_each_filter() {
    for service in [
        LinkService::Dhcp,
        LinkService::Dhcpv6,
        LinkService::Ndp,
        LinkService::RouterAdvertisement,
        LinkService::Tcp,
        LinkService::Udp,
        LinkService::Icmp,
        LinkService::DnsOption,
    ] {
        options().disable(service).device().unwrap();
    }
    for filter in [UdpFilter::Endpoint, UdpFilter::Address, UdpFilter::AddressPort] {
        options().udp_filter(filter).max_udp_ports(10).device().unwrap();
    }
}

/// The engine would not report that it cannot decode a request, so the previous state would stay in force without notice.
#[test]
fn requests_that_do_not_fit_a_message_are_refused() {
    let (mut network, _device) = options().device().unwrap();
    network.set_rules(&["deny 192.0.2.0/24:80"]).unwrap();
    let refused = network
        .set_rules(&vec!["deny 192.0.2.0/24:80"; 4000])
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOption);
    let refused = network.set_rules(&["permit *"]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOption);
    assert_eq!(network.stats().unwrap().rules.len(), 1, "the rules are unchanged");

    let resolver = SocketAddr::from(([192, 0, 2, 1], 53));
    let labelled = SocketAddrV6::new("2001:db8::1".parse().unwrap(), 53, 1, 0);
    for resolvers in [vec![resolver; 6000], vec![labelled.into()]] {
        let refused = network.set_resolvers(&resolvers).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidOption);
    }
    network.set_resolvers(&[resolver]).unwrap();
}

#[test]
fn ports_are_published_at_run_time_and_closed() {
    for threadless in [false, true] {
        let port = free_port();
        let spec = format!("127.0.0.1:{port}:80");
        let mut builder = options();
        if threadless {
            builder = builder.without_thread();
        }
        let (mut network, _guest) = stream(builder);
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        connect().unwrap_err();
        network.publish(&spec).unwrap();
        connect().unwrap();
        let other = network.publish(&format!("127.0.0.1:{port}:81")).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Host, "{other}");
        network.unpublish(&spec).unwrap();
        connect().unwrap_err();
        network.publish(&spec).unwrap();
        connect().unwrap();
        network.stop().unwrap();
        connect().unwrap_err();
    }
}

#[test]
fn port_in_use_is_an_error_of_the_host() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let spec = format!("{}:80", listener.local_addr().unwrap());
    let error = options().publish(&spec).unwrap().device().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Host, "{error}");
    let (mut network, _device) = options().device().unwrap();
    assert_eq!(network.publish(&spec).unwrap_err().kind(), ErrorKind::Host);
    network.stop().unwrap();
}

#[test]
fn network_without_a_thread_works_when_it_is_dispatched() {
    let (mut network, mut guest) = stream(options().without_thread());
    guest.write_all(&arp_request()).unwrap();
    guest.set_nonblocking(true).unwrap();
    let mut answer = [0; 46];
    let deadline = Instant::now() + PATIENCE;
    let timeout = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    while guest.read(&mut answer).is_err() {
        assert!(Instant::now() < deadline);
        let mut polled = [PollFd::new(&network, PollFlags::IN)];
        assert_eq!(
            poll(&mut polled, Some(&timeout)),
            Ok(1),
            "the descriptor is readable"
        );
        network.dispatch().unwrap();
    }
    assert_eq!(answer[24..26], [0, 2], "an ARP reply");
    assert_eq!(network.stats().unwrap().counter("frames_up"), Some(1));

    // An idle network does not make its descriptor readable all the time.
    let mut idle = 0;
    for _ in 0..50 {
        network.dispatch().unwrap();
        let polled = PollFd::from_borrowed_fd(network.as_fd(), PollFlags::IN);
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        idle += u32::from(poll(&mut [polled], Some(&timeout)) == Ok(0));
    }
    assert!(idle > 40, "{idle} of 50 waits ended without an event");

    drop(guest);
    let deadline = Instant::now() + PATIENCE;
    while let Ok(()) = network.dispatch() {
        assert!(Instant::now() < deadline);
        let mut polled = [PollFd::new(&network, PollFlags::IN)];
        poll(&mut polled, None).unwrap();
    }
    assert_eq!(network.dispatch().unwrap_err().kind(), ErrorKind::Ended);
    assert_eq!(network.refresh_host().unwrap_err().kind(), ErrorKind::Ended);
}

#[test]
fn stats_of_workers_that_have_received_nothing_are_zero() {
    let (_guest, ours) = UnixStream::pair().unwrap();
    let guest = Guest::vhost_user(ours.into(), 3).unwrap();
    let mut network = options().attach(guest).unwrap();
    let stats = network.stats().unwrap();
    assert_eq!((stats.flows, stats.rules.len()), (0, 0));
    assert!(stats.counters.iter().all(|(_, count)| *count == 0), "{stats:?}");
    network.refresh_host().unwrap();
    network.stop().unwrap();
}
