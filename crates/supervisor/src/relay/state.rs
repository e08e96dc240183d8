//! What a relay has, and how it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use pontoon_relay::Rule;
use pontoon_relay::counters::{DeviceStats, OutputStats, RuleStats, Stats};
use pontoon_relay::rule::Input;
use pontoon_relay::rules::{Change, Refused, Rules};
use pontoon_relay_worker::messages::{Entry, MAX_LEN, Message};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::packet::{self, Size};
use rustc_hash::FxHashMap;
use rustix::event::PollFd;

use super::claims::{Claim, Claims};
use super::crew::{Birth, Crew};
use super::inputs::{Door, Engine, Inputs};
use super::links::{self, Links};
use super::outputs::{Outputs, Way};
use super::rows::{self, Rows};
use crate::error::{Error, reason};
use crate::netlink::Netlink;

/// A running relay.
#[derive(Debug)]
pub(super) struct Relay {
    /// Rules that somebody wants.
    own: Rules,
    /// Rules that follow from the kernel's routes and from what hosts behind proxies want.
    mirrored: Vec<Rule>,
    /// Both: of two with one input that which somebody wants.
    rules: Rules,
    /// What others want and there is no room for.
    left_out: usize,
    /// Whether it has been said that a sender's address is not kept.
    warned: bool,
    /// What each rule has, by its input.
    installed: FxHashMap<Input, Entry>,
    links: Links,
    inputs: Inputs,
    outputs: Outputs,
    claims: Claims,
    rows: Rows,
    crew: Crew,
    begin: Instant,
}

impl Relay {
    /// Starts workers, which have no rules yet.
    ///
    /// # Errors
    /// No memory for them; one that cannot start.
    pub(super) fn start(links: Links, workers: u8, birth: Birth) -> Result<Self, Error> {
        Ok(Self {
            own: Rules::default(),
            mirrored: Vec::new(),
            rules: Rules::default(),
            left_out: 0,
            warned: false,
            installed: FxHashMap::default(),
            links,
            inputs: Inputs::new(engine(&birth.disabled)),
            outputs: Outputs::default(),
            claims: Claims::default(),
            rows: Rows::new(),
            crew: Crew::new(workers, birth)?,
            begin: Instant::now(),
        })
    }

    /// The rules.
    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What a rule waits for: interfaces, and what is wrong with each.
    pub(super) fn waits_for(&self, rule: &Rule) -> Vec<String> {
        let input = self.inputs.missing(&rule.input).map(ToOwned::to_owned);
        let claim = Claim::of(&rule.input, self.inputs.engine());
        let claim = claim.and_then(|claim| self.claims.missing(&claim));
        let input = [input, claim].into_iter().flatten();
        let input = input.map(|why| format!("{}: {why}", rule.input.interface));
        let outputs = rule.outputs.iter().filter_map(|output| {
            let why = self.outputs.missing(&Way::of(output, &rule.input))?;
            Some(format!("{}: {why}", output.interface))
        });
        let mut waits: Vec<String> = input.chain(outputs).collect();
        waits.sort_unstable();
        waits.dedup();
        waits
    }

    /// The interfaces.
    pub(super) fn links(&self) -> &Links {
        &self.links
    }

    /// Puts other rules in the place of those that somebody wanted, all at once. Those that stay are not touched.
    ///
    /// # Errors
    /// One cannot be, or there is no room for so many; nothing changes.
    pub(super) fn replace(&mut self, own: Rules) -> Result<(), Error> {
        // What others want is in nobody's way.
        let mirrored = rows::fit(&self.mirrored, room_beside(&own)).to_vec();
        self.set_rules(own.union(&mirrored))?;
        self.mirrored = mirrored;
        self.own = own;
        Ok(())
    }

    /// Rows for rules that follow from what others want.
    pub(super) fn room(&self) -> usize {
        room_beside(&self.own)
    }

    /// Removes some of those and adds others. Says what there was before.
    ///
    /// # Errors
    /// The same.
    pub(super) fn change(&mut self, change: &Change) -> Result<Rules, Error> {
        let own = self.own.changed(change);
        let own = own.map_err(|refused| self.explain(&refused))?;
        let before = self.rules.clone();
        self.replace(own)?;
        Ok(before)
    }

    fn explain(&self, refused: &Refused) -> Error {
        let what = match refused {
            Refused::Unknown(input) if self.mirrored.iter().any(|rule| rule.input == *input) => {
                format!(
                    "'{input}' is what hosts behind a proxy want, or a route of the kernel's: it goes with that"
                )
            }
            Refused::Unknown(_) | Refused::Conflict(_) => refused.to_string(),
        };
        Error::new(what)
    }

    /// The same with rules that follow from what others want. There was no room for `left_out` more.
    ///
    /// # Errors
    /// The same.
    pub(super) fn mirror(&mut self, mirrored: Vec<Rule>, left_out: usize) -> Result<(), Error> {
        match (self.left_out, left_out) {
            (0, 1..) => tracing::warn!("too much is wanted: {left_out} rules are left out"),
            (1.., 0) => tracing::info!("there is room for all that is wanted again"),
            _ => {}
        }
        self.left_out = left_out;
        if !self.warned && mirrored.iter().any(|rule| rule.input.from.is_some()) {
            self.warned = true;
            tracing::warn!(
                "datagrams leave from an address of this host's: who wants them from one sender only does not get them"
            );
        }
        if mirrored == self.mirrored {
            return Ok(());
        }
        self.set_rules(self.own.union(&mirrored))?;
        self.mirrored = mirrored;
        Ok(())
    }

    fn set_rules(&mut self, rules: Rules) -> Result<(), Error> {
        let added: Vec<Rule> = rules
            .iter()
            .filter(|rule| {
                self.installed
                    .get(&rule.input)
                    .is_none_or(|entry| entry.rule != **rule)
            })
            .cloned()
            .collect();
        let wanted: FxHashMap<&Input, &Rule> = rules.iter().map(|rule| (&rule.input, rule)).collect();
        let stays = |entry: &Entry| wanted.get(&entry.rule.input) == Some(&&entry.rule);
        let goes = self.installed.values().filter(|entry| !stays(entry));
        let freed: usize = goes.map(|entry| 1 + entry.outputs.len()).sum();
        self.check(&added, freed)?;
        let removed: Vec<Entry> = self
            .installed
            .extract_if(|_, entry| !stays(entry))
            .map(|(_, entry)| entry)
            .collect();
        drop(wanted);

        let mut doors: Vec<Door> = removed.iter().map(|entry| Door::of(&entry.rule.input)).collect();
        doors.extend(added.iter().map(|rule| Door::of(&rule.input)));
        doors.sort_unstable();
        doors.dedup();

        // What comes is there before what goes is gone, so that what both need stays.
        for entry in &removed {
            self.crew.tell_all(&Message::NoRule(entry.row));
            // They are the last ones to be taken again.
            let outputs = entry.outputs.iter().map(|(row, _)| *row);
            outputs
                .chain([entry.row])
                .for_each(|row| self.rows.give_back(row));
        }
        for rule in added {
            self.install(rule);
        }
        self.crew.tell_all(&Message::Commit);
        for entry in removed {
            self.let_go(entry);
        }
        self.rules = rules;
        for door in &doors {
            self.update_door(door);
        }
        for door in self.inputs.outdated(&self.links) {
            self.update_door(&door);
        }
        Ok(())
    }

    /// Adapts to interfaces that have changed.
    pub(super) fn set_links(&mut self, links: Links) {
        self.links = links;
        self.update();
    }

    /// Tries again what could not be opened.
    pub(super) fn retry(&mut self) {
        if self.incomplete() {
            self.update();
        }
    }

    /// Something has come to a ring that nothing had come to for a while.
    pub(super) fn packets_come(&mut self) {
        self.inputs.packets_come();
    }

    /// Opens rings anew that the kernel has stopped.
    pub(super) fn look_at_rings(&mut self) {
        for door in self.inputs.close_stuck(&mut self.crew) {
            self.update_door(&door);
        }
    }

    /// Closes what nobody has any more.
    pub(super) fn close_due(&mut self) {
        self.inputs.close_due();
    }

    /// Whether something that a rule needs is not open.
    pub(super) fn incomplete(&self) -> bool {
        self.inputs.incomplete() || self.outputs.incomplete() || self.claims.incomplete()
    }

    /// What to poll for the workers.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.crew.poll_fds()
    }

    /// When there is something to do, whatever happens.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        [self.crew.next_turn(), self.inputs.next_turn()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Buries the dead, tells whoever takes their place everything, and the others what waits for them.
    pub(super) fn look_after_workers(&mut self) {
        self.crew.go_on();
        self.crew.reap();
        for number in self.crew.start_due() {
            self.outputs.brief(number, &mut self.crew);
            for entry in self.installed.values() {
                self.crew
                    .tell(number, &Message::Rule(Box::new(entry.clone())), None);
            }
            self.crew.tell(number, &Message::Commit, None);
            self.inputs.brief(number, &mut self.crew);
        }
    }

    /// Everything that was counted.
    pub(super) fn stats(&mut self) -> Stats {
        let interfaces = self.inputs.stats(&self.crew);
        let rules = self.rules.iter().filter_map(|rule| {
            let entry = self.installed.get(&rule.input)?;
            let mut stats = RuleStats {
                rule: rule.to_string(),
                ..RuleStats::default()
            };
            self.crew.read(entry.row).for_each(|row| stats.add(&row));
            for (output, (row, _)) in rule.outputs.iter().zip(&entry.outputs) {
                let mut of_output = OutputStats {
                    output: output.to_string(),
                    state: match self.outputs.missing(&Way::of(output, &rule.input)) {
                        None => "up".to_owned(),
                        Some(down) => down.to_string(),
                    },
                    ..OutputStats::default()
                };
                self.crew.read(*row).for_each(|row| of_output.add(&row));
                stats.outputs.push(of_output);
            }
            Some(stats)
        });
        let rules = rules.collect();
        Stats {
            time_ms: u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX),
            interfaces,
            devices: self.devices(),
            softnet_dropped: softnet_dropped(),
            rules,
            left_out: self.left_out as u64,
            workers: self.crew.stats(),
        }
    }

    /// What the kernel has counted for the interfaces that rules name.
    fn devices(&self) -> Vec<DeviceStats> {
        let counted = Netlink::open().and_then(|mut query| links::counted(&mut query));
        let mut counted = counted.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the counters of interfaces");
            BTreeMap::new()
        });
        let names = self.rules.iter().flat_map(|rule| {
            let outputs = rule.outputs.iter().map(|output| &output.interface);
            outputs.chain([&rule.input.interface])
        });
        let names: BTreeSet<&String> = names.collect();
        names
            .into_iter()
            .filter_map(|name| counted.remove(name))
            .collect()
    }

    /// Refuses what cannot be, and what there is no room for, before anything has changed.
    fn check(&self, added: &[Rule], freed: usize) -> Result<(), Error> {
        let needs_ring = |rule: &&Rule| {
            let input = &rule.input;
            input.port.is_none() || input.to.prefix_len() < input.to.max_prefix_len()
        };
        if self.inputs.engine() == Engine::Socket
            && let Some(rule) = added.iter().find(needs_ring)
        {
            let what = format!(
                "'{}': without packet rings a rule has one group and one port",
                rule.input
            );
            return Err(Error::new(what).advise("CAP_NET_RAW"));
        }
        let doors: BTreeSet<Door> = added.iter().map(|rule| Door::of(&rule.input)).collect();
        let new = doors.iter().filter(|door| !self.inputs.has(door)).count();
        let rows: usize = added.iter().map(|rule| 1 + rule.outputs.len()).sum();
        if rows + new > self.rows.left() + freed {
            return Err(Error::new("too many rules and outputs"));
        }
        // Each output's two numbers are at most this long in a message.
        let long = |rule: &&Rule| rule.to_string().len() + 64 + 24 * rule.outputs.len() > MAX_LEN;
        match added.iter().find(long) {
            Some(rule) => Err(Error::new(format!("'{}' has too many outputs", rule.input))),
            None => Ok(()),
        }
    }

    /// Opens what a rule needs and tells the workers. The rows are there: there was room.
    fn install(&mut self, rule: Rule) {
        let door = Door::of(&rule.input);
        if !self.inputs.has(&door) {
            let row = self.take_row();
            self.inputs.add(door.clone(), row);
        }
        if let Some(claim) = Claim::of(&rule.input, self.inputs.engine()) {
            self.claims.acquire(claim, &self.links);
        }
        let row = self.take_row();
        let outputs = rule
            .outputs
            .iter()
            .map(|output| {
                let way = Way::of(output, &rule.input);
                let id = self.outputs.acquire(&way, &self.links, &mut self.crew);
                (self.take_row(), id)
            })
            .collect();
        let entry = Entry {
            table: self.inputs.table(&door).unwrap_or_default(),
            row,
            outputs,
            rule,
        };
        self.crew.tell_all(&Message::Rule(Box::new(entry.clone())));
        self.installed.insert(entry.rule.input.clone(), entry);
    }

    /// Closes what no other rule needs. The workers know by now.
    fn let_go(&mut self, entry: Entry) {
        if let Some(claim) = Claim::of(&entry.rule.input, self.inputs.engine()) {
            self.claims.release(&claim);
        }
        for output in &entry.rule.outputs {
            self.outputs
                .release(&Way::of(output, &entry.rule.input), &mut self.crew);
        }
    }

    fn take_row(&mut self) -> u32 {
        let row = self.rows.take().unwrap_or(u32::MAX);
        self.crew.clear(row);
        row
    }

    fn update(&mut self) {
        self.claims.update(&self.links);
        self.outputs.update(&self.links, &mut self.crew);
        for door in self.inputs.doors() {
            self.update_door(&door);
        }
    }

    fn update_door(&mut self, door: &Door) {
        let of_door = || {
            self.rules
                .iter()
                .map(|rule| &rule.input)
                .filter(|input| door.is_of(input))
        };
        if of_door().next().is_none() {
            if let Some(row) = self.inputs.remove(door, &mut self.crew) {
                self.rows.give_back(row);
            }
            return;
        }
        let of_door: Vec<&Input> = of_door().collect();
        self.inputs
            .update(door, of_door.into_iter(), &self.links, &mut self.crew);
    }
}

fn room_beside(own: &Rules) -> usize {
    Rows::ALL.saturating_sub(rows::needed(own.iter()))
}

/// The sum of the second column, which is hexadecimal: `softnet_data.dropped` (Linux net/core/net-procfs.c).
fn softnet_dropped() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let of_cpu = |line: &str| u64::from_str_radix(line.split(' ').nth(1)?, 16).ok();
    text.lines().filter_map(of_cpu).sum()
}

/// Packet rings, where the kernel lets us.
fn engine(disabled: &Disabled) -> Engine {
    let why = if disabled.packet {
        "switched off".to_owned()
    } else {
        match packet::open(Size::new(1, 1500)) {
            Ok(_) => return Engine::Ring,
            Err(error) => reason(&error),
        }
    };
    tracing::info!("no packet rings ({why}): UDP sockets take their place");
    Engine::Socket
}

#[cfg(test)]
mod tests;
