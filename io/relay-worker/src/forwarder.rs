//! Forwarding of batches of packets according to the rules.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use pontoon_relay::counters::{InterfaceCounter, RuleCounter, WORKER_ROW, WorkerCounter};
use pontoon_relay::datagram::DatagramError;
use pontoon_relay::gather::{DatagramBatch, MAX_DATAGRAMS};
use pontoon_relay::membership::LimitCounts;
use pontoon_relay::rule;
use pontoon_relay::{BurstGather, Datagram, RuleTable};
use rustc_hash::FxHasher;

use crate::counters::Counters;
use crate::input::{DropReason, PacketInput, PayloadRef, RxPacket};
use crate::messages::RuleEntry;
use crate::sender::{Outcome, Sender, TxBurst};

#[cfg(test)]
mod tests;

/// Forwarder of a worker: its rules, outputs and counters.
#[derive(Debug)]
pub(crate) struct Forwarder {
    counters: Counters,
    senders: Vec<Option<Sender>>,
    /// Rules by their row of counters.
    rules: BTreeMap<u32, RuleEntry>,
    tables: BTreeMap<u32, RuleTable<RuleMatch>>,
    gather: BurstGather<BurstKey, PayloadRef>,
    /// Number of system calls refused by the sandbox that were added to the counters already.
    refusals: u64,
}

/// Result of the lookup of a datagram in a table of rules.
#[derive(Clone, Copy, Debug)]
struct RuleMatch {
    row: u32,
    /// True if an output of the rule keeps the datagram's address or port.
    keeps: bool,
}

/// Properties that the datagrams of one send have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BurstKey {
    row: u32,
    hops: u8,
    class: u8,
    /// Original destination of the datagrams, if an output keeps part of it.
    to: Option<SocketAddr>,
}

/// Counts of a batch, which are added to the row of its input.
#[derive(Debug, Default)]
struct BatchCounts {
    packets: u64,
    datagrams: u64,
    matched: u64,
    unmatched: u64,
    malformed: u64,
    checksum: u64,
    fragment: u64,
    cut: u64,
}

/// Number of packets of a batch for which memory is allocated.
const MAX_BATCH: usize = 1024;

impl Forwarder {
    pub(crate) fn new(counters: Counters) -> Self {
        Self {
            counters,
            senders: Vec::new(),
            rules: BTreeMap::new(),
            tables: BTreeMap::new(),
            gather: BurstGather::new(MAX_BATCH),
            refusals: 0,
        }
    }

    /// Counts refused system calls; `refusals` is their number since the start of this process.
    pub(crate) fn count_refusals(&mut self, refusals: u64) {
        let more = refusals - self.refusals;
        self.counters
            .add(WORKER_ROW, WorkerCounter::Refusals as usize, more);
        self.refusals = refusals;
    }

    /// Counts reports and groups that the limit of a querier has concerned.
    pub(crate) fn count_limits(&self, counts: LimitCounts) {
        for (counter, count) in [
            (WorkerCounter::MembershipsIgnored, counts.ignored),
            (WorkerCounter::MembershipsEvicted, counts.evicted),
        ] {
            self.counters.add(WORKER_ROW, counter as usize, count);
        }
    }

    /// Returns the ring position that the predecessor of this process has stored in the row `row`.
    pub(crate) fn position(&self, row: u32) -> u32 {
        let position = self.counters.read(row)[InterfaceCounter::Position as usize];
        u32::try_from(position).unwrap_or_default()
    }

    /// Sets or removes the socket of the output `id`.
    pub(crate) fn set_sender(&mut self, id: u32, sender: Option<Sender>) {
        let id = id as usize;
        if self.senders.len() <= id {
            self.senders.resize_with(id + 1, || None);
        }
        self.senders[id] = sender;
    }

    /// Removes the rules with the rows `removed` and adds the rules `added`.
    pub(crate) fn change(&mut self, removed: &[u32], added: Vec<RuleEntry>) {
        let mut tables: Vec<u32> = added.iter().map(|entry| entry.table).collect();
        tables.extend(
            removed
                .iter()
                .filter_map(|row| Some(self.rules.remove(row)?.table)),
        );
        self.rules
            .extend(added.into_iter().map(|entry| (entry.row, entry)));
        tables.sort_unstable();
        tables.dedup();
        for table in tables {
            let of_table = self.rules.values().filter(|entry| entry.table == table);
            let inputs = of_table.map(|entry| (&entry.rule.input, RuleMatch::of(entry)));
            self.tables.insert(table, RuleTable::new(inputs));
        }
    }

    /// Forwards the packets of an input, at most one batch, by the rules of `table`. Returns the number of packets.
    pub(crate) fn forward_batch(&mut self, input: &mut PacketInput, table: u32, row: u32) -> u64 {
        let mut counts = BatchCounts::default();
        self.gather.clear();
        while let Some(packet) = input.take() {
            counts.packets += 1;
            match packet.content {
                Ok(_) => self.classify(&packet, table, &mut counts),
                Err(drop_reason) => counts.count_drop(drop_reason),
            }
        }
        if counts.packets == 0 {
            return 0;
        }
        for burst in self.gather.bursts() {
            if let Some(entry) = self.rules.get(&burst.key.row) {
                send(entry, &burst, input, &mut self.senders, &self.counters);
            }
        }
        input.release();
        self.counters
            .set(row, InterfaceCounter::Position as usize, input.position().into());
        counts.count(&self.counters, row);
        counts.packets
    }

    /// Looks up the rule of a packet in `table` and adds the packet to a burst.
    fn classify(&mut self, packet: &RxPacket, table: u32, counts: &mut BatchCounts) {
        let Ok((datagram, size)) = &packet.content else {
            return;
        };
        let bytes = datagram.payload.len();
        let datagrams = size.map_or(1, |size| bytes.div_ceil(size)) as u64;
        counts.datagrams += datagrams;
        let found = self
            .tables
            .get(&table)
            .and_then(|table| table.find(datagram.from, datagram.to, datagram.to_port));
        let Some(found) = found else {
            counts.unmatched += datagrams;
            return;
        };
        counts.matched += datagrams;
        let burst_key = BurstKey {
            row: found.row,
            hops: datagram.hops,
            class: datagram.class,
            to: found.keeps.then(|| (datagram.to, datagram.to_port).into()),
        };
        let piece = PayloadRef::new(packet.location, datagram.payload.clone());
        match size {
            None => self.gather.push(burst_key, flow(datagram), bytes, piece),
            Some(size) => self
                .gather
                .push_coalesced(burst_key, flow(datagram), bytes, *size, piece),
        }
    }
}

fn flow(datagram: &Datagram) -> usize {
    let mut hasher = FxHasher::default();
    (datagram.from, datagram.from_port).hash(&mut hasher);
    (datagram.to, datagram.to_port).hash(&mut hasher);
    #[expect(clippy::cast_possible_truncation, reason = "a hash")]
    let hash = hasher.finish() as usize;
    hash
}

fn send(
    entry: &RuleEntry,
    burst: &DatagramBatch<'_, BurstKey, PayloadRef>,
    input: &PacketInput,
    senders: &mut [Option<Sender>],
    counters: &Counters,
) {
    let parts: ArrayVec<_, MAX_DATAGRAMS> = burst
        .locations()
        .map(|piece| IoSlice::new(input.bytes(piece)))
        .collect();
    let (datagrams, bytes) = (burst.datagrams as u64, burst.bytes as u64);
    counters.add(entry.row, RuleCounter::Datagrams as usize, datagrams);
    counters.add(entry.row, RuleCounter::Bytes as usize, bytes);
    let worker = |number: WorkerCounter, value| counters.add(WORKER_ROW, number as usize, value);
    worker(WorkerCounter::Datagrams, datagrams);
    worker(WorkerCounter::Bytes, bytes);
    for (output, (row, id)) in entry.rule.outputs.iter().zip(&entry.outputs) {
        let sender = senders.get_mut(*id as usize).and_then(Option::as_mut);
        let outcome = match (output.hops.leaving(burst.key.hops), sender) {
            (None, _) => Outcome::expired(datagrams),
            (Some(_), None) => Outcome::down(datagrams),
            (Some(hops), Some(sender)) => sender.send(&TxBurst {
                parts: &parts,
                size: burst.size,
                datagrams: burst.datagrams,
                hops: hops.get(),
                class: burst.key.class,
                to: destination(output, burst.key.to),
            }),
        };
        outcome.count(counters, *row);
        worker(WorkerCounter::Sent, outcome.sent);
        worker(WorkerCounter::SentBytes, outcome.bytes);
        worker(WorkerCounter::Lost, datagrams - outcome.sent);
    }
}

/// Returns the destination to pass to sendmsg(2); `None` if the socket is connected.
fn destination(output: &rule::Output, original: Option<SocketAddr>) -> Option<SocketAddr> {
    let original = original.filter(|_| output.keeps())?;
    let address: IpAddr = output.to.unwrap_or(original.ip());
    let port = output.port.map_or(original.port(), Into::into);
    Some((address, port).into())
}

impl RuleMatch {
    fn of(entry: &RuleEntry) -> Self {
        Self {
            row: entry.row,
            keeps: entry.rule.outputs.iter().any(rule::Output::keeps),
        }
    }
}

impl BatchCounts {
    fn count_drop(&mut self, drop_reason: DropReason) {
        let (number, datagrams) = match drop_reason {
            DropReason::Refused(DatagramError::Malformed) => (&mut self.malformed, 1),
            DropReason::Refused(DatagramError::Checksum) => (&mut self.checksum, 1),
            DropReason::Refused(DatagramError::Fragment) => (&mut self.fragment, 1),
            DropReason::Cut(datagrams) => (&mut self.cut, datagrams),
        };
        *number += datagrams;
        self.datagrams += datagrams;
    }

    fn count(&self, counters: &Counters, row: u32) {
        for (number, value) in [
            (InterfaceCounter::Packets, self.packets),
            (InterfaceCounter::Datagrams, self.datagrams),
            (InterfaceCounter::Matched, self.matched),
            (InterfaceCounter::Unmatched, self.unmatched),
            (InterfaceCounter::Malformed, self.malformed),
            (InterfaceCounter::Checksum, self.checksum),
            (InterfaceCounter::Fragment, self.fragment),
            (InterfaceCounter::Cut, self.cut),
        ] {
            counters.add(row, number as usize, value);
        }
        counters.add(WORKER_ROW, WorkerCounter::Batches as usize, 1);
        counters.add(WORKER_ROW, WorkerCounter::Packets as usize, self.packets);
    }
}
