//! The engine's door: frames, socket events and time come in here and go to the protocol that they concern.

use core::net::{IpAddr, SocketAddr};

use crate::config::Config;
use crate::counters::Counters;
use crate::{FlowId, Frame, Host, Instant, Readiness, Transmit, WorkerId};

/// The engine of one worker.
#[derive(Debug)]
pub struct Engine<H: Host> {
    socket: core::marker::PhantomData<H::Socket>,
}

impl<H: Host> Engine<H> {
    /// An engine with no flows. `seed` feeds every random choice; `now` is the time of the first turn.
    #[must_use]
    pub fn new(config: Config, worker: WorkerId, seed: [u8; 32], now: Instant) -> Self {
        let _ = (config, worker, seed, now);
        todo!()
    }

    /// A burst of frames from the guest.
    pub fn handle_frames<T: Transmit>(
        &mut self,
        frames: &[Frame<'_>],
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        let _ = (frames, link, host, now);
        todo!()
    }

    /// An event on a socket or listener.
    pub fn handle_socket<T: Transmit>(
        &mut self,
        flow: FlowId,
        ready: Readiness,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) {
        let _ = (flow, ready, link, host, now);
        todo!()
    }

    /// Serves the timers that are due.
    pub fn handle_timeout<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        let _ = (link, host, now);
        todo!()
    }

    /// The link has room again.
    pub fn handle_link_ready<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        let _ = (link, host, now);
        todo!()
    }

    /// Gives each flow that has more to do one quantum (64 KiB). True while some flow has still more.
    pub fn handle_ready<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) -> bool {
        let _ = (link, host, now);
        todo!()
    }

    /// When [`Self::handle_timeout`] has something to do; `None`: never, until something else happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        todo!()
    }

    /// The host's resolvers have changed.
    pub fn set_resolvers(&mut self, resolvers: Vec<SocketAddr>) {
        let _ = resolvers;
        todo!()
    }

    /// The host's own addresses have changed.
    pub fn set_owned_addresses(&mut self, owned: Vec<IpAddr>) {
        let _ = owned;
        todo!()
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        todo!()
    }

    /// Flows of every kind that hold a slot.
    #[must_use]
    pub fn flows(&self) -> usize {
        todo!()
    }
}
