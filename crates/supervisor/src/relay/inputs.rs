//! Rings and sockets that workers take from.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use pontoon_relay::counters::InterfaceStats;
use pontoon_relay::rule::Input;
use pontoon_sys::Family;

use super::closing::Closing;
use super::crew::Crew;
use super::links::Links;
use receiving::{Born, Receiving, Ring};

mod packet_ring;
mod receiving;
mod sockets;

/// What is received together: all that arrives on an interface for a family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Door {
    pub(super) interface: String,
    v6: bool,
}

/// How datagrams are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// Packet rings.
    Ring,
    /// UDP sockets, which need no privilege.
    Socket,
}

/// Doors by what they are.
#[derive(Debug)]
pub(super) struct Inputs {
    engine: Engine,
    doors: BTreeMap<Door, Receiving>,
    closing: Closing,
    next_table: u32,
    next_id: u32,
}

impl Door {
    pub(super) fn of(input: &Input) -> Self {
        Self {
            interface: input.interface.clone(),
            v6: input.is_v6(),
        }
    }

    pub(super) fn is_of(&self, input: &Input) -> bool {
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
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine,
            doors: BTreeMap::new(),
            closing: Closing::default(),
            next_table: 0,
            next_id: 0,
        }
    }

    /// How datagrams are received.
    pub(super) fn engine(&self) -> Engine {
        self.engine
    }

    /// Whether there is such a door.
    pub(super) fn has(&self, door: &Door) -> bool {
        self.doors.contains_key(door)
    }

    /// Makes a door that counts in a row.
    pub(super) fn add(&mut self, door: Door, row: u32) {
        self.next_table += 1;
        self.doors.insert(door, Receiving::new(self.next_table, row));
    }

    /// The table that what comes through a door is looked up in.
    pub(super) fn table(&self, door: &Door) -> Option<u32> {
        Some(self.doors.get(door)?.table)
    }

    /// Takes a door away; its row is free.
    pub(super) fn remove(&mut self, door: &Door, crew: &mut Crew) -> Option<u32> {
        let mut receiving = self.doors.remove(door)?;
        receiving.close(crew, &mut self.closing);
        Some(receiving.row)
    }

    /// Doors there are.
    pub(super) fn doors(&self) -> Vec<Door> {
        self.doors.keys().cloned().collect()
    }

    /// Why nothing can be received for a rule.
    pub(super) fn missing(&self, input: &Input) -> Option<&str> {
        self.doors.get(&Door::of(input))?.missing(input)
    }

    /// Whether some door is not open, or not for all of its rules.
    pub(super) fn incomplete(&self) -> bool {
        self.doors.values().any(Receiving::is_incomplete)
    }

    /// When a ring is to be looked at, or something to be closed for good.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        let looks = self.doors.values().filter_map(Receiving::next_look);
        looks.chain(self.closing.next_turn()).min()
    }

    /// Something has come to a ring that nothing had come to for a while.
    pub(super) fn packets_come(&mut self) {
        let now = Instant::now();
        for ring in self.doors.values_mut().filter_map(Receiving::ring_mut) {
            ring.wake(now);
        }
    }

    /// Closes the rings of doors that the kernel has stopped one of. They are to be opened again.
    pub(super) fn close_stuck(&mut self, crew: &mut Crew) -> Vec<Door> {
        let now = Instant::now();
        let mut closed = Vec::new();
        for (door, receiving) in &mut self.doors {
            if receiving.next_look().is_none_or(|due| now < due) || !receiving.is_stuck(crew, now) {
                continue;
            }
            receiving.close_stuck(door, crew, &mut self.closing);
            closed.push(door.clone());
        }
        closed
    }

    /// Closes it.
    pub(super) fn close_due(&mut self) {
        self.closing.close_due();
    }

    /// Doors that are open as they would not be opened again.
    pub(super) fn outdated(&self, links: &Links) -> Vec<Door> {
        let outdated = |(door, receiving): &(&Door, &Receiving)| {
            receiving.state.is_ok() && receiving.born() != self.born(door, links)
        };
        let doors = self.doors.iter().filter(outdated);
        doors.map(|(door, _)| door.clone()).collect()
    }

    /// What a ring would depend on that was opened now, where one can be.
    fn born(&self, door: &Door, links: &Links) -> Option<Born> {
        let link = links.get(&door.interface).filter(|link| link.up)?;
        let is_over = |other: &Door| other.v6 == door.v6 && links.is_over(&other.interface, link.index);
        Some(Born {
            index: link.index,
            mtu: link.mtu,
            whole: door.v6 || !self.doors.keys().any(is_over),
        })
    }

    /// Opens or closes a door as its interface is now, for the rules that it has now.
    pub(super) fn update<'a>(
        &mut self,
        door: &Door,
        rules: impl Iterator<Item = &'a Input> + Clone,
        links: &Links,
        crew: &mut Crew,
    ) {
        let born = self.born(door, links);
        let (engine, next_id) = (self.engine, &mut self.next_id);
        let Some(receiving) = self.doors.get_mut(door) else {
            return;
        };
        let link = links.get(&door.interface).filter(|link| link.up);
        if receiving.born() != born {
            receiving.close(crew, &mut self.closing);
        }
        let (Some(link), Some(born)) = (link, born) else {
            let why = match links.get(&door.interface) {
                None => "no such interface",
                Some(_) => "the interface is down",
            };
            receiving.wait(door, why);
            return;
        };
        if receiving.state.is_err() {
            receiving.open(door, engine, born, next_id, crew);
        }
        receiving.adapt(door, link, rules, next_id, crew);
    }

    /// Tells a worker that has just been born.
    pub(super) fn brief(&self, number: usize, crew: &mut Crew) {
        for receiving in self.doors.values() {
            receiving.tell(number, Ring::Used, crew);
        }
    }

    /// What was counted.
    pub(super) fn stats(&mut self, crew: &Crew) -> Vec<InterfaceStats> {
        let doors = self.doors.iter_mut();
        doors
            .map(|(door, receiving)| receiving.stats(door, crew))
            .collect()
    }
}

/// Where what a rule takes is sent to, if that is one address and port.
fn endpoint(input: &Input) -> Option<SocketAddr> {
    let single = input.to.prefix_len() == input.to.max_prefix_len();
    let port = input.port.filter(|_| single)?;
    Some(SocketAddr::new(input.to.addr(), port.get()))
}

#[cfg(test)]
mod tests;
