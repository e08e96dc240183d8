//! What the engine's workers are asked, and answer.

use std::time::Instant;

use pontoon_runtime::Update;
use pontoon_runtime::messages::Stats;

use crate::control::ENGINE;

/// The workers are asked in rounds: the next one begins when this one has ended.
#[derive(Debug)]
pub(super) struct Round {
    workers: usize,
    /// The one that runs, or ran last.
    number: u64,
    /// When it began, if it runs.
    since: Option<Instant>,
    said: Vec<Stats>,
    /// Somebody waits for the round after this one.
    another: bool,
}

/// Not every worker has answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silent;

impl Round {
    pub(super) fn new(workers: u8) -> Self {
        Self {
            workers: workers.into(),
            number: 0,
            since: None,
            said: Vec::new(),
            another: false,
        }
    }

    /// Asks the workers, or will once they have answered what they were asked before. The number of the round that
    /// answers.
    pub(super) fn ask(&mut self, outbox: &mut Vec<Update>, now: Instant) -> u64 {
        if self.since.is_some() {
            self.another = true;
            return self.number + 1;
        }
        self.begin(outbox, now);
        self.number
    }

    /// Begins a round anew that runs: what was said before now is of another state.
    pub(super) fn restart(&mut self, outbox: &mut Vec<Update>) {
        if let Some(since) = self.since {
            self.begin(outbox, since);
        }
    }

    /// The answers of round `number` or a later one, in the order of the workers. `None`: not yet.
    pub(super) fn result(&self, number: u64) -> Option<Result<Vec<Stats>, Silent>> {
        if number > self.number || self.since.is_some() {
            return None;
        }
        Some(match self.said.len() == self.workers {
            true => Ok(self.said.clone()),
            false => Err(Silent),
        })
    }

    /// Notes a worker's answer; true if it ends the round.
    pub(super) fn hear(&mut self, stats: Stats) -> bool {
        let known = self.said.iter().any(|other| other.worker == stats.worker);
        if self.since.is_none() || stats.round != self.number || known {
            return false;
        }
        self.said.push(stats);
        self.said.sort_by_key(|stats| stats.worker);
        let ends = self.said.len() == self.workers;
        if ends {
            self.since = None;
        }
        ends
    }

    /// Begins the round that somebody waits for, once the one before it has ended.
    pub(super) fn go_on(&mut self, outbox: &mut Vec<Update>, now: Instant) {
        if self.another && self.since.is_none() {
            self.begin(outbox, now);
        }
    }

    /// Until when the workers have time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + ENGINE)
    }

    /// Ends the round if it has taken too long.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.since = None;
        }
    }

    fn begin(&mut self, outbox: &mut Vec<Update>, now: Instant) {
        self.number += 1;
        self.another = false;
        self.since = Some(now);
        self.said.clear();
        outbox.push(Update::Ask(self.number));
    }
}
