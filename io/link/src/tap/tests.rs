use std::net::UdpSocket;
use std::time::Duration;

use pontoon_engine::Transmit;
use pontoon_engine::link::{Room, TransmitError};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::tun;
use pontoon_wire::vnet::{Checksum, Offload, Segmentation};

use super::*;
use crate::conformance::{self, AddressPair, PAIRS, PORTS, datagram, head, suite, whole};
use crate::namespace::{self, ip, sysctl};
use crate::{BURST, Receive, StopAt};

mod with_metadata {
    super::suite!(super::Namespace<true>);
}

mod without_metadata {
    super::suite!(super::Namespace<false>);
}

/// The network stack of the test's namespace as guest behind a tap, with offload metadata or without.
pub(crate) struct Namespace<const METADATA: bool>([UdpSocket; 2]);

impl<const METADATA: bool> conformance::Guest for Namespace<METADATA> {
    type Link = Tap;

    fn run(name: &str, test: fn()) {
        namespace::run(name, test);
    }

    fn open(mtu: u16) -> (Tap, Self) {
        let requested = if METADATA { all() } else { TapOffload::NONE };
        let (link, offload) = guest(requested, mtu);
        assert_eq!(
            offload, requested,
            "every kernel that this runs on since 6.2 has them all"
        );
        (link, Self(PAIRS.map(socket)))
    }

    fn send(&mut self, pair: AddressPair, data: &[u8]) {
        self.socket(pair).send(data).unwrap();
    }

    fn receive(&mut self, pair: AddressPair) -> Option<Vec<u8>> {
        let mut data = vec![0; 65_536];
        let len = self.socket(pair).recv(&mut data).ok()?;
        data.truncate(len);
        Some(data)
    }

    fn receives(&mut self, pair: AddressPair) -> bool {
        let socket = self.socket(pair);
        socket.set_nonblocking(true).unwrap();
        let receives = socket.recv(&mut []).is_ok();
        socket.set_nonblocking(false).unwrap();
        receives
    }

    fn leave(self) {
        ip("link del tap0");
    }
}

impl<const METADATA: bool> Namespace<METADATA> {
    fn socket(&self, pair: AddressPair) -> &UdpSocket {
        &self.0[usize::from(pair.guest.contains(':'))]
    }
}

/// Opens a tap in the test's namespace and configures it as a guest's interface.
pub(crate) fn guest(requested: TapOffload, mtu: u16) -> (Tap, TapOffload) {
    let mut tap = tun::open("tap0", requested, 1).unwrap();
    sysctl("net/ipv6/conf/tap0/accept_ra", "0");
    sysctl("net/ipv6/conf/tap0/addr_gen_mode", "1");
    // Without ARP and NDP the kernel joins no solicited-node multicast group; its MLD reports would be among the frames
    // of a test.
    ip(&format!(
        "link set tap0 address 52:54:00:12:34:56 mtu {mtu} txqueuelen 4000 arp off up"
    ));
    ip("addr add 10.0.2.15/24 dev tap0");
    ip("addr add fd00::15/64 dev tap0 nodad");
    for AddressPair { gateway, .. } in PAIRS {
        ip(&format!(
            "neigh add {gateway} lladdr 9a:55:9a:55:9a:55 dev tap0 nud permanent"
        ));
    }
    until_address_is_up();
    let link = Tap::new(tap.queues.remove(0), tap.offload, mtu).unwrap();
    (link, tap.offload)
}

/// Waits until the guest's IPv6 address can receive packets. The kernel adds the local route of an address from a work
/// queue, even without DAD, and drops packets to it before. The queue is that of all namespaces: with a load of 30 the
/// wait was longer than 5 s.
fn until_address_is_up() {
    for _ in 0..6000 {
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

pub(crate) fn all() -> TapOffload {
    TapOffload::all_but(&Disabled::default())
}

/// Returns a UDP socket of the guest, connected to port 9 of the gateway.
pub(crate) fn socket(pair: AddressPair) -> UdpSocket {
    let socket = UdpSocket::bind((pair.guest, PORTS.0)).unwrap();
    socket.connect((pair.gateway, PORTS.1)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

/// The kernel may join only the all-nodes group on the tap, for which it sends no MLD report (RFC 3810 section 6).
#[test]
fn kernel_joins_no_group_that_needs_a_report_on_the_tap() {
    namespace::run(
        "tap::tests::kernel_joins_no_group_that_needs_a_report_on_the_tap",
        || {
            let _link = guest(all(), 1500);
            let joined = std::fs::read_to_string("/proc/net/igmp6").unwrap();
            let groups: Vec<&str> = joined
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>())
                .filter(|fields| fields[1] == "tap0")
                .map(|fields| fields[2])
                .collect();
            let all_nodes = [
                "ff020000000000000000000000000001",
                "ff010000000000000000000000000001",
            ];
            assert!(groups.iter().all(|group| all_nodes.contains(group)), "{groups:?}");
        },
    );
}

#[test]
fn checksums_are_partial_in_both_directions() {
    namespace::run("tap::tests::checksums_are_partial_in_both_directions", || {
        let (Tap { mut receiver, .. }, _) = guest(all(), 1500);
        socket(PAIRS[0]).send(b"x").unwrap();
        let mut partial = 0;
        receiver.receive(BURST, StopAt::Empty, |frames| {
            let udp = frames.iter().filter(|frame| datagram(frame).is_some());
            partial += udp
                .filter(|frame| frame.offload.checksum != Checksum::Complete)
                .count();
        });
        assert_eq!(partial, 1);
    });
}

#[test]
fn udp_super_frame_is_segmented_into_datagrams() {
    namespace::run("tap::tests::udp_super_frame_is_segmented_into_datagrams", || {
        let (Tap { mut transmitter, .. }, offload) = guest(all(), 1500);
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
fn frames_are_rejected_while_the_interface_is_down() {
    namespace::run(
        "tap::tests::frames_are_rejected_while_the_interface_is_down",
        || {
            let (Tap { mut transmitter, .. }, _) = guest(all(), 1500);
            ip("link set tap0 down");
            let head = head(PAIRS[0], 0);
            assert_eq!(
                transmitter.send(whole(&head), head.bytes(), &[]),
                Err(TransmitError::Rejected)
            );
            assert!(!transmitter.take_full());
        },
    );
}

#[test]
fn super_frames_are_rejected_without_metadata() {
    namespace::run("tap::tests::super_frames_are_rejected_without_metadata", || {
        let (Tap { mut transmitter, .. }, _) = guest(TapOffload::NONE, 1500);
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
            Err(TransmitError::Rejected)
        );
    });
}
