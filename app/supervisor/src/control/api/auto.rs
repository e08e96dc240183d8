//! Published ports and guest forwards that follow the ports on which the guest or the host listens (`auto`).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pontoon_engine::config::{Protocol, PublishedKey};
use pontoon_worker::messages::{Confirmation, PortError};

use super::{Api, guest_forward, publish};
use crate::host::ephemeral_ports;
use crate::listeners::{ListenerReader, ListenerSet};
use crate::publish::AutoCounts;
use crate::publish::port_range::PortRange;

/// Interval between two scans of the listening sockets.
const INTERVAL: Duration = Duration::from_secs(1);

/// Delay between two reads of one scan: one call reads a limited number of messages.
const PAUSE: Duration = Duration::from_millis(5);

/// Time for which a port that the engine has refused is not tried again.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// Source of the listening ports of the guest's network namespace.
#[derive(Debug)]
pub(crate) struct GuestListeners {
    /// Netlink socket that was opened in the namespace.
    pub(crate) socket: OwnedFd,
    /// Ephemeral ports of the namespace.
    pub(crate) ephemeral: PortRange,
    /// The guest's addresses.
    pub(crate) addresses: Vec<IpAddr>,
}

/// State of the scans of the listening sockets of the guest and of the host.
#[derive(Debug, Default)]
pub(super) struct AutoFinder {
    guest: Option<Source>,
    host: Option<Source>,
    /// Time of the next scan, or of the next read of an incomplete scan; `None`: at once.
    next: Option<Instant>,
    /// Round in which the workers confirm the ports that the last scan has added, and those ports.
    confirming: Option<(u64, BTreeSet<PublishedKey>)>,
    /// Ports of earlier scans whose rounds have expired.
    unconfirmed: BTreeSet<PublishedKey>,
    /// Ports of the host on which the control socket's servers listen.
    own: BTreeSet<(Protocol, u16)>,
    /// Ports that the engine has refused, and the time at which they are tried again.
    unusable: (BTreeSet<PublishedKey>, Option<Instant>),
    /// Numbers of ports that the last scan has found: for `--publish`, and for `--guest-forward`.
    pub(super) counts: [AutoCounts; 2],
    /// True once a log line has reported ports beyond the limit, for each of the two options.
    has_reported: [bool; 2],
}

/// Source of the listening ports of a network namespace.
#[derive(Debug)]
struct Source {
    reader: ListenerReader,
    ephemeral: Vec<PortRange>,
    /// Local addresses, besides the unspecified ones, whose sockets are included.
    addresses: Vec<IpAddr>,
    /// Result of the current scan, once it is complete.
    found: Option<ListenerSet>,
    /// Result of the last scan without an error.
    last: ListenerSet,
}

/// State of a scan after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
enum ScanProgress {
    /// All listening sockets have been read, or the result of the last scan is used instead.
    Complete,
    /// Further sockets are left to be read.
    Incomplete,
}

impl Source {
    /// Reads more of the current scan, unless it is complete.
    fn read(&mut self) -> ScanProgress {
        if self.found.is_some() {
            return ScanProgress::Complete;
        }
        let addresses = &self.addresses;
        let reaches = |bound: IpAddr| bound.is_unspecified() || addresses.contains(&bound);
        match self.reader.read(&reaches) {
            Ok(found) => {
                if let Some(found) = &found {
                    self.last.clone_from(found);
                }
                self.found = found;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read the listening sockets");
                self.found = Some(self.last.clone());
            }
        }
        match self.found {
            Some(_) => ScanProgress::Complete,
            None => ScanProgress::Incomplete,
        }
    }

    /// Returns the ports that the scan has found, without ephemeral UDP ports, which belong to clients.
    fn take(&mut self) -> ListenerSet {
        let mut found = self.found.take().unwrap_or_default();
        for range in &self.ephemeral {
            found.remove(Protocol::Udp, *range);
        }
        found
    }
}

impl AutoFinder {
    /// Sets the source of the guest's listening ports.
    pub(super) fn set_guest(&mut self, guest: GuestListeners) {
        self.guest = Some(Source {
            reader: ListenerReader::new(guest.socket),
            ephemeral: vec![guest.ephemeral, ephemeral_ports()],
            addresses: guest.addresses,
            found: None,
            last: ListenerSet::new(),
        });
        self.next = None;
    }

    /// Sets the TCP ports of the host on which servers of this process listen, which are not forwarded to the guest.
    pub(super) fn set_own(&mut self, ports: impl Iterator<Item = u16>) {
        self.own = ports.map(|port| (Protocol::Tcp, port)).collect();
    }

    /// Requests a scan at once, because a value was added or removed.
    pub(super) fn scan_now(&mut self) {
        self.next = None;
    }
}

impl Api {
    /// Returns the time of the next scan; `None` if no value needs one or the workers have not confirmed the last one.
    pub(in crate::control) fn next_scan(&self) -> Option<Instant> {
        let needs_scan = self.ports.needs_scan() || self.forwards.needs_scan();
        self.auto
            .next
            .filter(|_| needs_scan && self.auto.confirming.is_none())
    }

    /// Scans the listening sockets if a scan is due, and changes the published ports and guest forwards accordingly.
    pub(super) fn scan(&mut self, now: Instant) {
        self.check_confirmation(now);
        let needs_scan = self.ports.needs_scan() || self.forwards.needs_scan();
        if !needs_scan || self.auto.confirming.is_some() || self.auto.next.is_some_and(|next| next > now) {
            return;
        }
        // While the engine does not reply, no ports are changed: updates that it does not read would accumulate.
        if self.confirm_round.has_expired() {
            self.confirm_scan(BTreeSet::new(), now);
            self.auto.next = Some(now + INTERVAL);
            return;
        }
        if self.auto.host.is_none() && self.forwards.needs_scan() {
            self.auto.host = ListenerReader::open_socket().ok().map(|socket| Source {
                reader: ListenerReader::new(socket),
                ephemeral: vec![ephemeral_ports()],
                addresses: vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
                found: None,
                last: ListenerSet::new(),
            });
        }
        let mut guest = self.auto.guest.as_mut().filter(|_| self.ports.needs_scan());
        let mut host = self.auto.host.as_mut().filter(|_| self.forwards.needs_scan());
        let sources = guest.iter_mut().chain(&mut host);
        let mut progress = sources.map(|source| source.read());
        if progress.any(|progress| progress == ScanProgress::Incomplete) {
            self.auto.next = Some(now + PAUSE);
            return;
        }
        self.auto.next = Some(now + INTERVAL);
        let (guest, host) = (guest.map(Source::take), host.map(Source::take));
        let added = guest.and_then(|found| self.publish_found(&found, now));
        let is_forwarded = host.is_some_and(|found| self.forward_found(&found));
        if added.is_some() || is_forwarded || !self.auto.unconfirmed.is_empty() {
            self.confirm_scan(added.unwrap_or_default(), now);
        }
        self.report_excess();
    }

    /// Has the workers confirm the changes of a scan, which has published `added`, before the next scan.
    fn confirm_scan(&mut self, mut added: BTreeSet<PublishedKey>, now: Instant) {
        added.append(&mut self.auto.unconfirmed);
        let round = self.confirm_round.ask(&mut self.outbox, now);
        self.auto.confirming = Some((round, added));
    }

    /// Publishes the ports on which the guest listens. Returns those that were not published before, or `None` if nothing has
    /// changed.
    fn publish_found(&mut self, found: &ListenerSet, now: Instant) -> Option<BTreeSet<PublishedKey>> {
        let (unusable, until) = &mut self.auto.unusable;
        if until.is_some_and(|until| until <= now) {
            unusable.clear();
            *until = None;
        }
        let (changed, counts) = self.ports.apply_scan(found, unusable);
        self.auto.counts[0] = counts;
        if changed.port_updates.is_empty() && changed.closes.is_empty() {
            return None;
        }
        for (what, ports) in [
            ("published", &changed.added),
            ("no longer published", &changed.removed),
        ] {
            ports.iter().for_each(|port| tracing::debug!("{what}: {port}"));
        }
        publish::send(self, &changed.port_updates);
        // The guest has closed these ports, whether the others can be opened or not.
        publish::send(self, &changed.closes);
        Some(changed.undo.added().collect())
    }

    /// Forwards the ports on which the host listens. Returns true if something has changed.
    fn forward_found(&mut self, found: &ListenerSet) -> bool {
        let mut own = self.ports.own();
        own.extend(&self.auto.own);
        let (updates, counts) = self.forwards.apply_scan(found, &own);
        self.auto.counts[1] = counts;
        guest_forward::send(self, &updates);
        !updates.is_empty()
    }

    /// Closes ports that the last scan has added and a worker has refused.
    fn check_confirmation(&mut self, now: Instant) {
        let Some((round, _)) = &self.auto.confirming else {
            return;
        };
        let Some(result) = self.confirm_round.result(*round) else {
            return;
        };
        let refused = result.map(|confirmations| {
            let added = self.auto.confirming.iter().flat_map(|(_, added)| added);
            refused(confirmations, &added.copied().collect())
        });
        let Some((_, added)) = self.auto.confirming.take() else {
            return;
        };
        let Ok(refused) = refused else {
            self.auto.unconfirmed = added;
            return;
        };
        if refused.is_empty() {
            return;
        }
        let closed = self.ports.close_found(&refused);
        publish::send(self, &closed);
        self.auto.unusable.0.extend(refused);
        self.auto.unusable.1 = Some(now + AFTER_REFUSAL);
    }

    /// Logs, once for each option, that more ports were found than the limit permits.
    fn report_excess(&mut self) {
        let whose = ["the guest listens on", "the host listens on"];
        for ((counts, reported), whose) in self
            .auto
            .counts
            .iter()
            .zip(&mut self.auto.has_reported)
            .zip(whose)
        {
            if counts.excess > 0 && !*reported {
                *reported = true;
                tracing::warn!("auto: {whose} {} ports more than are followed", counts.excess);
            }
        }
    }
}

/// Returns the ports of `added` that a worker has refused: all of them if a list is full, because it may lack any of them.
fn refused(confirmations: &[Confirmation], added: &BTreeSet<PublishedKey>) -> BTreeSet<PublishedKey> {
    let mut lists = confirmations.iter().map(|confirmation| &confirmation.port_errors);
    if lists.clone().any(|list| list.len() >= PortError::MOST) {
        return added.clone();
    }
    let mut refused: BTreeSet<_> = lists.by_ref().flatten().map(|error| error.port.key()).collect();
    refused.retain(|key| added.contains(key));
    refused
}

#[cfg(test)]
mod tests;
