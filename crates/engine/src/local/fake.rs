//! A link that keeps what it is sent, and the state of a worker with the default addresses.

use core::net::IpAddr;

use pontoon_wire::vnet::{Checksum, Offload, Segmentation};
use pontoon_wire::{Mac, checksum, frame};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;
use vm_memory::VolatileSlice;

use crate::config::{Addresses, Config, UdpFilter, V4, V6};
use crate::ctx::Net;
use crate::link::{Refused, Room};
use crate::{Counters, Frame, Instant, Limits, Transmit, WorkerId};

pub(crate) const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const GUEST_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn net() -> Net {
    let addresses = Addresses {
        v4: V4 {
            subnet: "10.0.2.0/24".parse().unwrap(),
            gateway: "10.0.2.2".parse().unwrap(),
            dns: "10.0.2.3".parse().unwrap(),
            guest: "10.0.2.15".parse().unwrap(),
        },
        v6: Some(V6 {
            subnet: "fd70:6f6e:746f::/64".parse().unwrap(),
            gateway: "fd70:6f6e:746f::2".parse().unwrap(),
            router: "fe80::2".parse().unwrap(),
            dns: "fd70:6f6e:746f::3".parse().unwrap(),
            guest: "fd70:6f6e:746f::15".parse().unwrap(),
            default_route: true,
        }),
    };
    let config = Config {
        addresses,
        our_mac: OUR_MAC,
        guest_mac: GUEST_MAC,
        mtu: 1_500,
        hostname: Some("box".to_owned()),
        search: vec!["example.org".to_owned(), "corp.example".to_owned()],
        resolvers: vec!["192.0.2.53:53".parse().unwrap()],
        host_loopback: Vec::new(),
        host_addresses: false,
        published: Vec::new(),
        connect_timeout: None,
        udp_filter: UdpFilter::Address,
        max_flows: 1_000,
        max_flow_rate: None,
    };
    Net::new(
        config,
        WorkerId(0),
        ChaCha12Rng::from_seed([7; 32]),
        Instant::default(),
    )
}

/// The counters that moved since `before`, by name.
pub(crate) fn moved(net: &Net, before: &Counters) -> Vec<(&'static str, u64)> {
    net.counters
        .iter()
        .zip(before.iter())
        .filter(|(now, before)| now != before)
        .map(|((name, now), (_, before))| (name, now - before))
        .collect()
}

/// Calls `with` on `bytes` as a frame of the guest's.
pub(crate) fn with_frame<R>(
    bytes: &mut [u8],
    segmentation: Segmentation,
    with: impl FnOnce(&Frame<'_>) -> R,
) -> R {
    let head = bytes[..bytes.len().min(frame::HEAD)].to_vec();
    let len = bytes.len();
    let parts = [VolatileSlice::from(bytes)];
    with(&Frame {
        offload: Offload {
            checksum: Checksum::Complete,
            segmentation,
        },
        head: &head,
        parts: &parts,
        len,
    })
}

/// Keeps frames, with their checksums completed.
pub(crate) struct Link {
    pub(crate) sent: Vec<Vec<u8>>,
    pub(crate) mtu: usize,
    pub(crate) refuses: bool,
}

impl Link {
    pub(crate) fn new() -> Self {
        Self {
            sent: Vec::new(),
            mtu: 1_500,
            refuses: false,
        }
    }

    /// What was sent since the last call.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        core::mem::take(&mut self.sent)
    }
}

pub(crate) enum NoRoom {}

impl Transmit for Link {
    type Room<'a> = NoRoom;

    fn limits(&self) -> Limits {
        Limits {
            mtu: self.mtu,
            max_gso: 65_535,
            tso4: true,
            tso6: true,
            uso: true,
        }
    }

    fn send(&mut self, offload: Offload, head: &[u8], payload: &[u8]) -> Result<(), Refused> {
        if self.refuses {
            return Err(Refused::Full);
        }
        assert!(
            head.len() + payload.len() <= self.mtu + 14,
            "a frame larger than the MTU"
        );
        let mut frame = head.to_vec();
        checksum::complete(&mut frame, offload.checksum, [payload]).unwrap();
        frame.extend(payload);
        self.sent.push(frame);
        Ok(())
    }

    fn reserve(&mut self, _: usize, _: usize) -> Option<NoRoom> {
        None
    }

    fn flush(&mut self) {}
}

impl Room for NoRoom {
    fn payloads(&self) -> &[VolatileSlice<'_>] {
        match *self {}
    }

    fn commit(&mut self, _: Offload, _: &[u8], _: usize) -> Result<(), Refused> {
        match *self {}
    }
}
