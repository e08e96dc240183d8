use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use pontoon_engine::link::{Refused, Room};
use pontoon_engine::{Frame, Transmit};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::tun::{self, TapOffload};
use pontoon_wire::frame::{Body, Transport, parse};
use pontoon_wire::vnet::{Checksum, Offload, Segmentation};
use pontoon_wire::{Mac, emit};

use super::*;
use crate::namespace::{self, ip, sysctl};

const GUEST: Mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
const OURS: Mac = Mac([0x9a, 0x55, 0x9a, 0x55, 0x9a, 0x55]);

/// Guest and gateway, by family.
const PAIRS: [(&str, &str); 2] = [("10.0.2.15", "10.0.2.2"), ("fd00::15", "fd00::2")];

/// A tap in this namespace, set up as a guest's.
fn guest(wish: TapOffload, mtu: u16) -> (Receiver, Transmitter, TapOffload) {
    let mut tap = tun::open("tap0", wish, 1).unwrap();
    sysctl("net/ipv6/conf/tap0/accept_ra", "0");
    sysctl("net/ipv6/conf/tap0/addr_gen_mode", "1");
    ip(&format!(
        "link set tap0 address 52:54:00:12:34:56 mtu {mtu} txqueuelen 4000 up"
    ));
    ip("addr add 10.0.2.15/24 dev tap0");
    ip("addr add fd00::15/64 dev tap0 nodad");
    for (_, gateway) in PAIRS {
        ip(&format!(
            "neigh add {gateway} lladdr 9a:55:9a:55:9a:55 dev tap0 nud permanent"
        ));
    }
    until_address_is_up();
    let (receiver, transmitter) = open(tap.queues.remove(0), tap.offload, mtu).unwrap();
    (receiver, transmitter, tap.offload)
}

/// The kernel adds an IPv6 address's own route by and by, from a work queue, even without DAD; until then packets to it
/// are dropped.
fn until_address_is_up() {
    for _ in 0..1000 {
        let routes = std::fs::read_to_string("/proc/net/ipv6_route").unwrap();
        if routes
            .lines()
            .any(|route| route.starts_with("fd000000000000000000000000000015 80"))
        {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the address does not come up");
}

fn all() -> TapOffload {
    TapOffload::all_but(&Disabled::default())
}

/// A guest's socket, which knows the gateway's port 9 as its peer.
fn socket((guest, gateway): (&str, &str)) -> UdpSocket {
    let socket = UdpSocket::bind((guest, 7)).unwrap();
    socket.connect((gateway, 9)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

/// A datagram from the gateway's port 9 to the guest's port 7, up to its data.
fn head((guest, gateway): (&str, &str), len: usize) -> emit::Head {
    let ether = emit::Ether {
        source: OURS,
        destination: GUEST,
    };
    let ip = emit::Ip {
        source: gateway.parse().unwrap(),
        destination: guest.parse().unwrap(),
        hop_limit: 64,
        traffic_class: 0,
        dont_fragment: true,
        ident: 0,
    };
    emit::udp(ether, ip, 9, 7, len)
}

fn whole(head: &emit::Head) -> Offload {
    Offload {
        checksum: head.checksum,
        segmentation: Segmentation::Whole,
    }
}

/// Destination and data of a UDP frame.
fn datagram(frame: &Frame<'_>) -> Option<(SocketAddr, Vec<u8>)> {
    let Body::Ip(ip, Transport::Udp(udp)) = parse(frame.head, frame.len).ok()?.body else {
        return None;
    };
    let mut data = vec![0; udp.payload_len];
    assert_eq!(frame.copy(udp.payload_offset, &mut data), data.len());
    Some(((ip.destination, udp.destination_port).into(), data))
}

/// Everything that waits: datagrams, and sizes of bursts.
fn drain(receiver: &mut Receiver) -> (Vec<(SocketAddr, Vec<u8>)>, Vec<usize>) {
    let (mut datagrams, mut bursts) = (Vec::new(), Vec::new());
    loop {
        let burst = receiver.receive(BURST, Until::Empty, |frames| {
            datagrams.extend(frames.iter().filter_map(datagram))
        });
        bursts.push(burst.frames);
        assert_eq!(burst.malformed, 0);
        if burst.rest == Rest::Drained {
            return (datagrams, bursts);
        }
        assert_eq!(burst.rest, Rest::More);
    }
}

fn to(gateway: &str) -> SocketAddr {
    (gateway.parse::<IpAddr>().unwrap(), 9).into()
}

fn carries(wish: TapOffload) {
    let (mut receiver, mut transmitter, offload) = guest(wish, 65520);
    assert_eq!(
        offload, wish,
        "every kernel that this runs on since 6.2 has them all"
    );
    for pair in PAIRS {
        let socket = socket(pair);
        drain(&mut receiver);
        for len in [0, 1, 1000, 65_000] {
            let data: Vec<u8> = (0..=255).cycle().take(len).collect();
            socket.send(&data).unwrap();
            assert_eq!(drain(&mut receiver).0, [(to(pair.1), data.clone())]);

            let head = head(pair, len);
            transmitter.send(whole(&head), head.bytes(), &data).unwrap();
            let mut room = transmitter.reserve(1, head.bytes().len(), len).unwrap();
            room.payloads()[0].copy_from(&data);
            room.commit(whole(&head), head.bytes(), len).unwrap();
            let mut got = vec![0; 65536];
            for _ in 0..2 {
                let len = socket.recv(&mut got).unwrap();
                assert_eq!(got[..len], data);
            }
        }
    }
}

#[test]
fn carries_frames_with_metadata() {
    namespace::run(
        "link::tap::tests::carries_frames_with_metadata",
        || carries(all()),
    );
}

#[test]
fn carries_frames_without_metadata() {
    namespace::run("link::tap::tests::carries_frames_without_metadata", || {
        carries(TapOffload::NONE)
    });
}

#[test]
fn checksums_are_left_partial_both_ways() {
    namespace::run("link::tap::tests::checksums_are_left_partial_both_ways", || {
        let (mut receiver, ..) = guest(all(), 1500);
        socket(PAIRS[0]).send(b"x").unwrap();
        let mut partial = 0;
        receiver.receive(BURST, Until::Empty, |frames| {
            let udp = frames.iter().filter(|frame| datagram(frame).is_some());
            partial += udp
                .filter(|frame| frame.offload.checksum != Checksum::Complete)
                .count();
        });
        assert_eq!(partial, 1);
    });
}

#[test]
fn a_super_frame_arrives_as_datagrams() {
    namespace::run("link::tap::tests::a_super_frame_arrives_as_datagrams", || {
        let (_, mut transmitter, offload) = guest(all(), 1500);
        assert!(offload.uso && transmitter.limits().uso, "USO is from Linux 6.2");
        for pair in PAIRS {
            let socket = socket(pair);
            let head = head(pair, 2500);
            let segmentation = Segmentation::Udp { len: 1000 };
            let offload = Offload {
                checksum: head.checksum,
                segmentation,
            };
            let mut room = transmitter.reserve(1, head.bytes().len(), 2500).unwrap();
            room.payloads()[0].copy_from(&[7; 2500]);
            room.commit(offload, head.bytes(), 2500).unwrap();
            let mut got = [0; 2000];
            let sizes = [(); 3].map(|()| socket.recv(&mut got).unwrap());
            assert_eq!(sizes, [1000, 1000, 500]);
        }
    });
}

#[test]
fn bursts_are_bounded_and_say_what_is_left() {
    namespace::run(
        "link::tap::tests::bursts_are_bounded_and_say_what_is_left",
        || {
            let (mut receiver, ..) = guest(all(), 1500);
            drain(&mut receiver);
            let socket = socket(PAIRS[0]);
            for nth in 0..40_u8 {
                socket.send(&[nth]).unwrap();
            }
            let (datagrams, bursts) = drain(&mut receiver);
            let order: Vec<u8> = datagrams.iter().map(|(_, data)| data[0]).collect();
            assert_eq!(order, (0..40).collect::<Vec<_>>());
            assert_eq!(bursts, [16, 16, 8]);
            assert_eq!(
                receiver
                    .receive(BURST, Until::Empty, |_| panic!("there is none"))
                    .rest,
                Rest::Drained
            );
        },
    );
}

#[test]
fn reservations_are_used_in_order_and_undone() {
    namespace::run(
        "link::tap::tests::reservations_are_used_in_order_and_undone",
        || {
            let (_, mut transmitter, _) = guest(all(), 1500);
            let socket = socket(PAIRS[0]);
            let mut room = transmitter.reserve(3, 54, 100).unwrap();
            assert_eq!(
                room.payloads().iter().map(|room| room.len()).collect::<Vec<_>>(),
                [100; 3]
            );
            for nth in [1_u8, 2] {
                room.payloads()[0].copy_from(&[nth; 100]);
                let head = head(PAIRS[0], 50);
                room.commit(whole(&head), head.bytes(), 50).unwrap();
            }
            assert_eq!(room.payloads().len(), 1);
            drop(room);
            let mut got = [0; 200];
            for nth in [1_u8, 2] {
                assert_eq!(socket.recv(&mut got).unwrap(), 50);
                assert_eq!(got[..50], [nth; 50]);
            }
            socket.set_nonblocking(true).unwrap();
            assert!(socket.recv(&mut got).is_err(), "the third was not committed");
            // As much as fits, and never more than 64.
            assert_eq!(transmitter.reserve(1000, 54, 0).unwrap().payloads().len(), 64);
            assert_eq!(transmitter.reserve(64, 54, 65_535).unwrap().payloads().len(), 15);
            assert!(transmitter.reserve(0, 54, 100).is_none());
        },
    );
}

#[test]
fn refuses_while_the_interface_is_down() {
    namespace::run("link::tap::tests::refuses_while_the_interface_is_down", || {
        let (_, mut transmitter, _) = guest(all(), 1500);
        ip("link set tap0 down");
        let head = head(PAIRS[0], 0);
        assert_eq!(
            transmitter.send(whole(&head), head.bytes(), &[]),
            Err(Refused::Rejected)
        );
        assert!(!transmitter.take_full());
    });
}

#[test]
fn says_when_the_interface_is_gone() {
    namespace::run("link::tap::tests::says_when_the_interface_is_gone", || {
        let (mut receiver, mut transmitter, _) = guest(all(), 1500);
        ip("link del tap0");
        assert!(matches!(
            receiver.receive(BURST, Until::Empty, |_| ()).rest,
            Rest::Gone(_)
        ));
        let head = head(PAIRS[0], 0);
        assert_eq!(
            transmitter.send(whole(&head), head.bytes(), &[]),
            Err(Refused::Rejected)
        );
    });
}

#[test]
fn nothing_is_cut_without_metadata() {
    namespace::run("link::tap::tests::nothing_is_cut_without_metadata", || {
        let (_, mut transmitter, _) = guest(TapOffload::NONE, 1500);
        let limits = transmitter.limits();
        assert_eq!(
            (limits.tso4, limits.tso6, limits.uso, limits.mtu),
            (false, false, false, 1500)
        );
        let head = head(PAIRS[0], 2000);
        let offload = Offload {
            checksum: head.checksum,
            segmentation: Segmentation::Udp { len: 1000 },
        };
        assert_eq!(
            transmitter.send(offload, head.bytes(), &[0; 2000]),
            Err(Refused::Rejected)
        );
    });
}
