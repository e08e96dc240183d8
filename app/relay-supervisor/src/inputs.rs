//! Packet rings and UDP sockets from which relay workers receive datagrams.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use pontoon_relay::counters::InterfaceStats;
use pontoon_relay::rule::Input;
use pontoon_sys::Family;

use crate::links::Links;
use crate::worker_pool::WorkerPool;
use deferred_close::DeferredClose;
pub(super) use packet_ring::instructions;
use receiver::{IngressState, RingParams, RingState};
use ring_watchdog::RingCheck;

mod deferred_close;
mod packet_ring;
mod receiver;
mod ring_watchdog;
mod sockets;

/// Interface and address family on which datagrams are received.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ingress {
    pub(super) interface: String,
    v6: bool,
}

/// Kind of socket on which datagrams are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveMode {
    /// Packet rings.
    Ring,
    /// UDP sockets, which need no privilege.
    Socket,
}

/// Receivers of all rules, by interface and address family.
#[derive(Debug)]
pub(super) struct Inputs {
    mode: ReceiveMode,
    /// Limit on open UDP sockets; the other descriptors are for rings, outputs, clients and workers.
    max_sockets: usize,
    ingresses: BTreeMap<Ingress, IngressState>,
    deferred: DeferredClose,
    next_table: u32,
    next_id: u32,
}

impl Ingress {
    pub(super) fn of(input: &Input) -> Self {
        Self {
            interface: input.interface.clone(),
            v6: input.is_v6(),
        }
    }

    pub(super) fn receives(&self, input: &Input) -> bool {
        self.v6 == input.is_v6() && self.interface == input.interface
    }

    fn family(&self) -> Family {
        if self.v6 { Family::V6 } else { Family::V4 }
    }

    fn family_name(&self) -> &'static str {
        if self.v6 { "IPv6" } else { "IPv4" }
    }
}

impl Inputs {
    pub(super) fn new(mode: ReceiveMode, max_sockets: usize) -> Self {
        Self {
            mode,
            max_sockets,
            ingresses: BTreeMap::new(),
            deferred: DeferredClose::default(),
            next_table: 0,
            next_id: 0,
        }
    }

    /// Returns the kind of socket on which datagrams are received.
    pub(super) fn mode(&self) -> ReceiveMode {
        self.mode
    }

    /// Returns true if `ingress` has been added.
    pub(super) fn has(&self, ingress: &Ingress) -> bool {
        self.ingresses.contains_key(ingress)
    }

    /// Adds `ingress`, which counts in the row `row` of the counters.
    pub(super) fn add(&mut self, ingress: Ingress, row: u32) {
        self.next_table += 1;
        self.ingresses
            .insert(ingress, IngressState::new(self.next_table, row));
    }

    /// Returns the number of the lookup table of an ingress's rules.
    pub(super) fn table(&self, ingress: &Ingress) -> Option<u32> {
        Some(self.ingresses.get(ingress)?.table)
    }

    /// Removes `ingress`, closes its rings or sockets, and returns its row of counters.
    pub(super) fn remove(&mut self, ingress: &Ingress, workers: &mut WorkerPool) -> Option<u32> {
        let mut receiver = self.ingresses.remove(ingress)?;
        receiver.close(workers, &mut self.deferred);
        Some(receiver.row)
    }

    /// Returns all ingresses.
    pub(super) fn ingresses(&self) -> Vec<Ingress> {
        self.ingresses.keys().cloned().collect()
    }

    /// Returns the reason why no datagrams can be received for a rule with this input; `None` if they can.
    pub(super) fn missing(&self, input: &Input) -> Option<&str> {
        self.ingresses.get(&Ingress::of(input))?.missing(input)
    }

    /// Returns true if an ingress is not open, or not for all of its rules, and another attempt may succeed. A socket that
    /// the limit refuses is not retried.
    pub(super) fn incomplete(&self) -> bool {
        self.ingresses.values().any(IngressState::is_incomplete)
            || (self.refused() > 0 && self.open_sockets() < self.max_sockets)
    }

    /// Returns the number of destinations that have no socket because the limit on open sockets is reached.
    pub(super) fn refused(&self) -> usize {
        self.ingresses.values().map(IngressState::refused).sum()
    }

    fn open_sockets(&self) -> usize {
        self.ingresses.values().map(IngressState::open_sockets).sum()
    }

    /// Returns the time of the next check of a ring or deferred close.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let checks = self.ingresses.values().filter_map(IngressState::next_check);
        checks.chain(self.deferred.next_deadline()).min()
    }

    /// Begins periodic checks of rings, because SIGIO has reported a packet at one of them.
    pub(super) fn on_packet_signal(&mut self) {
        let now = Instant::now();
        for ring in self.ingresses.values_mut().filter_map(IngressState::ring_mut) {
            ring.wake(now);
        }
    }

    /// Closes the rings of each ingress of which the kernel has stopped a ring. The caller opens the returned ingresses
    /// again.
    pub(super) fn close_stalled(&mut self, workers: &mut WorkerPool) -> Vec<Ingress> {
        let now = Instant::now();
        let mut closed = Vec::new();
        for (ingress, receiver) in &mut self.ingresses {
            if receiver.next_check().is_none_or(|due| now < due) {
                continue;
            }
            match receiver.check(workers, now) {
                RingCheck::Working => {}
                RingCheck::Stalled => {
                    receiver.close_stalled(ingress, workers, &mut self.deferred);
                    closed.push(ingress.clone());
                }
            }
        }
        closed
    }

    /// Closes one ring whose deferred close is due.
    pub(super) fn close_due(&mut self) {
        self.deferred.close_due();
    }

    /// Returns the ingresses whose rings depend on an interface setting that has changed.
    pub(super) fn outdated(&self, links: &Links) -> Vec<Ingress> {
        let outdated = |(ingress, receiver): &(&Ingress, &IngressState)| {
            receiver.state.is_ok() && receiver.params() != self.params(ingress, links)
        };
        let ingresses = self.ingresses.iter().filter(outdated);
        ingresses.map(|(ingress, _)| ingress.clone()).collect()
    }

    /// Returns the settings on which the rings of an ingress depend; `None` if rings cannot be opened now.
    fn params(&self, ingress: &Ingress, links: &Links) -> Option<RingParams> {
        let link = links.get(&ingress.interface).filter(|link| link.up)?;
        let is_stacked_on =
            |other: &Ingress| other.v6 == ingress.v6 && links.is_stacked_on(&other.interface, link.index);
        Some(RingParams {
            index: link.index,
            mtu: link.mtu,
            defragment: ingress.v6 || !self.ingresses.keys().any(is_stacked_on),
        })
    }

    /// Opens or closes an ingress according to the state of its interface, and adapts it to its current rules.
    pub(super) fn update<'a>(
        &mut self,
        ingress: &Ingress,
        rules: impl Iterator<Item = &'a Input> + Clone,
        links: &Links,
        workers: &mut WorkerPool,
    ) {
        let params = self.params(ingress, links);
        let open_sockets = self.open_sockets();
        let (mode, next_id) = (self.mode, &mut self.next_id);
        let Some(receiver) = self.ingresses.get_mut(ingress) else {
            return;
        };
        let of_others = open_sockets - receiver.open_sockets();
        let max_sockets = self.max_sockets.saturating_sub(of_others);
        let link = links.get(&ingress.interface).filter(|link| link.up);
        if receiver.params() != params {
            receiver.close(workers, &mut self.deferred);
        }
        let (Some(link), Some(params)) = (link, params) else {
            let why = match links.get(&ingress.interface) {
                None => "no such interface",
                Some(_) => "the interface is down",
            };
            receiver.wait(ingress, why);
            return;
        };
        if receiver.state.is_err() {
            receiver.open(ingress, mode, params, next_id, workers);
        }
        receiver.adapt(ingress, link, rules, max_sockets, next_id, workers);
    }

    /// Sends all inputs to the worker `number`, whose process has just been started.
    pub(super) fn restore_worker(&self, number: usize, workers: &mut WorkerPool) {
        for receiver in self.ingresses.values() {
            receiver.send(number, RingState::Used, workers);
        }
    }

    /// Returns the counters of each ingress.
    pub(super) fn stats(&mut self, workers: &WorkerPool) -> Vec<InterfaceStats> {
        let ingresses = self.ingresses.iter_mut();
        ingresses
            .map(|(ingress, receiver)| receiver.stats(ingress, workers))
            .collect()
    }
}

/// Returns the destination of a rule if it is a single address and port, as a UDP socket needs.
fn endpoint(input: &Input) -> Option<SocketAddr> {
    let single = input.to.prefix_len() == input.to.max_prefix_len();
    let port = input.port.filter(|_| single)?;
    Some(SocketAddr::new(input.to.addr(), port.get()))
}

#[cfg(test)]
mod tests;
