//! The flows of all workers: asked for page by page, one worker after the other.

use std::rc::Rc;
use std::time::Instant;

use pontoon_engine::flow_dump::Flow;
use pontoon_runtime::Update;
use pontoon_runtime::messages::{Flows, Turn};

use crate::control::ENGINE;

/// One census at a time; those who ask meanwhile share the next one.
#[derive(Debug)]
pub(super) struct Census {
    workers: u8,
    /// The one that runs, or ran last.
    number: u64,
    /// What is asked for, and when the engine last answered; none if none runs.
    turn: Option<(Turn, Instant)>,
    found: Vec<Flow>,
    /// What the last one found; none: the engine was silent.
    result: Option<Rc<[Flow]>>,
    /// Somebody waits for the next one.
    another: bool,
}

/// More than any process has descriptors for (Linux's default `fs.nr_open`): an engine that goes on is not sane.
const MOST: usize = 1 << 20;

/// How a census ended.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Found(Rc<[Flow]>),
    Silent,
}

impl Census {
    pub(super) fn new(workers: u8) -> Self {
        Self {
            workers,
            number: 0,
            turn: None,
            found: Vec::new(),
            result: None,
            another: false,
        }
    }

    /// Begins a census, or will once the one that runs has ended. The number of the one that will do.
    pub(super) fn ask(&mut self, outbox: &mut Vec<Update>, now: Instant) -> u64 {
        if self.turn.is_some() {
            self.another = true;
            return self.number + 1;
        }
        self.begin(outbox, now);
        self.number
    }

    /// Begins a census anew that runs: another engine has other flows.
    pub(super) fn restart(&mut self, outbox: &mut Vec<Update>) {
        if let Some((_, since)) = self.turn {
            self.begin(outbox, since);
        }
    }

    /// How census `number`, or a later one, ended. `None`: not yet.
    pub(super) fn result(&self, number: u64) -> Option<Outcome> {
        if number > self.number || self.turn.is_some() {
            return None;
        }
        Some(self.result.clone().map_or(Outcome::Silent, Outcome::Found))
    }

    /// Notes a page, and asks for the next one; true if it was the last.
    pub(super) fn hear(&mut self, flows: Flows, outbox: &mut Vec<Update>, now: Instant) -> bool {
        let Some((turn, _)) = self.turn.filter(|_| flows.number == self.number) else {
            return false;
        };
        self.found.extend(flows.page.flows);
        let next = match flows.page.next {
            _ if self.found.len() > MOST => None,
            // A page behind this one: whatever the engine says, the census ends.
            Some(from) if from > turn.from => Some(Turn { from, ..turn }),
            Some(_) | None if turn.worker + 1 < self.workers => Some(Turn {
                worker: turn.worker + 1,
                from: 0,
                ..turn
            }),
            Some(_) | None => None,
        };
        match next {
            Some(turn) => {
                self.turn = Some((turn, now));
                outbox.push(Update::Flows(turn));
            }
            None => {
                self.turn = None;
                self.result = Some(std::mem::take(&mut self.found).into());
            }
        }
        next.is_none()
    }

    /// Begins the census that somebody waits for, once the one before it has ended.
    pub(super) fn go_on(&mut self, outbox: &mut Vec<Update>, now: Instant) {
        if self.another && self.turn.is_none() {
            self.begin(outbox, now);
        }
    }

    /// Until when the engine has time for a page.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.turn.map(|(_, since)| since + ENGINE)
    }

    /// Ends the census if a page has taken too long.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.turn = None;
        }
    }

    fn begin(&mut self, outbox: &mut Vec<Update>, now: Instant) {
        self.number += 1;
        self.another = false;
        self.found.clear();
        self.result = None;
        let turn = Turn {
            number: self.number,
            worker: 0,
            from: 0,
        };
        self.turn = Some((turn, now));
        outbox.push(Update::Flows(turn));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pontoon_engine::flow_dump::{Page, Phase, Traffic};
    use pontoon_engine::{FlowId, Kind, WorkerId, egress};

    use super::*;

    #[test]
    fn an_engine_that_never_ends_is_not_heard_out() {
        const OF_A_PAGE: usize = 1 << 16;
        let flow = Flow {
            id: FlowId {
                kind: Kind::Udp,
                worker: WorkerId(0),
                index: 0,
                generation: 0,
            },
            protocol: egress::Protocol::Udp,
            guest: ([10, 0, 2, 15], 9).into(),
            remote: None,
            came_in: false,
            phase: Phase::Unanswered,
            age: Duration::ZERO,
            traffic: Traffic::default(),
        };
        let (mut census, mut outbox, now) = (Census::new(1), Vec::new(), Instant::now());
        let number = census.ask(&mut outbox, now);
        let page = |next| Page {
            flows: vec![flow; OF_A_PAGE],
            next: Some(next),
        };
        let ended = (1..100).find(|next| {
            let flows = Flows {
                number,
                page: page(*next),
            };
            census.hear(flows, &mut outbox, now)
        });
        assert_eq!(ended, Some((MOST / OF_A_PAGE + 1) as u64));
        assert!(matches!(census.result(number), Some(Outcome::Found(_))));
    }
}
