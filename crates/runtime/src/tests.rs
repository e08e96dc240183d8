use std::thread;
use std::time::Duration;

use pontoon_engine::config::{Addresses, UdpFilter, V4};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::tun;
use pontoon_wire::Mac;

use super::*;
use crate::namespace::{self, ip};

mod machine;

/// An engine on a new tap of this namespace, and the supervisor's end.
fn setup(pacing: Pacing, queues: u8) -> (Setup, Attachment, OwnedFd) {
    let tap = tun::open("tap0", TapOffload::all_but(&Disabled::default()), queues).unwrap();
    ip("link set tap0 up");
    let (supervisor, ours) = seqpacket::pair().unwrap();
    let addresses = Addresses {
        v4: V4 {
            subnet: "10.0.2.0/24".parse().unwrap(),
            gateway: "10.0.2.2".parse().unwrap(),
            dns: "10.0.2.3".parse().unwrap(),
            guest: "10.0.2.15".parse().unwrap(),
        },
        v6: None,
    };
    let config = Config {
        addresses,
        our_mac: Mac([2, 0, 0, 0, 0, 2]),
        guest_mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        hostname: None,
        search: Vec::new(),
        resolvers: Vec::new(),
        host_loopback: Vec::new(),
        host_addresses: false,
        published: Vec::new(),
        connect_timeout: None,
        udp_filter: UdpFilter::Address,
        max_flows: 64,
        max_flow_rate: None,
    };
    let setup = Setup {
        config,
        owned: Vec::new(),
        published: Vec::new(),
        raw_icmp: [None, None],
        supervisor: ours,
        pacing,
        outbound: None,
    };
    let attachment = Attachment::Tap {
        queues: tap.queues,
        offload: tap.offload,
    };
    (setup, attachment, supervisor)
}

/// Waits for the engine to say that it runs.
fn until_ready(supervisor: &OwnedFd) {
    let mut buffer = [0; 64];
    let message = seqpacket::receive(supervisor, &mut buffer).unwrap().unwrap();
    assert_eq!(Report::decode(&buffer[..message.len]).unwrap(), Report::Ready);
}

#[test]
fn runs_unprivileged_until_the_supervisor_is_gone() {
    namespace::run("tests::runs_unprivileged_until_the_supervisor_is_gone", || {
        for (pacing, queues) in [
            (Pacing::Event, 1),
            (Pacing::Hybrid, 1),
            (Pacing::Poll, 1),
            (Pacing::Event, 4),
        ] {
            let (setup, attachment, supervisor) = setup(pacing, queues);
            let other = thread::spawn(move || {
                until_ready(&supervisor);
                let update = Update::Owned(vec!["192.0.2.1".parse().unwrap()]);
                seqpacket::send(&supervisor, &update.encode(), &[]).unwrap();
                seqpacket::send(&supervisor, b"nonsense", &[]).unwrap();
                thread::sleep(Duration::from_millis(50));
            });
            // In a thread of its own, for what it gives up is gone for good.
            let engine = thread::spawn(move || {
                run(setup, attachment).unwrap();
                caps::verify().unwrap();
            });
            other.join().unwrap();
            engine.join().unwrap();
        }
    });
}

#[test]
fn ends_with_the_guests_interface() {
    namespace::run("tests::ends_with_the_guests_interface", || {
        for queues in [1, 4] {
            let (setup, attachment, supervisor) = setup(Pacing::Event, queues);
            let engine = thread::spawn(move || run(setup, attachment));
            until_ready(&supervisor);
            ip("link del tap0");
            engine.join().unwrap().unwrap();
        }
    });
}
