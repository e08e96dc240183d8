//! What a worker knows, and one batch of its work.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use pontoon_relay::counters::{Interface, OfOutput, OfRule, OfWorker};
use pontoon_relay::datagram::Refused;
use pontoon_relay::gather::{Burst, MAX_DATAGRAMS};
use pontoon_relay::rule;
use pontoon_relay::{Datagram, Gather, Table};
use rustc_hash::FxHasher;

use crate::counters::Counters;
use crate::input::{Arrival, Dropped, Input, Piece};
use crate::messages::Entry;
use crate::sender::{Outgoing, Sender};

#[cfg(test)]
mod tests;

/// Rules, outputs and counters.
#[derive(Debug)]
pub(crate) struct Work {
    counters: Counters,
    senders: Vec<Option<Sender>>,
    /// By row.
    rules: BTreeMap<u32, Entry>,
    tables: BTreeMap<u32, Table<Found>>,
    gather: Gather<Kind, Piece>,
    /// System calls refused that are counted already.
    refusals: u64,
}

/// What the table leads to.
#[derive(Clone, Copy, Debug)]
struct Found {
    row: u32,
    /// Some output keeps address or port.
    keeps: bool,
}

/// What datagrams of one send have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    row: u32,
    hops: u8,
    class: u8,
    /// Where they were sent to, where some output keeps any of it.
    to: Option<SocketAddr>,
}

/// What came of a batch, for the counters of its input.
#[derive(Debug, Default)]
struct Tally {
    packets: u64,
    datagrams: u64,
    matched: u64,
    unmatched: u64,
    malformed: u64,
    checksum: u64,
    fragment: u64,
    cut: u64,
}

/// Packets that a batch is expected to have.
const BATCH: usize = 1024;

impl Work {
    pub(crate) fn new(counters: Counters) -> Self {
        Self {
            counters,
            senders: Vec::new(),
            rules: BTreeMap::new(),
            tables: BTreeMap::new(),
            gather: Gather::new(BATCH),
            refusals: 0,
        }
    }

    /// Counts system calls that were refused, of which there are `refusals` in this process.
    pub(crate) fn note_refusals(&mut self, refusals: u64) {
        let more = refusals - self.refusals;
        self.counters
            .add(Counters::OF_WORKER, OfWorker::Refusals as usize, more);
        self.refusals = refusals;
    }

    /// Where the predecessor that counted in this row has left its ring.
    pub(crate) fn position(&self, row: u32) -> u32 {
        let position = self.counters.read(row)[Interface::Position as usize];
        u32::try_from(position).unwrap_or_default()
    }

    /// Puts a sender in its place, or nothing.
    pub(crate) fn set_sender(&mut self, id: u32, sender: Option<Sender>) {
        let id = id as usize;
        if self.senders.len() <= id {
            self.senders.resize_with(id + 1, || None);
        }
        self.senders[id] = sender;
    }

    /// Takes the rules of these rows away and adds others.
    pub(crate) fn change(&mut self, removed: &[u32], added: Vec<Entry>) {
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
            let inputs = of_table.map(|entry| (&entry.rule.input, Found::of(entry)));
            self.tables.insert(table, Table::new(inputs));
        }
    }

    /// Takes what an input has, as much as one batch may, and sends it on. Says how many packets that were.
    pub(crate) fn batch(&mut self, input: &mut Input, table: u32, row: u32) -> u64 {
        let mut tally = Tally::default();
        self.gather.clear();
        while let Some(arrival) = input.take() {
            tally.packets += 1;
            match arrival.content {
                Ok(_) => self.place(&arrival, table, &mut tally),
                Err(dropped) => tally.dropped(dropped),
            }
        }
        if tally.packets == 0 {
            return 0;
        }
        for burst in self.gather.bursts() {
            if let Some(entry) = self.rules.get(&burst.key.row) {
                send(entry, &burst, input, &mut self.senders, &self.counters);
            }
        }
        input.release();
        self.counters
            .set(row, Interface::Position as usize, input.position().into());
        tally.count(&self.counters, row);
        tally.packets
    }

    /// Finds the rule, and puts what arrived with others of its kind.
    fn place(&mut self, arrival: &Arrival, table: u32, tally: &mut Tally) {
        let Ok((datagram, size)) = &arrival.content else {
            return;
        };
        let bytes = datagram.payload.len();
        let datagrams = size.map_or(1, |size| bytes.div_ceil(size)) as u64;
        tally.datagrams += datagrams;
        let found = self
            .tables
            .get(&table)
            .and_then(|table| table.find(datagram.from, datagram.to, datagram.to_port));
        let Some(found) = found else {
            tally.unmatched += datagrams;
            return;
        };
        tally.matched += datagrams;
        let kind = Kind {
            row: found.row,
            hops: datagram.hops,
            class: datagram.class,
            to: found.keeps.then(|| (datagram.to, datagram.to_port).into()),
        };
        let piece = Piece::new(arrival.place, datagram.payload.clone());
        match size {
            None => self.gather.push(kind, flow(datagram), bytes, piece),
            Some(size) => self.gather.push_whole(kind, flow(datagram), bytes, *size, piece),
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
    entry: &Entry,
    burst: &Burst<'_, Kind, Piece>,
    input: &Input,
    senders: &mut [Option<Sender>],
    counters: &Counters,
) {
    let parts: ArrayVec<_, MAX_DATAGRAMS> = burst
        .places()
        .map(|piece| IoSlice::new(input.bytes(piece)))
        .collect();
    let datagrams = burst.datagrams as u64;
    counters.add(entry.row, OfRule::Datagrams as usize, datagrams);
    counters.add(entry.row, OfRule::Bytes as usize, burst.bytes as u64);
    for (output, (row, id)) in entry.rule.outputs.iter().zip(&entry.outputs) {
        let count = |number: OfOutput, value: u64| counters.add(*row, number as usize, value);
        let Some(hops) = output.hops.leaving(burst.key.hops) else {
            count(OfOutput::Expired, datagrams);
            continue;
        };
        let Some(sender) = senders.get_mut(*id as usize).and_then(Option::as_mut) else {
            count(OfOutput::Down, datagrams);
            continue;
        };
        let outcome = sender.send(&Outgoing {
            parts: &parts,
            size: burst.size,
            datagrams: burst.datagrams,
            hops: hops.get(),
            class: burst.key.class,
            to: destination(output, burst.key.to),
        });
        count(OfOutput::Sent, outcome.sent);
        count(OfOutput::Bytes, outcome.bytes);
        count(OfOutput::Sends, outcome.sends);
        count(OfOutput::Refused, outcome.refused);
        count(OfOutput::Busy, outcome.busy);
    }
}

/// Where to send, unless the socket is connected.
fn destination(output: &rule::Output, original: Option<SocketAddr>) -> Option<SocketAddr> {
    let original = original.filter(|_| output.keeps())?;
    let address: IpAddr = output.to.unwrap_or(original.ip());
    let port = output.port.map_or(original.port(), Into::into);
    Some((address, port).into())
}

impl Found {
    fn of(entry: &Entry) -> Self {
        Self {
            row: entry.row,
            keeps: entry.rule.outputs.iter().any(rule::Output::keeps),
        }
    }
}

impl Tally {
    fn dropped(&mut self, dropped: Dropped) {
        self.datagrams += 1;
        *match dropped {
            Dropped::Refused(Refused::Malformed) => &mut self.malformed,
            Dropped::Refused(Refused::Checksum) => &mut self.checksum,
            Dropped::Refused(Refused::Fragment) => &mut self.fragment,
            Dropped::Cut => &mut self.cut,
        } += 1;
    }

    fn count(&self, counters: &Counters, row: u32) {
        for (number, value) in [
            (Interface::Packets, self.packets),
            (Interface::Datagrams, self.datagrams),
            (Interface::Matched, self.matched),
            (Interface::Unmatched, self.unmatched),
            (Interface::Malformed, self.malformed),
            (Interface::Checksum, self.checksum),
            (Interface::Fragment, self.fragment),
            (Interface::Cut, self.cut),
        ] {
            counters.add(row, number as usize, value);
        }
    }
}
