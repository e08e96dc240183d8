//! Flows that have an opening record and no closing one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use pontoon_engine::FlowId;
use pontoon_engine::flow_events::FlowEnds;

/// Flows by their identifiers. Their number is limited: a compromised engine may report any number of flows.
#[derive(Debug)]
pub(super) struct OpenFlows {
    flows: HashMap<FlowId, OpenFlow>,
    most: usize,
}

/// A flow that has an opening record.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFlow {
    pub(super) ends: FlowEnds,
    /// Number of the opening record.
    pub(super) number: u64,
}

impl OpenFlows {
    pub(super) fn new(most: u32) -> Self {
        Self {
            flows: HashMap::new(),
            most: most as usize,
        }
    }

    /// Adds a flow, unless there are too many.
    pub(super) fn insert(&mut self, flow: FlowId, ends: FlowEnds, number: u64) {
        let is_full = self.flows.len() >= self.most;
        match self.flows.entry(flow) {
            Entry::Occupied(mut entry) => {
                entry.insert(OpenFlow { ends, number });
            }
            Entry::Vacant(entry) if !is_full => {
                entry.insert(OpenFlow { ends, number });
            }
            Entry::Vacant(_) => {}
        }
    }

    /// Removes a flow, and returns the number of its opening record.
    pub(super) fn remove(&mut self, flow: FlowId) -> Option<u64> {
        self.flows.remove(&flow).map(|flow| flow.number)
    }

    /// Removes and returns all flows, in the order of their opening records.
    pub(super) fn take(&mut self) -> Vec<(FlowId, OpenFlow)> {
        let mut flows: Vec<_> = self.flows.drain().collect();
        flows.sort_unstable_by_key(|(_, flow)| flow.number);
        flows
    }

    pub(super) fn clear(&mut self) {
        self.flows.clear();
    }
}
