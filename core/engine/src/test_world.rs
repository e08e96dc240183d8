//! A scripted host, a recording link and a virtual clock, for transcripts of the datagram protocols.
//!
//! Calls of the host, and frames sent to the guest, are kept as lines of text: one line of a test is one event, and there
//! are no other events.

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
pub(crate) use net::{GUEST, GUEST_MAC, GUEST_V6, OUR_MAC, OWNED, moved, net};

use crate::ctx::{Ctx, Net};
use crate::{Counters, FlowId, Instant};

/// The environment of the protocol under test.
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

    /// Returns the calls of the host since the last call.
    pub(crate) fn calls(&mut self) -> Vec<String> {
        self.host.take_calls()
    }

    /// Returns the frames sent to the guest since the last call.
    pub(crate) fn down(&mut self) -> Vec<String> {
        self.link.describe()
    }

    /// Returns the counters that changed since the last call, with their changes.
    pub(crate) fn moved(&mut self) -> Vec<(&'static str, u64)> {
        let moved = moved(&self.net, &self.before);
        self.before = self.net.counters;
        moved
    }

    /// Discards the recorded calls, frames and counter changes.
    pub(crate) fn forget(&mut self) {
        self.calls();
        self.down();
        self.moved();
    }

    /// Flows whose timers are due now.
    pub(crate) fn expired(&mut self) -> Vec<FlowId> {
        core::iter::from_fn(|| self.net.timers.expired(self.now)).collect()
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An address and port; port 0 where the text has none.
pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|_| (ip(text), 0).into())
}
