//! A request that all workers confirm the earlier updates.

use std::time::Instant;

use pontoon_worker::Update;
use pontoon_worker::messages::Confirmation;

use crate::control::REPORT_TIMEOUT;

/// Requests run in rounds: the next one begins when this one has ended.
#[derive(Debug)]
pub(super) struct ConfirmRound {
    workers: usize,
    /// Number of the round that runs, or of the last one.
    number: u64,
    /// Time at which the current round began; `None` if none runs.
    since: Option<Instant>,
    confirmations: Vec<Confirmation>,
    /// True if a client waits for the round after the current one.
    another: bool,
    /// True if the last round ended because its timeout expired.
    expired: bool,
}

/// Error of a round in which not every worker has replied before the timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expired;

impl ConfirmRound {
    pub(super) fn new(workers: u8) -> Self {
        Self {
            workers: workers.into(),
            number: 0,
            since: None,
            confirmations: Vec::new(),
            another: false,
            expired: false,
        }
    }

    /// Begins a round, or schedules one if one runs. Returns the number of that round.
    pub(super) fn ask(&mut self, outbox: &mut Vec<Update>, now: Instant) -> u64 {
        if self.since.is_some() {
            return self.schedule();
        }
        self.begin(outbox, now);
        self.number
    }

    /// Schedules a round that begins when the results of the last one were used. Returns its number.
    pub(super) fn schedule(&mut self) -> u64 {
        self.another = true;
        self.next()
    }

    /// Restarts the current round, if any, because its earlier replies describe the state before a change.
    pub(super) fn restart(&mut self, outbox: &mut Vec<Update>) {
        if let Some(since) = self.since {
            self.begin(outbox, since);
        }
    }

    /// Returns the number of the current round, or of the last one if none runs.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of the next round.
    pub(super) fn next(&self) -> u64 {
        self.number + 1
    }

    /// Returns the replies of round `number` or a later one; `None` if it has not ended.
    pub(super) fn result(&self, number: u64) -> Option<Result<&[Confirmation], Expired>> {
        if number > self.number || self.since.is_some() {
            return None;
        }
        Some(match self.confirmations.len() == self.workers {
            true => Ok(&self.confirmations),
            false => Err(Expired),
        })
    }

    /// Adds the reply of a worker; returns true if it was the last of the round.
    pub(super) fn take(&mut self, confirmation: Confirmation) -> bool {
        let worker = confirmation.worker;
        let known = self.confirmations.iter().any(|other| other.worker == worker);
        if self.since.is_none() || confirmation.round != self.number || known {
            return false;
        }
        self.confirmations.push(confirmation);
        let ends = self.confirmations.len() == self.workers;
        if ends {
            self.since = None;
            self.expired = false;
        }
        ends
    }

    /// Begins the scheduled round, if the round before it has ended.
    pub(super) fn go_on(&mut self, outbox: &mut Vec<Update>, now: Instant) {
        if self.another && self.since.is_none() {
            self.begin(outbox, now);
        }
    }

    /// Returns true from the timeout of a round until every worker has replied again. The engine may not be reading updates
    /// then.
    pub(super) fn has_expired(&self) -> bool {
        self.expired
    }

    /// Returns the time at which the current round expires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + REPORT_TIMEOUT)
    }

    /// Ends the current round if its timeout has expired.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.since = None;
            self.expired = true;
        }
    }

    fn begin(&mut self, outbox: &mut Vec<Update>, now: Instant) {
        self.number += 1;
        self.another = false;
        self.since = Some(now);
        self.confirmations.clear();
        outbox.push(Update::Confirm(self.number));
    }
}
