use pontoon_engine::Transmit;
use pontoon_link::tap::Tap;
use pontoon_link::{BURST, Link, Receive, StopAt};
use pontoon_sys::tun::{self, TapOffload};
use pontoon_wire::checksum::Sum;
use pontoon_wire::frame::{Body, parse};
use pontoon_wire::vnet::Offload;
use pontoon_wire::{Mac, emit, protocol};
use rustix::net::{SocketFlags, SocketType, getsockname, ipproto, socket_with};

use super::*;
use crate::namespace::{self, ip, sysctl};
use crate::ping::TakenPacket;

const META: DatagramMeta = DatagramMeta {
    hop_limit: 61,
    traffic_class: 0,
    dont_fragment: true,
};

fn id(index: u32) -> FlowId {
    flow(Kind::Icmp, index)
}

/// Returns a host with raw ICMP and ICMPv6 sockets.
fn raw() -> KernelHost {
    KernelHost::new(ALL, Outbound::default(), [Family::V4, Family::V6].map(raw_socket)).unwrap()
}

fn raw_socket(family: Family) -> Option<OwnedFd> {
    let protocol = match family {
        Family::V4 => ipproto::ICMP,
        Family::V6 => ipproto::ICMPV6,
    };
    let flags = SocketFlags::CLOEXEC;
    socket_with(family.domain(), SocketType::RAW, flags, Some(protocol)).ok()
}

/// Permits ping sockets to root: in a new network namespace no group may open them.
fn allow_ping_sockets() {
    sysctl("net/ipv4/ping_group_range", "0 0");
}

/// Reads all packets from the raw socket of `family`, and returns the flows to which they belong.
fn deal(host: &mut KernelHost, family: Family) -> Vec<(FlowId, Readiness)> {
    let mut dealt = Vec::new();
    loop {
        match host.take_shared(family) {
            TakenPacket::Drained => return dealt,
            TakenPacket::Unmatched => {}
            TakenPacket::Flow(flow, ready) => dealt.push((flow, ready)),
        }
    }
}

#[test]
fn ping_sockets_send_requests_and_receive_replies() {
    namespace::run(
        "tests::pings::ping_sockets_send_requests_and_receive_replies",
        || {
            ip("link set lo up");
            allow_ping_sockets();
            for ip in loopbacks("ping_sockets_send_requests_and_receive_replies") {
                let mut host = host(ALL);
                let mut socket = host.ping_open(id(1), ip).unwrap();
                host.ping_send(&mut socket, ip, META, 700, b"data").unwrap();
                until(&host, id(1), |ready| ready.readable);
                let mut data = [0; 9];
                let reply = host.ping_receive(&mut socket, &mut data).unwrap();
                assert_eq!(
                    (reply.from, reply.seq, &data[..reply.len]),
                    (ip, 700, &b"data"[..])
                );
                assert_eq!(
                    host.ping_receive(&mut socket, &mut data),
                    Err(Failure::WouldBlock)
                );
            }
        },
    );
}

#[test]
fn all_echo_ids_share_one_raw_socket() {
    namespace::run("tests::pings::all_echo_ids_share_one_raw_socket", || {
        ip("link set lo up");
        for ip in loopbacks("all_echo_ids_share_one_raw_socket") {
            let (mut host, family) = (raw(), Family::of(ip));
            let mut first = host.ping_open(id(1), ip).unwrap();
            let mut second = host.ping_open(id(2), ip).unwrap();
            host.ping_send(&mut first, ip, META, 11, b"first").unwrap();
            host.ping_send(&mut second, ip, META, 22, b"second").unwrap();

            let mut data = [0; 9];
            for (nth, seq, text) in [(1, 11, &b"first"[..]), (2, 22, &b"second"[..])] {
                let TakenPacket::Flow(who, ready) = host.take_shared(family) else {
                    panic!("there is a reply")
                };
                assert!(who == id(nth) && ready.readable && !ready.error);
                let (mine, other) = match nth {
                    1 => (&mut first, &mut second),
                    _ => (&mut second, &mut first),
                };
                assert_eq!(host.ping_receive(other, &mut data), Err(Failure::WouldBlock));
                let reply = host.ping_receive(mine, &mut data).unwrap();
                assert_eq!((reply.from, reply.seq, &data[..reply.len]), (ip, seq, text));
                assert_eq!(host.ping_receive(mine, &mut data), Err(Failure::WouldBlock));
            }
            assert_eq!(host.take_shared(family), TakenPacket::Drained);

            // Replies for an echo id that was closed belong to no flow.
            host.ping_send(&mut first, ip, META, 33, b"").unwrap();
            host.close(first);
            assert_eq!(deal(&mut host, family), []);
        }
    });
}

#[test]
fn requests_larger_than_the_path_mtu_are_reported_with_it() {
    let name = "tests::pings::requests_larger_than_the_path_mtu_are_reported_with_it";
    namespace::run(name, || {
        ip("link set lo mtu 1500 up");
        for allowed in [false, true] {
            if allowed {
                allow_ping_sockets();
            }
            for ip in [Family::V4.loopback(), Family::V6.loopback()] {
                let mut host = if allowed { host(ALL) } else { raw() };
                let mut socket = host.ping_open(id(1), ip).unwrap();
                let mut data = [0; 64];
                for _ in 0..2 {
                    let sent = host.ping_send(&mut socket, ip, META, 1, &[7; 2000]);
                    assert_eq!(sent, Err(Failure::TooBig), "{ip} {allowed}");
                    let problem = host.problem(&mut socket, &mut data).unwrap();
                    assert_eq!(
                        (problem.offender, problem.mtu),
                        (None, Some(1500)),
                        "{ip} {allowed}"
                    );
                }
                assert!(host.ping_send(&mut socket, ip, META, 2, b"small").is_ok());
            }
        }
    });
}

#[test]
fn raw_socket_sends_from_the_outbound_address() {
    namespace::run("tests::pings::raw_socket_sends_from_the_outbound_address", || {
        ip("link set lo up");
        let open = || raw_socket(Family::V4);
        let address = Ipv4Addr::new(127, 0, 0, 7);
        let socket = open().unwrap();
        let same = socket.try_clone().unwrap();
        let outbound = Outbound {
            v4: Some(address),
            ..Outbound::default()
        };
        KernelHost::new(ALL, outbound, [Some(socket), None]).unwrap();
        let bound = getsockname(&same).unwrap();
        assert_eq!(SocketAddr::try_from(bound).unwrap().ip(), address);

        let interface = |name: &str| Outbound {
            interface: Some(name.to_string()),
            ..Outbound::default()
        };
        for (name, exists) in [("lo", true), ("nowhere", false)] {
            let host = KernelHost::new(ALL, interface(name), [open(), None]).unwrap();
            assert_eq!(host.raw[0].is_some(), exists, "{name}");
        }
    });
}

#[test]
fn icmp_errors_of_routers_are_reported() {
    namespace::run("tests::pings::icmp_errors_of_routers_are_reported", || {
        let mut tap = tun::open("tap0", TapOffload::NONE, 1).unwrap();
        ip("link set tap0 address 02:00:00:00:00:01 up");
        ip("addr add 10.9.9.1/24 dev tap0");
        ip("neigh add 10.9.9.2 lladdr 02:00:00:00:00:02 dev tap0 nud permanent");
        let mut link = Tap::new(tap.queues.remove(0), tap.offload, 1500).unwrap();
        let (receiver, transmitter) = link.halves();
        let to: IpAddr = "10.9.9.2".parse().unwrap();
        for allowed in [false, true] {
            if allowed {
                allow_ping_sockets();
            }
            let mut host = if allowed { host(ALL) } else { raw() };
            let mut socket = host.ping_open(id(4), to).unwrap();
            host.ping_send(&mut socket, to, META, 77, b"data").unwrap();

            // The echo request as the tap receives it.
            let mut request = Vec::new();
            receiver.receive(BURST, StopAt::Empty, |frames| {
                for frame in frames {
                    if let Ok(Body::Ip(ip, _)) = parse(frame.head, frame.len).map(|frame| frame.body)
                        && ip.protocol == protocol::ICMP
                    {
                        assert_eq!(ip.hop_limit, 61);
                        request = frame.head[14..].to_vec();
                    }
                }
            });
            assert_eq!(
                Sum::new().add(&request[20..]).finish(),
                0,
                "its checksum is right"
            );

            // A router on the path sends Time Exceeded (RFC 792).
            let mut complaint = vec![11, 0, 0, 0, 0, 0, 0, 0];
            complaint.extend_from_slice(&request);
            let sum = Sum::new().add(&complaint).finish();
            complaint[2..4].copy_from_slice(&sum.to_be_bytes());
            let ether = emit::Ether {
                source: Mac([2, 0, 0, 0, 0, 2]),
                destination: Mac([2, 0, 0, 0, 0, 1]),
            };
            let router: IpAddr = "10.9.9.77".parse().unwrap();
            let header = emit::Ip {
                source: router,
                destination: "10.9.9.1".parse().unwrap(),
                hop_limit: 64,
                traffic_class: 0,
                dont_fragment: true,
                ident: 0,
            };
            let head = emit::ip(ether, header, protocol::ICMP, complaint.len());
            transmitter.send(Offload::NONE, head.bytes(), &complaint).unwrap();

            if !allowed {
                let TakenPacket::Flow(who, ready) = host.take_shared(Family::V4) else {
                    panic!("there is an error")
                };
                assert!(who == id(4) && ready.error);
            }
            let mut sent = [0; 64];
            let problem = host.problem(&mut socket, &mut sent).unwrap();
            assert_eq!(
                (problem.kind, problem.code, problem.offender),
                (11, 0, Some(router))
            );
            assert_eq!((problem.destination.ip(), problem.payload_len), (to, 12));
            assert_eq!(sent[..12], request[20..], "the request, ICMP header first");
        }
    });
}
