//! The addresses to which the guest has sent echo requests. Replies and errors that concern other addresses are
//! dropped, because a raw socket also receives the replies to requests of the host's other programs.

use core::net::IpAddr;
use core::time::Duration;

use rand_chacha::ChaCha12Rng;

use crate::table::{Secret, Table};
use crate::{FlowId, Instant};
use crate::state::{Reader, StateError, Writer, record, record_enum};

/// Time for which replies to an echo request are accepted (RFC 5508 REQ-2).
const MEMORY: Duration = Duration::from_secs(60);

/// Maximum number of addresses of all echo ids together. Beyond it, the one with the oldest request is removed.
pub(super) const MOST_ADDRESSES: usize = 1 << 16;

/// Destinations of recent echo requests of the guest.
#[derive(Debug)]
pub(super) struct RequestedAddresses {
    /// Requests by echo id and destination address on the host's side. Entries of closed ids are not found any more,
    /// and expire.
    table: Table<(FlowId, IpAddr), LastRequest>,
}

/// The last echo request of an echo id to an address.
#[derive(Debug)]
struct LastRequest {
    /// Destination address as the guest has sent it, before translation.
    written: IpAddr,
    sent: Instant,
    route: RequestRoute,
    /// True if the egress rules refuse the address since they changed, and it is kept.
    is_kept: bool,
}

record! { LastRequest { written, sent, route, is_kept } }

/// The way in which the address of an entry and the destination that the guest has sent are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestRoute {
    /// Requests were sent to the address of the entry.
    To(Requested),
    /// The address of the entry is the destination that the guest has sent, whose requests the decider has redirected to
    /// this address.
    By(IpAddr),
}

record_enum! { RequestRoute { 0 = To(requested), 1 = By(address) } }

/// The relation of a request's address on the host's side to the destination that the guest has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requested {
    /// It is the translated destination.
    Translated,
    /// The decider has chosen it.
    Redirected,
}

record_enum! { Requested { 0 = Translated, 1 = Redirected } }

impl LastRequest {
    fn is_recent(&self, now: Instant) -> bool {
        now.since(self.sent) <= MEMORY
    }
}

impl RequestedAddresses {
    /// Creates an empty set of addresses.
    pub(super) fn new(random: &mut ChaCha12Rng) -> Self {
        Self {
            table: Table::new(Secret::new(random)),
        }
    }

    /// Appends the requests.
    pub(super) fn save(&self, to: &mut Writer<'_>) {
        let Self { table } = self;
        table.save(to, |to, _, _, request| to.put(request));
    }

    /// Reads what [`Self::save`] has written. Requests that the decider has redirected are read only if there is a decider.
    pub(super) fn load(&mut self, from: &mut Reader<'_>, has_decider: bool) -> Result<(), StateError> {
        self.table.load(from, (MOST_ADDRESSES, 1), |from, _, _, _| {
            let request: LastRequest = from.get()?;
            let is_translated = request.route == RequestRoute::To(Requested::Translated);
            Ok((is_translated || has_decider).then_some(request))
        })
    }

    /// Stores a request of the echo id `flow` to `remote`; `written` is the destination that the guest has sent.
    pub(super) fn insert(
        &mut self,
        flow: FlowId,
        remote: IpAddr,
        written: IpAddr,
        requested: Requested,
        now: Instant,
    ) {
        let entry = |route| LastRequest {
            written,
            sent: now,
            route,
            is_kept: false,
        };
        if requested == Requested::Redirected && written != remote {
            self.put(flow, written, entry(RequestRoute::By(remote)), now);
        }
        self.put(flow, remote, entry(RequestRoute::To(requested)), now);
    }

    fn put(&mut self, flow: FlowId, remote: IpAddr, mut request: LastRequest, now: Instant) {
        if let Some(index) = self.table.find(&(flow, remote)) {
            self.table.touch(index);
            let last = self.table.at_mut(index);
            request.is_kept = last.is_kept && last.is_recent(now) && last.written == request.written;
            *last = request;
            return;
        }
        // Two entries are checked for each new one, so that expired entries are removed faster than new ones are added.
        for _ in 0..2 {
            let is_full = self.table.len() >= MOST_ADDRESSES;
            match self.table.idlest() {
                Some(oldest) if is_full || !self.table.at(oldest).is_recent(now) => {
                    self.table.remove(oldest);
                }
                Some(_) | None => break,
            }
        }
        self.table.insert((flow, remote), request);
    }

    /// Returns the destination that the guest has sent for `remote`, if the echo id `flow` has sent a request there
    /// recently.
    pub(super) fn written(&self, flow: FlowId, remote: IpAddr, now: Instant) -> Option<(IpAddr, Requested)> {
        let request = self.find_recent(flow, remote, now)?;
        match request.route {
            RequestRoute::To(requested) => Some((request.written, requested)),
            RequestRoute::By(_) => None,
        }
    }

    /// Returns the address to which requests of the echo id `flow` to `written` were sent recently: `remote`, or the one
    /// that the decider has chosen.
    pub(super) fn route(
        &self,
        flow: FlowId,
        written: IpAddr,
        remote: IpAddr,
        now: Instant,
    ) -> Option<(IpAddr, Requested)> {
        if let Some(request) = self.find_recent(flow, written, now)
            && let RequestRoute::By(chosen) = request.route
        {
            return Some((chosen, Requested::Redirected));
        }
        let request = self.find_recent(flow, remote, now)?;
        let is_same = request.written == written;
        match request.route {
            RequestRoute::To(requested) if is_same => Some((remote, requested)),
            RequestRoute::To(_) | RequestRoute::By(_) => None,
        }
    }

    fn find_recent(&self, flow: FlowId, address: IpAddr, now: Instant) -> Option<&LastRequest> {
        let request = self.table.at(self.table.find(&(flow, address))?);
        request.is_recent(now).then_some(request)
    }

    /// Exempts the destinations of recent requests for which `is` returns true from the egress rules, and no others.
    pub(super) fn keep(&mut self, now: Instant, is: impl Fn(IpAddr) -> bool) {
        for index in self.table.places() {
            let request = self.table.at_mut(index);
            request.is_kept = request.is_recent(now) && is(request.written);
        }
    }

    /// Returns true if the egress rules do not apply to requests of the echo id `flow` to `remote`.
    pub(super) fn is_kept(&self, flow: FlowId, remote: IpAddr, now: Instant) -> bool {
        let index = self.table.find(&(flow, remote));
        let request = index.map(|index| self.table.at(index));
        request.is_some_and(|request| request.is_kept && request.is_recent(now))
    }

    /// Returns the echo ids and destinations of recent requests.
    pub(super) fn recent(&self, now: Instant) -> impl Iterator<Item = (FlowId, IpAddr)> {
        let recent = self
            .table
            .iter()
            .filter(move |(_, request)| request.is_recent(now));
        recent.map(|(index, request)| (self.table.key(index).0, request.written))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }
}
