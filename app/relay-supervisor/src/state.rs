//! State of a relay: rules, sockets, workers, counters.

mod derived;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use pontoon_process::error::{Error, reason};
use pontoon_process::netlink::Netlink;
use pontoon_relay::Rule;
use pontoon_relay::counters::{DeviceStats, OutputStats, RuleStats, Stats};
use pontoon_relay::proxy::Proxy;
use pontoon_relay::rule::Input;
use pontoon_relay::rules::{Change, ChangeError, Rules};
use pontoon_relay_worker::messages::{RelayUpdate, RuleEntry};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::packet::{self, Size};
use rustc_hash::FxHashMap;
use rustix::event::PollFd;

use self::derived::{DerivePacing, PendingChanges};
use crate::RETRY;
use crate::counter_rows::{self, FreeRows};
use crate::inputs::{Ingress, Inputs, ReceiveMode};
use crate::links::{self, Links};
use crate::memberships::{Membership, Memberships};
use crate::outputs::{Egress, Outputs};
use crate::proxies::Proxies;
use crate::worker_pool::{SpawnConfig, Task, WorkerPool};

/// State of a running relay: its rules, and the sockets and workers that are open for them.
#[derive(Debug)]
pub(super) struct Relay {
    /// Rules of the command line, the configuration file and the control socket.
    configured: Rules,
    /// Rules that are derived from the kernel's multicast routes and from the memberships of hosts behind proxies.
    derived: Vec<Rule>,
    /// Union of configured and derived rules; of two rules with the same input, the configured one.
    rules: Rules,
    /// Number of derived rules that are not installed because no rows of counters are free.
    left_out: usize,
    /// True if a warning about source-specific receivers has been logged.
    source_warning_logged: bool,
    /// True if a warning about an invalid derived rule has been logged.
    invalid_rule_logged: bool,
    /// Installed rules by their input, with their rows of counters and outputs.
    installed: FxHashMap<Input, RuleEntry>,
    links: Links,
    inputs: Inputs,
    outputs: Outputs,
    memberships: Memberships,
    free_rows: FreeRows,
    workers: WorkerPool,
    proxies: Proxies,
    /// Rules that are derived from the kernel's multicast routes.
    kernel_rules: Vec<Rule>,
    /// True if routes or memberships have changed since the derived rules were built.
    derived_outdated: bool,
    /// Changes of derived rules that wait for the next derivation.
    pending_changes: PendingChanges,
    derive_pacing: DerivePacing,
    /// Earliest time at which derived rules are built again.
    derive_at: Instant,
    started: Instant,
    /// Earliest time of the next attempt to open sockets or rings that could not be opened.
    retry_at: Instant,
}

impl Relay {
    /// Starts the workers, without rules. Memberships and inputs have at most `max_sockets` sockets together, and outputs
    /// three quarters of that number.
    ///
    /// # Errors
    /// No memory or no free descriptor; a worker could not be started.
    pub(super) fn start(
        links: Links,
        workers: u8,
        proxies: &[Proxy],
        spawn_config: SpawnConfig,
        max_sockets: usize,
    ) -> Result<Self, Error> {
        // The remaining descriptors are for rings, clients of the control socket, and workers.
        let max_outputs = max_sockets / 4 * 3;
        let mode = receive_mode(&spawn_config.disabled);
        let max_sockets = match mode {
            ReceiveMode::Ring => max_sockets,
            // A rule may need a membership and a socket to receive from.
            ReceiveMode::Socket => max_sockets / 2,
        };
        let mut proxies = Proxies::new(proxies, spawn_config)?;
        let now = Instant::now();
        proxies.update(&links, now);
        Ok(Self {
            configured: Rules::default(),
            derived: Vec::new(),
            rules: Rules::default(),
            left_out: 0,
            source_warning_logged: false,
            invalid_rule_logged: false,
            installed: FxHashMap::default(),
            links,
            inputs: Inputs::new(mode, max_sockets),
            outputs: Outputs::new(max_outputs),
            memberships: Memberships::new(max_sockets),
            free_rows: FreeRows::new(),
            workers: WorkerPool::new(Task::Forward, workers, spawn_config)?,
            proxies,
            kernel_rules: Vec::new(),
            derived_outdated: true,
            pending_changes: PendingChanges::default(),
            derive_pacing: DerivePacing::new(now),
            derive_at: now,
            started: now,
            retry_at: now + RETRY,
        })
    }

    /// Returns all rules, configured and derived.
    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the interfaces for which `rule` waits, each with the reason.
    pub(super) fn waits_for(&self, rule: &Rule) -> Vec<String> {
        let input = self.inputs.missing(&rule.input).map(ToOwned::to_owned);
        let membership = Membership::of(&rule.input, self.inputs.mode());
        let membership = membership.and_then(|membership| self.memberships.missing(&membership));
        let input = [input, membership].into_iter().flatten();
        let input = input.map(|why| format!("{}: {why}", rule.input.interface));
        let outputs = rule.outputs.iter().filter_map(|output| {
            let why = self.outputs.missing(&Egress::of(output, &rule.input))?;
            Some(format!("{}: {why}", output.interface))
        });
        let mut waits: Vec<String> = input.chain(outputs).collect();
        waits.sort_unstable();
        waits.dedup();
        waits
    }

    /// Returns the interfaces of the host.
    pub(super) fn links(&self) -> &Links {
        &self.links
    }

    /// Replaces the configured rules. Forwarding by rules in both sets is not interrupted.
    ///
    /// # Errors
    /// A rule is not possible, or there are too many rules; nothing changes.
    pub(super) fn replace(&mut self, configured: Rules) -> Result<(), Error> {
        // Derived rules are removed if the configured ones need their rows of counters.
        let derived = counter_rows::fit(&self.derived, capacity_beside(&configured)).to_vec();
        self.set_rules(configured.union(&derived))?;
        self.derived = derived;
        self.configured = configured;
        // The number of free rows for derived rules has changed.
        self.derived_outdated = true;
        Ok(())
    }

    /// Removes some of the configured rules and adds others. Returns all rules before the change.
    ///
    /// # Errors
    /// Same as [`Relay::replace`].
    pub(super) fn change(&mut self, change: &Change) -> Result<Rules, Error> {
        let configured = self.configured.changed(change);
        let configured = configured.map_err(|refused| self.explain(&refused))?;
        let before = self.rules.clone();
        self.replace(configured)?;
        Ok(before)
    }

    fn explain(&self, refused: &ChangeError) -> Error {
        let message = match refused {
            ChangeError::Unknown(input) if self.derived.iter().any(|rule| rule.input == *input) => {
                format!(
                    "'{input}' is derived from group memberships or the kernel's routes and cannot be removed"
                )
            }
            ChangeError::Unknown(_) | ChangeError::Conflict(_) => refused.to_string(),
        };
        Error::new(message)
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
        let stays = |entry: &RuleEntry| wanted.get(&entry.rule.input) == Some(&&entry.rule);
        let goes = self.installed.values().filter(|entry| !stays(entry));
        let freed: usize = goes.map(|entry| 1 + entry.outputs.len()).sum();
        self.validate(&added, freed)?;
        let removed: Vec<RuleEntry> = self
            .installed
            .extract_if(|_, entry| !stays(entry))
            .map(|(_, entry)| entry)
            .collect();
        drop(wanted);

        let mut ingresses: Vec<Ingress> = removed
            .iter()
            .map(|entry| Ingress::of(&entry.rule.input))
            .collect();
        ingresses.extend(added.iter().map(|rule| Ingress::of(&rule.input)));
        ingresses.sort_unstable();
        ingresses.dedup();

        // New sockets are opened before old ones are closed, so that sockets that both sets need stay open.
        for entry in &removed {
            self.workers.send_all(&RelayUpdate::RemoveRule(entry.row));
            // These rows are reused last, because a worker may still count in them.
            let outputs = entry.outputs.iter().map(|(row, _)| *row);
            outputs
                .chain([entry.row])
                .for_each(|row| self.free_rows.free(row));
        }
        for rule in added {
            self.install(rule);
        }
        self.workers.send_all(&RelayUpdate::Commit);
        for entry in removed {
            self.release(entry);
        }
        self.memberships.open_refused(&self.links);
        self.rules = rules;
        for ingress in &ingresses {
            self.update_ingress(ingress);
        }
        for ingress in self.inputs.outdated(&self.links) {
            self.update_ingress(&ingress);
        }
        Ok(())
    }

    /// Opens and closes sockets and rings after a change of the host's interfaces.
    pub(super) fn set_links(&mut self, links: Links) {
        self.links = links;
        self.proxies.update(&self.links, Instant::now());
        self.update();
    }

    /// Returns the time of the next [`Relay::retry`], if a socket or ring could not be opened.
    pub(super) fn retry_deadline(&self) -> Option<Instant> {
        let incomplete = self.incomplete().then_some(self.retry_at);
        incomplete.into_iter().chain(self.proxies.retry_deadline()).min()
    }

    /// Tries again to open sockets and rings that could not be opened, at most once in [`RETRY`].
    pub(super) fn retry(&mut self, now: Instant) {
        self.proxies.retry(&self.links, now);
        if self.incomplete() && now >= self.retry_at {
            self.retry_at = now + RETRY;
            self.update();
        }
    }

    /// Begins periodic checks of rings, because SIGIO has reported a packet at one of them.
    pub(super) fn on_packet_signal(&mut self) {
        self.inputs.on_packet_signal();
    }

    /// Reopens rings that the kernel has stopped.
    pub(super) fn check_rings(&mut self) {
        for ingress in self.inputs.close_stalled(&mut self.workers) {
            self.update_ingress(&ingress);
        }
    }

    /// Closes one ring whose deferred close is due.
    pub(super) fn close_due(&mut self) {
        self.inputs.close_due();
    }

    /// Returns true if a socket or ring that a rule needs is not open, and another attempt may succeed.
    fn incomplete(&self) -> bool {
        self.inputs.incomplete() || self.outputs.incomplete() || self.memberships.incomplete()
    }

    /// Returns the descriptors of the workers to poll.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.workers.poll_fds().chain(self.proxies.poll_fds())
    }

    /// Returns the time of the next event that no descriptor reports.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [
            self.workers.next_deadline(),
            self.proxies.next_deadline(),
            self.inputs.next_deadline(),
            self.derived_outdated.then_some(self.derive_at),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Restarts workers that have exited, sends the whole state to them, and sends queued messages to the other workers.
    pub(super) fn manage_workers(&mut self) {
        self.proxies.manage_worker(Instant::now());
        self.workers.flush();
        self.workers.reap();
        for number in self.workers.start_due() {
            self.outputs.restore_worker(number, &mut self.workers);
            for entry in self.installed.values() {
                self.workers
                    .send(number, RelayUpdate::Rule(Box::new(entry.clone())));
            }
            self.workers.send(number, RelayUpdate::Commit);
            self.inputs.restore_worker(number, &mut self.workers);
        }
    }

    /// Returns the counters of rules, interfaces, devices and workers.
    pub(super) fn stats(&mut self) -> Stats {
        let interfaces = self.inputs.stats(&self.workers);
        let rules = self.rules.iter().filter_map(|rule| {
            let entry = self.installed.get(&rule.input)?;
            let mut stats = RuleStats {
                rule: rule.to_string(),
                ..RuleStats::default()
            };
            self.workers.read(entry.row).for_each(|row| stats.add(&row));
            for (output, (row, _)) in rule.outputs.iter().zip(&entry.outputs) {
                let mut of_output = OutputStats {
                    output: output.to_string(),
                    state: match self.outputs.missing(&Egress::of(output, &rule.input)) {
                        None => "up".to_owned(),
                        Some(down) => down.to_string(),
                    },
                    ..OutputStats::default()
                };
                self.workers.read(*row).for_each(|row| of_output.add(&row));
                stats.outputs.push(of_output);
            }
            Some(stats)
        });
        let rules = rules.collect();
        Stats {
            time_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            interfaces,
            devices: self.devices(),
            softnet_dropped: softnet_dropped(),
            rules,
            left_out: self.left_out as u64,
            refused_sockets: (self.inputs.refused() + self.memberships.refused()) as u64,
            workers: self.workers.stats(),
            querier: self.proxies.stats(),
        }
    }

    /// Returns the kernel's counters of the interfaces that rules name.
    fn devices(&self) -> Vec<DeviceStats> {
        let counted = Netlink::open().and_then(|mut query| links::read_device_stats(&mut query));
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

    /// Checks that the rules `added` can be installed, before anything is changed. `freed` is the number of rows that
    /// removed rules free.
    fn validate(&self, added: &[Rule], freed: usize) -> Result<(), Error> {
        let needs_ring = |rule: &&Rule| {
            let input = &rule.input;
            input.port.is_none() || input.to.prefix_len() < input.to.max_prefix_len()
        };
        if self.inputs.mode() == ReceiveMode::Socket
            && let Some(rule) = added.iter().find(needs_ring)
        {
            let message = format!(
                "'{}': without packet rings a rule has one group and one port",
                rule.input
            );
            return Err(Error::new(message).advise("CAP_NET_RAW"));
        }
        let ingresses: BTreeSet<Ingress> = added.iter().map(|rule| Ingress::of(&rule.input)).collect();
        let new = ingresses
            .iter()
            .filter(|ingress| !self.inputs.has(ingress))
            .count();
        let rows: usize = added.iter().map(|rule| 1 + rule.outputs.len()).sum();
        if rows + new > self.free_rows.available() + freed {
            return Err(Error::new("too many rules and outputs"));
        }
        match added.iter().find(|rule| exceeds_message(rule)) {
            Some(rule) => Err(Error::new(format!("'{}' has too many outputs", rule.input))),
            None => Ok(()),
        }
    }

    /// Opens the sockets and rings that `rule` needs, and sends the rule to the workers. [`Relay::validate`] has checked
    /// that rows are free.
    fn install(&mut self, rule: Rule) {
        let ingress = Ingress::of(&rule.input);
        if !self.inputs.has(&ingress) {
            let row = self.take_row();
            self.inputs.add(ingress.clone(), row);
        }
        if let Some(membership) = Membership::of(&rule.input, self.inputs.mode()) {
            self.memberships.acquire(membership, &self.links);
        }
        let row = self.take_row();
        let outputs = rule
            .outputs
            .iter()
            .map(|output| {
                let egress = Egress::of(output, &rule.input);
                let id = self.outputs.acquire(&egress, &self.links, &mut self.workers);
                (self.take_row(), id)
            })
            .collect();
        let entry = RuleEntry {
            table: self.inputs.table(&ingress).unwrap_or_default(),
            row,
            outputs,
            rule,
        };
        self.workers.send_all(&RelayUpdate::Rule(Box::new(entry.clone())));
        self.installed.insert(entry.rule.input.clone(), entry);
    }

    /// Closes the sockets and rings of a removed rule that no other rule needs, after the removal was sent to the workers.
    fn release(&mut self, entry: RuleEntry) {
        if let Some(membership) = Membership::of(&entry.rule.input, self.inputs.mode()) {
            self.memberships.release(&membership);
        }
        for output in &entry.rule.outputs {
            self.outputs
                .release(&Egress::of(output, &entry.rule.input), &mut self.workers);
        }
    }

    fn take_row(&mut self) -> u32 {
        let row = self.free_rows.allocate().unwrap_or(u32::MAX);
        self.workers.clear(row);
        row
    }

    fn update(&mut self) {
        self.memberships.update(&self.links);
        self.outputs.update(&self.links, &mut self.workers);
        for ingress in self.inputs.ingresses() {
            self.update_ingress(&ingress);
        }
    }

    fn update_ingress(&mut self, ingress: &Ingress) {
        let of_ingress = || {
            self.rules
                .iter()
                .map(|rule| &rule.input)
                .filter(|input| ingress.receives(input))
        };
        if of_ingress().next().is_none() {
            if let Some(row) = self.inputs.remove(ingress, &mut self.workers) {
                self.free_rows.free(row);
            }
            return;
        }
        let of_ingress: Vec<&Input> = of_ingress().collect();
        self.inputs
            .update(ingress, of_ingress.into_iter(), &self.links, &mut self.workers);
    }
}

fn capacity_beside(configured: &Rules) -> usize {
    FreeRows::ALL.saturating_sub(counter_rows::needed(configured.iter()))
}

/// Returns the number of packets that the kernel dropped before it processed them: the sum of the second, hexadecimal
/// column of `/proc/net/softnet_stat` (`softnet_data.dropped`, Linux net/core/net-procfs.c).
fn softnet_dropped() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let of_cpu = |line: &str| u64::from_str_radix(line.split(' ').nth(1)?, 16).ok();
    text.lines().filter_map(of_cpu).sum()
}

/// Returns [`ReceiveMode::Ring`] if the kernel permits packet rings.
fn receive_mode(disabled: &Disabled) -> ReceiveMode {
    let why = if disabled.packet {
        "switched off".to_owned()
    } else {
        match packet::open(Size::new(1, 1500)) {
            Ok(_) => return ReceiveMode::Ring,
            Err(error) => reason(&error),
        }
    };
    tracing::info!("no packet rings ({why}): using UDP sockets");
    ReceiveMode::Socket
}

/// Returns true if a rule has so many outputs that it does not fit into one message to a worker.
fn exceeds_message(rule: &Rule) -> bool {
    // The rows and outputs of the test entry are the numbers with the most digits.
    let entry = RuleEntry {
        table: u32::MAX,
        row: u32::MAX,
        outputs: vec![(u32::MAX, u32::MAX); rule.outputs.len()],
        rule: rule.clone(),
    };
    pontoon_ipc::encode(&RelayUpdate::Rule(Box::new(entry))).is_err()
}

#[cfg(test)]
mod tests;
