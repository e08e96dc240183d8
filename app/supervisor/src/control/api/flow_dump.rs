//! Dump of the flows of all workers, which are requested page by page, one worker after the other.

use std::rc::Rc;
use std::time::{Duration, Instant};

use pontoon_engine::flow_dump::Flow;
use pontoon_worker::Update;
use pontoon_worker::messages::{FlowPage, FlowPageRequest};

use crate::control::REPORT_TIMEOUT;

/// Dump of the flows of all workers. One dump runs at a time; all clients that request one meanwhile share the next one.
#[derive(Debug)]
pub(super) struct FlowDump {
    workers: u8,
    /// Number of the dump that runs, or of the last one.
    number: u64,
    /// Requested page, and the time of the request; `None` if no dump runs.
    request: Option<(FlowPageRequest, Instant)>,
    /// Time at which the dump ends, however many pages remain: a compromised engine may send pages without flows
    /// forever.
    end: Option<Instant>,
    found: Vec<Flow>,
    /// Flows of the last dump; `None` if the engine did not reply in time.
    result: Option<Rc<[Flow]>>,
    /// True if a client waits for the dump after the current one.
    another: bool,
}

/// Limit on the flows of a dump, twice that of `--max-flows` on any host: an engine that reports more is faulty.
const MOST: usize = 1 << 18;

/// Limit on the duration of a dump: a dump of 131,072 flows takes less than a tenth of it.
const LONGEST: Duration = Duration::from_secs(10);

/// Result of a dump of flows.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Found(Rc<[Flow]>),
    NoReply,
}

impl FlowDump {
    pub(super) fn new(workers: u8) -> Self {
        Self {
            workers,
            number: 0,
            request: None,
            end: None,
            found: Vec::new(),
            result: None,
            another: false,
        }
    }

    /// Begins a dump, or schedules one if one runs. Returns the number of that dump.
    pub(super) fn ask(&mut self, outbox: &mut Vec<Update>, now: Instant) -> u64 {
        if self.request.is_some() {
            self.another = true;
            return self.number + 1;
        }
        self.begin(outbox, now);
        self.number
    }

    /// Restarts the current dump, if any, because a restarted engine has other flows.
    pub(super) fn restart(&mut self, outbox: &mut Vec<Update>) {
        if let Some((_, since)) = self.request {
            self.begin(outbox, since);
        }
    }

    /// Returns the result of dump `number` or a later one; `None` if that dump has not ended.
    pub(super) fn result(&self, number: u64) -> Option<Outcome> {
        if number > self.number || self.request.is_some() {
            return None;
        }
        Some(self.result.clone().map_or(Outcome::NoReply, Outcome::Found))
    }

    /// Adds a page of flows, and requests the next page; returns true if the page was the last.
    pub(super) fn take(&mut self, flows: FlowPage, outbox: &mut Vec<Update>, now: Instant) -> bool {
        let Some((request, _)) = self.request.filter(|_| flows.number == self.number) else {
            return false;
        };
        self.found.extend(flows.page.flows);
        let next = match flows.page.next {
            _ if self.found.len() > MOST => None,
            // The next page must begin after this one, so that the dump ends even if a faulty engine always reports another
            // page.
            Some(from) if from > request.from => Some(FlowPageRequest { from, ..request }),
            Some(_) | None if request.worker + 1 < self.workers => Some(FlowPageRequest {
                worker: request.worker + 1,
                from: 0,
                ..request
            }),
            Some(_) | None => None,
        };
        match next {
            Some(request) => {
                self.request = Some((request, now));
                outbox.push(Update::Flows(request));
            }
            None => {
                self.request = None;
                self.result = Some(std::mem::take(&mut self.found).into());
            }
        }
        next.is_none()
    }

    /// Begins the scheduled dump, if the dump before it has ended.
    pub(super) fn go_on(&mut self, outbox: &mut Vec<Update>, now: Instant) {
        if self.another && self.request.is_none() {
            self.begin(outbox, now);
        }
    }

    /// Returns the time at which the requested page or the whole dump expires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let page = self.request.map(|(_, since)| since + REPORT_TIMEOUT);
        page.into_iter().chain(self.end.filter(|_| page.is_some())).min()
    }

    /// Ends the dump without a result if the requested page has not arrived before its timeout, or if the whole dump takes
    /// too long.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.request = None;
            self.found = Vec::new();
        }
    }

    fn begin(&mut self, outbox: &mut Vec<Update>, now: Instant) {
        self.number += 1;
        self.another = false;
        self.found.clear();
        self.result = None;
        self.end = Some(now + LONGEST);
        let request = FlowPageRequest {
            number: self.number,
            worker: 0,
            from: 0,
        };
        self.request = Some((request, now));
        outbox.push(Update::Flows(request));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pontoon_engine::flow_dump::{Page, Phase, Traffic};
    use pontoon_engine::{FlowId, Kind, WorkerId, egress};

    use super::*;

    #[test]
    fn dump_of_pages_without_flows_is_ended_at_the_limit_of_its_duration() {
        let (mut flow_dump, mut outbox, begin) = (FlowDump::new(1), Vec::new(), Instant::now());
        let number = flow_dump.ask(&mut outbox, begin);
        let page = |next| FlowPage {
            number,
            page: Page {
                flows: Vec::new(),
                next: Some(next),
            },
        };
        for next in 1..=20 {
            let now = begin + REPORT_TIMEOUT / 2 * u32::try_from(next).unwrap();
            flow_dump.expire(now);
            flow_dump.take(page(next), &mut outbox, now);
        }
        assert!(matches!(flow_dump.result(number), Some(Outcome::NoReply)));
        assert_eq!(flow_dump.deadline(), None);
    }

    #[test]
    fn dump_without_end_is_ended_at_the_limit() {
        const OF_A_PAGE: usize = 1 << 16;
        let flow = Flow {
            id: FlowId {
                kind: Kind::Udp,
                worker: WorkerId(0),
                index: 0,
                generation: 0,
            },
            protocol: egress::EgressProtocol::Udp,
            guest: ([10, 0, 2, 15], 9).into(),
            remote: None,
            came_in: false,
            phase: Phase::Unanswered,
            age: Duration::ZERO,
            traffic: Traffic::default(),
        };
        let (mut flow_dump, mut outbox, now) = (FlowDump::new(1), Vec::new(), Instant::now());
        let number = flow_dump.ask(&mut outbox, now);
        let page = |next| Page {
            flows: vec![flow; OF_A_PAGE],
            next: Some(next),
        };
        let ended = (1..100).find(|next| {
            let flows = FlowPage {
                number,
                page: page(*next),
            };
            flow_dump.take(flows, &mut outbox, now)
        });
        assert_eq!(ended, Some((MOST / OF_A_PAGE + 1) as u64));
        assert!(matches!(flow_dump.result(number), Some(Outcome::Found(_))));
    }
}
