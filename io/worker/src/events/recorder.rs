//! Numbers of events, and their records: lines of JSON (docs/events.md).
//!
//! Records are numbered without gaps: numbers of events that the workers have lost are skipped, and named by a record.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pontoon_engine::egress::{DecisionGround, EgressProtocol};
use pontoon_engine::flow_events::{FlowEvent, FlowEventKind, RefusalReason};
use pontoon_engine::{FlowId, WorkerId};
use rustix::time::{ClockId, clock_gettime};

use super::json;
use super::open_flows::OpenFlows;
use super::reader::{EventReader, Found};
use super::record::EventRecord;

/// Numbers the events of all workers, and writes their records.
#[derive(Debug)]
pub struct Recorder {
    /// Number of the next record.
    next: u64,
    flows: OpenFlows,
    rules: RuleTexts,
    /// Difference between the wall clock and the clock of the engine, and the range of times of events.
    offset: Duration,
    earliest: u64,
    latest: u64,
    line: String,
    /// Names whose parts were read, of the latest flow of each worker.
    names: BTreeMap<WorkerId, (FlowId, String)>,
}

/// Record of an event, of lost events, or of the beginning or end of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Numbers of the first and the last event that the record is about; they differ only for lost events.
    pub numbers: (u64, u64),
    /// Type of the record: the field `type`.
    pub kind: &'static str,
    /// Protocol of the flow; `None` for records about no flow.
    pub protocol: Option<EgressProtocol>,
    /// The event; `None` for `start`, `end`, `lost`, `gap` and `omitted`.
    pub event: Option<FlowEvent>,
    /// The record as a line of JSON, with the newline at its end.
    pub line: &'a str,
}

/// Texts of the egress rules, for the latest generations.
#[derive(Debug, Default)]
struct RuleTexts(VecDeque<(u64, Vec<String>)>);

/// Result of looking for a part of a name in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameTaken {
    /// The event is a part of a name.
    Part,
    /// The event has a record of its own.
    Other,
}

/// Number of characters of a name from which on further parts are ignored: that of the longest host name.
const LONGEST_NAME: usize = 253;

/// Type of the record about lost events.
pub const GAP: &str = "gap";

/// Type of the record about events that have no records of their own.
pub const OMITTED: &str = "omitted";

/// Time that passes between two calls of [`Recorder::take_omitted`], so that the numbers of omitted events are not as many
/// records as the events.
pub const OMITTED_PAUSE: Duration = Duration::from_secs(1);

/// Number of generations of rules whose texts are kept.
pub const GENERATIONS: usize = 8;

impl Recorder {
    /// Creates a recorder for engines with at most `flows` flows.
    #[must_use]
    pub fn new(flows: u32) -> Self {
        let mut recorder = Self {
            next: 1,
            // Workers that open flows at the same time may each exceed the limit by one.
            flows: OpenFlows::new(flows.saturating_add(256)),
            rules: RuleTexts::default(),
            offset: Duration::ZERO,
            earliest: monotonic(),
            latest: 0,
            line: String::new(),
            names: BTreeMap::new(),
        };
        recorder.set_clock();
        recorder
    }

    /// Returns the number of the next record.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Reads the clocks, to which the times of the next records refer.
    pub fn set_clock(&mut self) {
        self.latest = monotonic();
        self.offset = json::now().saturating_sub(Duration::from_nanos(self.latest));
    }

    /// Sets the texts of the egress rules of a generation.
    pub fn set_rules(&mut self, generation: u64, rules: Vec<String>) {
        while self.rules.0.len() >= GENERATIONS {
            self.rules.0.pop_front();
        }
        self.rules.0.push_back((generation, rules));
    }

    /// Returns the record of what the reader has found; `None` for a part of a name, which belongs to the next record.
    pub fn take(&mut self, found: &Found) -> Option<Record<'_>> {
        match found {
            Found::Event(EventRecord { event, .. }) if self.take_name(event) == NameTaken::Part => None,
            Found::Event(record) => Some(self.event(record)),
            Found::Lost(count) => {
                // A part of a name may be missing, and the rest would be another name.
                self.names.clear();
                let from = self.next;
                self.next = self.next.saturating_add(*count);
                let numbers = (from, self.next.saturating_sub(1).max(from));
                json::gap(&mut self.line, json::now(), numbers, "engine");
                Some(Record {
                    numbers,
                    kind: GAP,
                    protocol: None,
                    event: None,
                    line: &self.line,
                })
            }
        }
    }

    /// Stores the part of a name that the event contains.
    fn take_name(&mut self, event: &FlowEvent) -> NameTaken {
        let (FlowEventKind::ServerName { part }, Some(flow)) = (event.kind, event.flow) else {
            return NameTaken::Other;
        };
        let text = part.octets().iter().copied().map(char::from);
        if part.is_first {
            self.names.insert(flow.worker, (flow, text.collect()));
        } else if let Some((of, name)) = self.names.get_mut(&flow.worker)
            && *of == flow
            && name.len() < LONGEST_NAME
        {
            name.extend(text);
        }
        NameTaken::Part
    }

    /// Passes a record to `take` for each class of events that the workers have omitted since the previous call.
    pub fn take_omitted(&mut self, reader: &mut EventReader, mut take: impl FnMut(&Record<'_>)) {
        for (class, count) in reader.take_omitted().into_iter().filter(|(_, count)| *count > 0) {
            let number = self.number();
            json::omitted(&mut self.line, number, json::now(), class, count);
            take(&Record {
                numbers: (number, number),
                kind: OMITTED,
                protocol: None,
                event: None,
                line: &self.line,
            });
        }
    }

    /// Passes a record of the kind `lost` to `take` for each flow that has an opening record and no closing one, because the
    /// engine has exited.
    pub fn end_flows(&mut self, mut take: impl FnMut(Record<'_>)) {
        for (flow, open) in self.flows.take() {
            let time = self.offset.saturating_add(Duration::from_nanos(self.latest));
            let number = self.number();
            json::lost(&mut self.line, number, time, flow, &open.ends, open.number);
            take(Record {
                numbers: (number, number),
                kind: "lost",
                protocol: Some(open.ends.protocol),
                event: None,
                line: &self.line,
            });
        }
    }

    /// Forgets the flows that have an opening record, because events are not used any more.
    pub fn forget_flows(&mut self) {
        self.flows.clear();
    }

    /// Returns the first record of an instance.
    pub fn start(&mut self) -> Record<'_> {
        self.instance("start")
    }

    /// Returns the last record of an instance.
    pub fn end(&mut self) -> Record<'_> {
        self.instance("end")
    }

    fn instance(&mut self, kind: &'static str) -> Record<'_> {
        let number = self.number();
        json::instance(&mut self.line, number, json::now(), kind);
        Record {
            numbers: (number, number),
            kind,
            protocol: None,
            event: None,
            line: &self.line,
        }
    }

    fn event(&mut self, record: &EventRecord) -> Record<'_> {
        let event = &record.event;
        let opened = match (event.flow, event.kind) {
            (Some(flow), FlowEventKind::Closed { .. }) => self.flows.remove(flow),
            _ => None,
        };
        let number = self.number();
        if let (Some(flow), FlowEventKind::Opened { .. }) = (event.flow, event.kind) {
            self.flows.insert(flow, event.ends, number);
        }
        let ground = match event.kind {
            FlowEventKind::Decided { ground }
            | FlowEventKind::Refused {
                reason: RefusalReason::Egress(ground),
            } => Some(ground),
            FlowEventKind::Proof { ground, .. } => ground,
            _ => None,
        };
        let name = match (event.kind, event.flow) {
            (FlowEventKind::Proof { .. }, Some(flow)) => {
                self.names.remove(&flow.worker).filter(|(of, _)| *of == flow)
            }
            _ => None,
        };
        let name = name.as_ref().map(|(_, name)| name.as_str());
        let rule = match ground {
            Some(DecisionGround::Rule(index) | DecisionGround::TlsOnly(index)) => {
                self.rules.get(record.generation, index)
            }
            _ => None,
        };
        let time = self.time(event.at.0);
        json::event(&mut self.line, number, time, event, opened, (rule, name));
        Record {
            numbers: (number, number),
            kind: json::kind(&event.kind),
            protocol: Some(event.ends.protocol),
            event: Some(*event),
            line: &self.line,
        }
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next = self.next.saturating_add(1);
        number
    }

    /// Returns the wall-clock time of an event, which is not later than now.
    fn time(&self, at: u64) -> Duration {
        let at = at.min(self.latest).max(self.earliest);
        self.offset.saturating_add(Duration::from_nanos(at))
    }
}

impl RuleTexts {
    fn get(&self, generation: u64, index: u32) -> Option<&str> {
        let mut generations = self.0.iter();
        let (_, rules) = generations.find(|(known, _)| *known == generation)?;
        rules.get(index as usize).map(String::as_str)
    }
}

/// Returns the record of the records `numbers`, the first and the last one, which a reader of records does not get.
#[must_use]
pub fn gap(numbers: (u64, u64), reason: &str) -> String {
    let mut line = String::new();
    json::gap(&mut line, json::now(), numbers, reason);
    line
}

/// Returns the time of the engine's clock in nanoseconds.
#[must_use]
pub fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
