//! The state that the protocols of a worker share.

use std::collections::HashSet;

use pontoon_wire::Mac;

use super::{Reader, StateError, Writer, check, record};
use crate::config::PublishedKey;
use crate::ctx::Net;
use crate::ledger::Ends;
use crate::siblings::{FIRST, Origin};
use crate::{FlowId, Instant};

record! { Ends { guest, remote } }

/// Maximum number of connections of an earlier engine process that a state lists.
const MOST_ORPHANS: usize = 1 << 17;

/// Maximum number of published ports, of which each has a descriptor.
const MOST_PUBLISHED: usize = 1 << 16;

impl Net {
    /// Returns the maximum number of flows of one kind in a state.
    pub(crate) const fn most_flows(&self) -> usize {
        self.config.max_flows as usize
    }

    /// Appends the shared state, except flows, timers and pending decisions.
    pub(super) fn save(&self, to: &mut Writer<'_>) {
        let Self {
            config,
            policy,
            // Computed from flows and pending decisions.
            decisions: _,
            stalled_bytes: _,
            proving: _,
            flows: _,
            joined: _,
            clients: _,
            ports: _,
            evictable: _,
            // In memory that the supervisor shares with engines.
            counters: _,
            histograms: _,
            ledger: _,
            events: _,
            siblings: _,
            // The blocks are saved with the flows that own them.
            pool: _,
            // Another seed.
            random: _,
            // Not used between two calls.
            closing_as: _,
            origin: _,
            current_flow: _,
            reclaimed: _,
            // A section of its own.
            timers: _,
            flow_due,
            throttle,
            narrow,
            worker,
            orphans,
            guest_mac,
            mtu,
            ready,
            parked,
            parked_first,
            parked_first_lead,
            delayed_acks,
            delayed_ack_at,
        } = self;
        debug_assert!(
            self.origin == Origin::Link && self.reclaimed == 0,
            "no call is active"
        );
        to.put(&worker.0);
        let published: Vec<PublishedKey> = config.published.iter().map(|port| port.key()).collect();
        to.put(&published);
        to.put(guest_mac);
        to.put(mtu);
        to.put(flow_due);
        throttle.save(to);
        to.put(narrow);
        to.put(orphans);
        to.put(&unique(ready));
        to.put(&unique(parked));
        to.put(&unique(parked_first));
        to.put(parked_first_lead);
        to.put(&unique(delayed_acks));
        to.put(delayed_ack_at);
        policy.egress.save(to, *worker == FIRST);
        if let Some(proxy) = &policy.proxy {
            to.put(&true);
            to.frame(|to| proxy.save(to, *worker == FIRST));
        } else {
            to.put(&false);
        }
    }

    /// Reads what [`Self::save`] has written. Returns the lists of flows, which do not exist yet.
    pub(super) fn load(&mut self, from: &mut Reader<'_>) -> Result<FlowLists, StateError> {
        match from.get::<u8>()? == self.worker.0 {
            true => {}
            false => return Err(StateError::Worker),
        }
        let published: Vec<PublishedKey> = from.list(MOST_PUBLISHED)?;
        let own = self.config.published.iter().map(|port| port.key());
        if !own.eq(published) {
            return Err(StateError::Published);
        }
        let mac: Mac = from.get()?;
        let mtu = from.get()?;
        check((MIN_MTU..=MOST_MTU).contains(&mtu))?;
        (self.guest_mac, self.mtu) = (mac, mtu);
        self.flow_due = from.get()?;
        self.throttle.load(from)?;
        self.narrow = from.get()?;
        self.orphans = from.list(MOST_ORPHANS)?;
        let lists = FlowLists::load(from, self.most_flows())?;
        self.policy.egress.load(from)?;
        if from.get()? {
            let proxy = self.policy.proxy.clone();
            from.frame(|from| proxy.map(|proxy| proxy.load(from)).transpose())?;
        }
        if let Some(ledger) = &self.ledger {
            ledger.guest_moved(mac);
        }
        Ok(lists)
    }
}

/// The lists of flows that continue later.
#[derive(Debug)]
pub(super) struct FlowLists {
    ready: Vec<FlowId>,
    parked: Vec<FlowId>,
    parked_first: Vec<FlowId>,
    parked_first_lead: u64,
    delayed_acks: Vec<FlowId>,
    delayed_ack_at: Option<Instant>,
}

impl FlowLists {
    fn load(from: &mut Reader<'_>, most_flows: usize) -> Result<Self, StateError> {
        // Entries of flows that have ended may be among them.
        let most = 4 * most_flows + 1024;
        Ok(Self {
            ready: from.list(most)?,
            parked: from.list(most)?,
            parked_first: from.list(most)?,
            parked_first_lead: from.get()?,
            delayed_acks: from.list(most)?,
            delayed_ack_at: from.get()?,
        })
    }

    /// Moves the flows for which `is_valid` returns true into the lists of the worker, each once. Flows that have ended are
    /// ignored later.
    pub(super) fn move_to(self, net: &mut Net, is_valid: impl Fn(FlowId) -> bool) {
        let all = |mut list: Vec<FlowId>| {
            list.retain(|flow| is_valid(*flow));
            unique(&list)
        };
        net.ready = all(self.ready).into();
        net.parked = all(self.parked);
        net.parked_first = all(self.parked_first);
        net.parked_first_lead = self.parked_first_lead;
        net.delayed_acks = all(self.delayed_acks);
        net.delayed_ack_at = self.delayed_ack_at;
    }
}

/// Returns the flows of a list, each once.
fn unique<'f>(list: impl IntoIterator<Item = &'f FlowId>) -> Vec<FlowId> {
    let mut seen = HashSet::new();
    let flows = list.into_iter().copied();
    flows.filter(|flow| seen.insert(*flow)).collect()
}

/// Least and greatest MTU of a link.
const MIN_MTU: usize = 68;
const MOST_MTU: usize = 65_535;
