//! A test environment for transcripts of UDP, ICMP and DNS: a scripted host, a link that records frames, and a virtual
//! clock.
//!
//! The host's calls, and the frames sent to the guest, are recorded as lines of text. A transcript lists every event,
//! one in each line.

mod describe;
mod guest;
mod host;
mod link;
mod net;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

pub(crate) use guest::{Sent, ether, with_frame, with_frames};
pub(crate) use host::{FakeHost, READABLE, TROUBLE, problem};
pub(crate) use link::FakeLink;
pub(crate) use net::{EventRecorder, GUEST, GUEST_MAC, GUEST_V6, OUR_MAC, OWNED, moved, net};

use crate::ctx::{Ctx, Net};
use crate::{Counters, FlowId, Instant};

/// The environment of the protocol under test: host, link, worker state and clock.
pub(crate) struct World {
    pub(crate) host: FakeHost,
    pub(crate) link: FakeLink,
    pub(crate) net: Net,
    pub(crate) now: Instant,
    before: Counters,
}

impl World {
    pub(crate) fn new() -> Self {
        let net = net();
        Self {
            host: FakeHost::default(),
            link: FakeLink::new(),
            before: net.counters,
            net,
            now: Instant(1_000_000_000_000),
        }
    }

    pub(crate) fn ctx(&mut self) -> Ctx<'_, FakeHost, FakeLink> {
        self.net.throttle.begin_turn(self.now);
        Ctx {
            host: &mut self.host,
            link: &mut self.link,
            net: &mut self.net,
            now: self.now,
        }
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// Returns the calls of the host since the previous call of this function.
    pub(crate) fn calls(&mut self) -> Vec<String> {
        self.host.take_calls()
    }

    /// Returns the descriptions of the frames sent to the guest since the previous call of this function.
    pub(crate) fn down(&mut self) -> Vec<String> {
        self.link.describe()
    }

    /// Returns names and differences of the counters that have changed since the previous call of this function.
    pub(crate) fn moved(&mut self) -> Vec<(&'static str, u64)> {
        let moved = moved(&self.net, &self.before);
        self.before = self.net.counters;
        moved
    }

    /// Discards the calls, frames and counter changes recorded so far.
    pub(crate) fn forget(&mut self) {
        self.calls();
        self.down();
        self.moved();
    }

    /// Returns the flows whose timers have expired.
    pub(crate) fn expired(&mut self) -> Vec<FlowId> {
        core::iter::from_fn(|| self.net.timers.expired(self.now)).collect()
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Parses an address and port; without a port in the text, the port is 0.
pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|_| (ip(text), 0).into())
}
