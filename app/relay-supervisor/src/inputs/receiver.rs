//! State of an ingress: its packet rings or UDP sockets, and failures.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use pontoon_process::error::reason;
use pontoon_relay::counters::InterfaceCounter::Position;
use pontoon_relay::counters::InterfaceStats;
use pontoon_relay::rule::Input;
use pontoon_relay_worker::messages::{InputConfig, InputKind, RelayUpdate};
use pontoon_sys::filter;

use super::deferred_close::DeferredClose;
use super::packet_ring::PacketRing;
use super::ring_watchdog::RingCheck;
use super::sockets::Sockets;
use super::{Ingress, ReceiveMode, endpoint};
use crate::links::Link;
use crate::worker_pool::WorkerPool;

/// State of an ingress: its receiver if it is open, otherwise the reason why it is not, and its counters.
#[derive(Debug)]
pub(super) struct IngressState {
    pub(super) table: u32,
    pub(super) row: u32,
    pub(super) state: Result<OpenReceiver, String>,
    /// Rules for which nothing is received although the ingress is open.
    failures: Failures,
    /// Kernel's counters of the rings at the last read, and of sockets that were closed.
    kernel_packets: u64,
    kernel_dropped: u64,
    /// Number of times that the rings were reopened because the kernel had stopped one.
    reopened: u64,
}

/// Reasons why nothing is received for rules, by their destination; the key `None` means that a filter could not be
/// attached.
pub(super) type Failures = BTreeMap<Option<SocketAddr>, String>;

/// Packet rings or UDP sockets of an open ingress, and the interface settings on which they depend.
#[derive(Debug)]
pub(super) struct OpenReceiver {
    pub(super) params: RingParams,
    pub(super) source: PacketSource,
}

/// Interface settings on which a ring depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingParams {
    pub(super) index: u32,
    pub(super) mtu: u32,
    /// True if the kernel reassembles IPv4 fragments for the ring. Frames of a stacked interface also pass the ring of the
    /// lower interface, and both rings would put their fragments into the same queue, which drops duplicates: so only the
    /// ring of the upper interface reassembles.
    pub(super) defragment: bool,
}

/// Sockets from which datagrams of an ingress are received.
#[derive(Debug)]
pub(super) enum PacketSource {
    Ring(PacketRing),
    Sockets(Sockets),
}

/// State of a ring when it is sent to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingState {
    /// No worker has received from the ring before.
    New,
    /// Another worker process has received from the ring before.
    Used,
}

impl IngressState {
    /// Creates the state of an ingress that is not open.
    pub(super) fn new(table: u32, row: u32) -> Self {
        Self {
            table,
            row,
            state: Err("not open".to_owned()),
            failures: Failures::new(),
            kernel_packets: 0,
            kernel_dropped: 0,
            reopened: 0,
        }
    }

    fn set_state(&mut self, ingress: &Ingress, state: Result<OpenReceiver, String>) {
        let family = ingress.family_name();
        match (&self.state, &state) {
            (Err(old), Err(new)) if old == new => return,
            (_, Err(why)) => tracing::warn!("{}: {why}; {family} input suspended", ingress.interface),
            (_, Ok(open)) => tracing::info!("{}: {family}: {}", ingress.interface, open.describe()),
        }
        self.state = state;
    }

    fn set_failures(&mut self, ingress: &Ingress, failures: Failures) {
        let family = ingress.family_name();
        for (at, why) in &failures {
            if self.failures.get(at) != Some(why) {
                tracing::error!("{}: {family}: {why}; retrying", ingress.interface);
            }
        }
        if failures.is_empty() && !self.failures.is_empty() {
            tracing::info!(
                "{}: {family}: all receive sockets are open again",
                ingress.interface
            );
        }
        self.failures = failures;
    }

    pub(super) fn params(&self) -> Option<RingParams> {
        self.state.as_ref().ok().map(|open| open.params)
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.state.is_err() || !self.failures.is_empty()
    }

    /// Returns the reason why nothing can be received for a rule with this input; `None` if it can.
    pub(super) fn missing(&self, input: &Input) -> Option<&str> {
        let failures = || {
            let places = [None, endpoint(input)];
            places.iter().find_map(|place| self.failures.get(place))
        };
        let why = self.state.as_ref().err().or_else(failures);
        let is_refused = || {
            let at = endpoint(input);
            self.sockets()
                .zip(at)
                .is_some_and(|(sockets, at)| sockets.refused().contains(&at))
        };
        why.map(String::as_str)
            .or_else(|| is_refused().then_some("the limit on sockets is reached"))
    }

    fn describe(&self) -> String {
        let open = match &self.state {
            Ok(open) => open.describe(),
            Err(why) => return why.clone(),
        };
        match (self.failures.first_key_value(), self.failures.len()) {
            (None, _) => open,
            (Some((_, why)), 1) => format!("{open}; {why}"),
            (Some((_, why)), count) => format!("{open}; {why}; {} more", count - 1),
        }
    }

    /// Leaves the ingress closed, and logs the reason.
    pub(super) fn wait(&mut self, ingress: &Ingress, why: &str) {
        self.set_state(ingress, Err(why.to_owned()));
    }

    /// Opens the rings or sockets of the ingress and sends them to the workers.
    pub(super) fn open(
        &mut self,
        ingress: &Ingress,
        mode: ReceiveMode,
        params: RingParams,
        next_id: &mut u32,
        workers: &mut WorkerPool,
    ) {
        let source = match mode {
            ReceiveMode::Ring => {
                PacketRing::open(ingress, params, next_id, workers.len()).map(PacketSource::Ring)
            }
            ReceiveMode::Socket => Ok(PacketSource::Sockets(Sockets::default())),
        };
        let state = source.map(|source| OpenReceiver { params, source });
        self.set_state(ingress, state.map_err(|error| reason(&error)));
        for number in 0..workers.len() {
            self.send(number, RingState::New, workers);
        }
    }

    /// Adapts filters and sockets to the rules, if the ingress is open, with at most `max_sockets` UDP sockets.
    pub(super) fn adapt<'a>(
        &mut self,
        ingress: &Ingress,
        link: &Link,
        rules: impl Iterator<Item = &'a Input> + Clone,
        max_sockets: usize,
        next_id: &mut u32,
        workers: &mut WorkerPool,
    ) {
        let (table, row) = (self.table, self.row);
        let had_refused = self.refused() > 0;
        let Ok(open) = &mut self.state else {
            return;
        };
        let failures = match &mut open.source {
            PacketSource::Ring(ring) => {
                let why = |error| format!("cannot adapt to the rules: {}", reason(&error));
                let adapted = ring.adapt(ingress, link, rules);
                adapted
                    .err()
                    .map(|error| (None, why(error)))
                    .into_iter()
                    .collect()
            }
            PacketSource::Sockets(sockets) => {
                sockets.close_unwanted(rules.clone(), &mut self.kernel_dropped, |id| {
                    workers.send(0, RelayUpdate::RemoveInput(id));
                });
                let send = |id, at: SocketAddr, socket: &Arc<OwnedFd>| {
                    let kind = InputKind::Socket(at.port());
                    let input = InputConfig { id, table, row, kind };
                    workers.send(0, RelayUpdate::Input(input, Arc::clone(socket).into()));
                };
                sockets.open_wanted(ingress, link, rules, max_sockets, next_id, send)
            }
        };
        self.set_failures(ingress, failures);
        let (interface, family, refused) = (&ingress.interface, ingress.family_name(), self.refused());
        match (had_refused, refused) {
            (false, 1..) => tracing::warn!(
                "{interface}: {family}: no socket for {refused} destinations, as the descriptor limit (ulimit -Hn) is too low"
            ),
            (true, 0) => tracing::info!("{interface}: {family}: all destinations have sockets again"),
            _ => {}
        }
    }

    /// Closes the rings or sockets of the ingress. Workers forward the packets that have already arrived.
    pub(super) fn close(&mut self, workers: &mut WorkerPool, deferred: &mut DeferredClose) {
        if self.state.is_err() {
            return;
        }
        self.failures.clear();
        self.read_ring_counters();
        self.kernel_dropped += self.socket_drops();
        let open = std::mem::replace(&mut self.state, Err("closed".to_owned()));
        match open.map(|open| open.source) {
            Ok(PacketSource::Ring(ring)) => {
                ring.sockets.iter().for_each(|socket| receive_no_more(socket));
                workers.send_all(&RelayUpdate::RemoveInput(ring.id));
                deferred.extend(ring.sockets);
            }
            Ok(PacketSource::Sockets(sockets)) => {
                for (id, _, socket) in sockets.iter() {
                    receive_no_more(socket);
                    workers.send(0, RelayUpdate::RemoveInput(id));
                }
            }
            Err(_) => {}
        }
    }

    /// Closes the rings of the ingress if the kernel has stopped one. The caller opens them again.
    pub(super) fn close_stalled(
        &mut self,
        ingress: &Ingress,
        workers: &mut WorkerPool,
        deferred: &mut DeferredClose,
    ) {
        if self.reopened == 0 {
            tracing::warn!(
                "{}: {}: the kernel has stopped the ring at a packet whose segmentation type virtio_net_hdr cannot express; reopening",
                ingress.interface,
                ingress.family_name()
            );
        }
        self.reopened += 1;
        self.close(workers, deferred);
    }

    fn ring(&self) -> Option<&PacketRing> {
        match &self.state {
            Ok(OpenReceiver {
                source: PacketSource::Ring(ring),
                ..
            }) => Some(ring),
            Ok(_) | Err(_) => None,
        }
    }

    pub(super) fn ring_mut(&mut self) -> Option<&mut PacketRing> {
        match &mut self.state {
            Ok(OpenReceiver {
                source: PacketSource::Ring(ring),
                ..
            }) => Some(ring),
            Ok(_) | Err(_) => None,
        }
    }

    fn sockets(&self) -> Option<&Sockets> {
        match &self.state {
            Ok(OpenReceiver {
                source: PacketSource::Sockets(sockets),
                ..
            }) => Some(sockets),
            Ok(_) | Err(_) => None,
        }
    }

    /// Returns the number of open UDP sockets.
    pub(super) fn open_sockets(&self) -> usize {
        self.sockets().map_or(0, Sockets::len)
    }

    /// Returns the number of destinations that have no socket because the limit on open sockets is reached.
    pub(super) fn refused(&self) -> usize {
        self.sockets().map_or(0, |sockets| sockets.refused().len())
    }

    /// Returns the number of datagrams that the kernel has dropped at open sockets.
    fn socket_drops(&self) -> u64 {
        self.sockets().map_or(0, Sockets::dropped)
    }

    fn read_ring_counters(&mut self) {
        if let Some((packets, dropped)) = self.ring_mut().map(PacketRing::count) {
            self.kernel_packets += packets;
            self.kernel_dropped += dropped;
        }
    }

    /// Returns the time of the next check whether the kernel has stopped a ring.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.ring()?.next_check()
    }

    /// Checks whether the kernel has stopped a ring of the ingress.
    pub(super) fn check(&mut self, workers: &WorkerPool, now: Instant) -> RingCheck {
        self.read_ring_counters();
        let positions = workers.read(self.row).map(|row| row[Position as usize]);
        match self.ring_mut() {
            Some(ring) => ring.check(positions, now),
            None => RingCheck::Working,
        }
    }

    /// Sends the rings or sockets of the ingress to the worker `number`.
    pub(super) fn send(&self, number: usize, ring_state: RingState, workers: &mut WorkerPool) {
        let (table, row) = (self.table, self.row);
        let input = |id, kind, socket: &Arc<OwnedFd>| {
            let input = InputConfig { id, table, row, kind };
            RelayUpdate::Input(input, Arc::clone(socket).into())
        };
        match self.state.as_ref().map(|open| &open.source) {
            Ok(PacketSource::Ring(ring)) => {
                if let Some(socket) = ring.sockets.get(number) {
                    let kind = InputKind::Ring {
                        size: ring.size,
                        used: ring_state == RingState::Used,
                    };
                    workers.send(number, input(ring.id, kind, socket));
                }
            }
            Ok(PacketSource::Sockets(sockets)) if number == 0 => {
                for (id, at, socket) in sockets.iter() {
                    workers.send(0, input(id, InputKind::Socket(at.port()), socket));
                }
            }
            Ok(PacketSource::Sockets(_)) | Err(_) => {}
        }
    }

    /// Returns the counters of the ingress.
    pub(super) fn stats(&mut self, ingress: &Ingress, workers: &WorkerPool) -> InterfaceStats {
        self.read_ring_counters();
        let mut stats = InterfaceStats {
            interface: ingress.interface.clone(),
            family: if ingress.v6 { "ipv6" } else { "ipv4" }.to_owned(),
            state: self.describe(),
            kernel_packets: self.kernel_packets,
            kernel_dropped: self.kernel_dropped + self.socket_drops(),
            reopened: self.reopened,
            ..InterfaceStats::default()
        };
        workers.read(self.row).for_each(|row| stats.add(&row));
        stats
    }
}

impl OpenReceiver {
    fn describe(&self) -> String {
        match &self.source {
            PacketSource::Ring(ring) => ring.describe(),
            PacketSource::Sockets(_) => "UDP sockets".to_owned(),
        }
    }
}

/// Attaches a filter that refuses all packets, so that the worker's last read of the socket comes to an end.
pub(super) fn receive_no_more(socket: &OwnedFd) {
    if let Err(error) = filter::refuse_all(socket) {
        tracing::debug!(%error, "cannot attach a filter");
    }
}
