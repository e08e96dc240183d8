//! Compares random traffic with a simple model of mapping and filtering, and checks the limits under a flood.

use core::time::Duration;
use std::collections::BTreeMap;

use pontoon_wire::frame;
use pontoon_wire::vnet::{Offload, Segmentation};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use vm_memory::VolatileSlice;

use super::*;
use crate::{Frame, Instant};

/// Model of an endpoint of the guest, according to RFC 4787 and the three idle times.
struct Endpoint {
    socket: usize,
    used: Instant,
    replied: bool,
    only_dns: bool,
    sent_to: BTreeMap<String, Instant>,
}

impl Endpoint {
    fn expired(&self, now: Instant) -> bool {
        let idle = match (self.only_dns, self.replied) {
            (true, _) => 10,
            (false, false) => 30,
            (false, true) => 120,
        };
        now.since(self.used).as_secs() >= idle
    }
}

fn key(filter: UdpFilter, peer: &str) -> String {
    match filter {
        UdpFilter::Endpoint => String::new(),
        UdpFilter::Address => addr(peer).ip().to_string(),
        UdpFilter::AddressPort => peer.to_owned(),
    }
}

#[test]
fn nat_agrees_with_the_model() {
    for seed in 0..60 {
        let mut random = ChaCha12Rng::from_seed([seed; 32]);
        let mut below = |n: u32| random.next_u32() % n;
        let filter = [UdpFilter::Endpoint, UdpFilter::Address, UdpFilter::AddressPort][below(3) as usize];
        let mut nat = Nat::with_filter(filter);
        let mut model: BTreeMap<String, Endpoint> = BTreeMap::new();
        let mut opened = 0;
        for _ in 0..1_000 {
            let guest = format!("10.0.2.15:{}", 1 + below(4));
            let peer = format!("192.0.2.{}:{}", 1 + below(6), 52 + below(3));
            let now = nat.world.now;
            nat.world.forget();
            match below(8) {
                0..4 => {
                    nat.send(&guest, &peer);
                    assert_eq!(nat.world.moved(), [("udp_up", 1)]);
                    let endpoint = model.entry(guest).or_insert_with(|| {
                        opened += 1;
                        Endpoint {
                            socket: opened - 1,
                            used: now,
                            replied: false,
                            only_dns: true,
                            sent_to: BTreeMap::new(),
                        }
                    });
                    endpoint.used = now;
                    endpoint.only_dns &= addr(&peer).port() == 53;
                    endpoint.sent_to.insert(key(filter, &peer), now);
                    let sent = nat.world.calls().pop().unwrap();
                    assert!(sent.starts_with(&format!("{}: ", endpoint.socket)), "{sent}");
                }
                4..7 => {
                    let Some(endpoint) = model.get_mut(&guest) else {
                        continue;
                    };
                    let last = endpoint.sent_to.get(&key(filter, &peer));
                    let admitted = filter == UdpFilter::Endpoint
                        || last.is_some_and(|&at| now.since(at) <= Duration::from_secs(120));
                    nat.arrive(endpoint.socket, &peer);
                    if admitted {
                        (endpoint.used, endpoint.replied) = (now, true);
                        endpoint.sent_to.insert(key(filter, &peer), now);
                        assert_eq!(nat.world.down(), [format!("udp {peer} > {guest} hop 57 4")]);
                    } else {
                        assert_eq!(nat.world.moved(), [("udp_unsolicited", 1)]);
                    }
                }
                _ => {
                    nat.wait(u64::from(below(40)));
                    // Timers are rounded up to a tick of the timing wheel.
                    nat.world.now += Duration::from_millis(2);
                    nat.wait(0);
                    let now = nat.world.now;
                    model.retain(|_, endpoint| !endpoint.expired(now));
                    assert_eq!(nat.udp.len(), model.len());
                }
            }
            assert_eq!(nat.world.host.open_sockets(), model.len());
        }
    }
}

#[test]
fn flood_of_the_guest_stays_within_limits() {
    let mut random = ChaCha12Rng::from_seed([9; 32]);
    let mut nat = Nat::new();
    nat.world.net.policy.host_loopback = vec!["10.0.2.2".parse().unwrap()];
    nat.world.net.config.max_flows = 100;
    let mut carried = 0;
    for round in 0..30_000_usize {
        let (guest, remote) = [
            (GUEST, "192.0.2.1:7"),
            (GUEST_V6, "[2001:db8::1]:7"),
            (GUEST, "10.0.2.2:7"),
        ][round % 3];
        let mut bytes = Sent::new(guest, remote, &vec![0; random.next_u32() as usize % 2_000]).udp();
        for _ in 0..random.next_u32() % 4 {
            let at = random.next_u32() as usize % bytes.len().min(64);
            bytes[at] = random.next_u32() as u8;
        }
        let head = bytes[..bytes.len().min(frame::HEAD)].to_vec();
        let len = bytes.len();
        let Ok(parsed) = frame::parse(&head, len) else {
            continue;
        };
        let Body::Ip(ip, Transport::Udp(udp)) = parsed.body else {
            continue;
        };
        let parts = [VolatileSlice::from(&mut bytes[..])];
        let frame = Frame {
            offload: Offload {
                segmentation: [
                    Segmentation::Whole,
                    Segmentation::Udp {
                        len: random.next_u32() as u16 % 300,
                    },
                    Segmentation::Tcp4 { mss: 0 },
                ][random.next_u32() as usize % 3],
                ..Offload::NONE
            },
            head: &head,
            parts: &parts,
            len,
        };
        let mut gather = DatagramGather::default();
        nat.udp
            .handle_datagram(&frame, &ip, &udp, &mut gather, &mut nat.world.ctx());
        nat.udp.flush(&mut gather, &mut nat.world.ctx());
        carried += 1;
        nat.world.calls();
        nat.world.down();
    }
    let counters = &nat.world.net.counters;
    assert!(carried > 10_000 && counters.udp_up > 10_000, "{carried}");
    assert!(nat.udp.len() <= 100);
    assert_eq!(nat.world.host.open_sockets(), nat.udp.len());
}
