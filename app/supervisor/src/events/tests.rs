//! Tests of the numbers of records, lost flows, and changes of rules, with words that an engine would write.

use std::fs;
use std::path::PathBuf;

use pontoon_control::role::Role;
use pontoon_engine::egress::{DecisionGround, EgressProtocol, UnprovenCause};
use pontoon_engine::flow_dump::Traffic;
use pontoon_engine::flow_events::{
    CloseReason, FlowEnds, FlowEvent, FlowEventKind, FlowEvents as _, NamePart, RefusalReason,
};
use pontoon_engine::{FlowId, Instant as EngineTime, Kind, WorkerId};
use pontoon_worker::events::recorder::monotonic;
use pontoon_worker::events::{SPARE, testing};
use pontoon_worker::stats::StatsTable;
use serde_json::Value;

use super::audit_writer::AuditWriter;
use super::*;

/// Events with an audit file, and the writers of two workers.
struct Fixture {
    events: Events,
    writers: Vec<testing::Writer>,
    path: PathBuf,
    now: Instant,
    statistics: Statistics,
    _directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let rules = vec!["allow *:80".parse().unwrap()];
        let statistics = Statistics::new(StatsTable::private(2, 4), rules);
        let audit = path.to_str().unwrap().parse().unwrap();
        let audit = AuditQueue::open_with(&audit, AuditWriter::start_thread).unwrap();
        let events = Events::with(2, 16, Some(audit), statistics.clone()).unwrap();
        let mut fixture = Self {
            writers: Vec::new(),
            events,
            path,
            now: Instant::now(),
            statistics,
            _directory: directory,
        };
        fixture.start();
        fixture
    }

    /// Starts an engine.
    fn start(&mut self) {
        let setup = self.events.setup().unwrap();
        let first = Statistics::FIRST_GENERATION;
        self.writers = (0..2)
            .map(|worker| testing::Writer::new(&setup, WorkerId(worker), first))
            .collect();
    }

    fn report(&mut self, worker: u8, slot: u32, kind: FlowEventKind) {
        let ends = FlowEnds {
            protocol: EgressProtocol::Tcp,
            guest: "10.0.2.15:4000".parse().unwrap(),
            remote: Some("192.0.2.1:80".parse().unwrap()),
            came_in: false,
        };
        let flow = FlowId {
            kind: Kind::Tcp,
            worker: WorkerId(worker),
            index: slot,
            generation: 0,
        };
        let is_refused = matches!(kind, FlowEventKind::Refused { .. });
        self.writers[usize::from(worker)].report(&FlowEvent {
            at: EngineTime(monotonic()),
            flow: (!is_refused).then_some(flow),
            ends,
            kind,
        });
    }

    fn serve(&mut self) {
        while {
            self.events.serve(self.now);
            self.events.deadline().is_some()
        } {
            self.now += PAUSE;
        }
    }

    /// Returns type, number and further fields of the records in the audit file, when all are written.
    fn records(&self) -> Vec<Value> {
        let next = self.events.0.borrow().log.recorder.next_number();
        let begin = Instant::now();
        loop {
            let text = fs::read_to_string(&self.path).unwrap();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let parse = |line| serde_json::from_str::<Value>(line).expect(line);
            let records: Vec<Value> = whole.lines().map(parse).collect();
            let last = records.last().map(|record| match record["type"] == "gap" {
                true => record["to"].as_u64(),
                false => record["n"].as_u64(),
            });
            if last.flatten() == Some(next - 1) {
                return records;
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", records.last());
            // The pipe of the writer may have been full.
            self.events.serve(self.now);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Checks that the records have all numbers from 1 on, and returns their types.
    #[track_caller]
    fn types(&self) -> Vec<String> {
        let mut next = 1;
        let mut types = Vec::new();
        for record in self.records() {
            let kind = record["type"].as_str().unwrap().to_owned();
            if kind == "gap" {
                assert_eq!(record["from"], next);
                next = record["to"].as_u64().unwrap() + 1;
            } else {
                assert_eq!(record["n"], next, "{record}");
                next += 1;
            }
            assert_eq!(record["v"], 1);
            types.push(kind);
        }
        types
    }
}

const OPENED: FlowEventKind = FlowEventKind::Opened { target: None };

fn closed(announced: bool) -> FlowEventKind {
    FlowEventKind::Closed {
        reason: CloseReason::GuestFin,
        traffic: Traffic { up: 7, down: 9 },
        age: Duration::from_millis(5),
        announced,
    }
}

#[test]
fn records_of_refusals_are_limited_and_the_rest_is_counted() {
    let mut fixture = Fixture::new();
    fixture.serve();
    for number in 0..5000_u16 {
        let reason = RefusalReason::Limit;
        fixture.report((number % 2) as u8, 0, FlowEventKind::Refused { reason });
    }
    fixture.serve();
    let types = fixture.types();
    let refused = types.iter().filter(|kind| *kind == "refused").count();
    // The reports may take some of the following second.
    assert!((2000..4000).contains(&refused), "{refused}");
    let records = fixture.records();
    let omitted: Vec<_> = records
        .iter()
        .filter(|record| record["type"] == "omitted")
        .collect();
    assert_eq!(omitted.len(), 1);
    let expected = (Some("refused"), Some("out"), Some(5000 - refused as u64));
    let fields = (&omitted[0]["of"], &omitted[0]["direction"], &omitted[0]["count"]);
    assert_eq!(
        (fields.0.as_str(), fields.1.as_str(), fields.2.as_u64()),
        expected
    );
    fixture.events.finish(fixture.now);
    assert_eq!(fixture.types().last().map(String::as_str), Some("end"));
}

#[test]
fn first_event_is_notified() {
    let mut fixture = Fixture::new();
    assert!(
        fixture.events.deadline().is_some(),
        "the first look requests a notification"
    );
    fixture.serve();
    let is_rung = |fixture: &Fixture| {
        let mut fds = [fixture.events.poll_fd()];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
    };
    assert!(!is_rung(&fixture));
    fixture.report(0, 3, OPENED);
    assert!(is_rung(&fixture));
    fixture.events.serve(fixture.now);
    assert_eq!(fixture.events.deadline(), Some(fixture.now + PAUSE));
    assert_eq!(fixture.types(), ["start", "opened"]);
    fixture.serve();
    assert_eq!(
        fixture.events.deadline(),
        None,
        "no wake-up while nothing happens"
    );
}

#[test]
fn closing_record_names_the_opening_one() {
    let mut fixture = Fixture::new();
    fixture.report(0, 3, OPENED);
    fixture.report(1, 3, OPENED);
    fixture.report(1, 3, closed(true));
    fixture.serve();
    fixture.report(0, 3, closed(true));
    fixture.report(0, 9, closed(false));
    fixture.serve();
    assert_eq!(
        fixture.types(),
        ["start", "opened", "opened", "closed", "closed", "closed"]
    );
    let records = fixture.records();
    let opened: Vec<_> = records[3..]
        .iter()
        .map(|record| record["opened"].as_u64())
        .collect();
    assert_eq!(opened, [Some(3), Some(2), None]);
    let last = &records[5];
    for (name, value) in [
        ("flow", Value::from("9")),
        ("protocol", "tcp".into()),
        ("direction", "out".into()),
        ("guest", "10.0.2.15:4000".into()),
        ("remote", "192.0.2.1:80".into()),
        ("reason", "guest-fin".into()),
        ("bytes_up", 7.into()),
        ("bytes_down", 9.into()),
        ("duration_us", 5000.into()),
    ] {
        assert_eq!(last[name], value, "{name}");
    }
    let times: Vec<&str> = records
        .iter()
        .map(|record| record["time"].as_str().unwrap())
        .collect();
    assert!(times[1] >= times[0] && times[1].ends_with('Z'), "{times:?}");
}

#[test]
fn flows_of_an_engine_that_has_exited_are_lost() {
    let mut fixture = Fixture::new();
    for slot in 0..3 {
        fixture.report(0, slot, OPENED);
    }
    fixture.report(0, 1, closed(true));
    // The last events are read after the exit.
    fixture.events.end_engine(fixture.now);
    fixture.start();
    fixture.report(0, 0, OPENED);
    fixture.serve();
    assert_eq!(
        fixture.types(),
        [
            "start", "opened", "opened", "opened", "closed", "lost", "lost", "opened"
        ]
    );
    let records = fixture.records();
    let lost: Vec<_> = records[5..7]
        .iter()
        .map(|record| record["opened"].as_u64())
        .collect();
    assert_eq!(lost, [Some(2), Some(4)]);
    assert_eq!(records[5]["reason"], "engine-exit");
    fixture.events.finish(fixture.now);
    assert_eq!(fixture.types()[8..], ["lost", "end"]);
}

#[test]
fn lost_events_are_gaps() {
    let mut fixture = Fixture::new();
    fixture.report(0, 0, OPENED);
    for _ in 0..2 * SPARE {
        fixture.report(0, 1, closed(false));
    }
    fixture.report(0, 0, closed(true));
    fixture.serve();
    let types = fixture.types();
    let gaps = types.iter().filter(|kind| *kind == "gap").count();
    assert_eq!((gaps, types.last().unwrap().as_str()), (1, "closed"));
    let last = fixture.records().last().unwrap()["n"].as_u64();
    assert_eq!(last, Some(2 * SPARE + 3), "each event has a number");
    // A gap behind the last record is found as well.
    for _ in 0..2 * SPARE {
        fixture.report(1, 1, closed(false));
    }
    fixture.serve();
    assert_eq!(fixture.types().last().unwrap(), "gap");
}

#[test]
fn records_have_the_rules_by_which_the_engine_decided() {
    let mut fixture = Fixture::new();
    let decided = |index| FlowEventKind::Decided {
        ground: DecisionGround::Rule(index),
    };
    fixture.report(0, 0, decided(0));
    // The rules are replaced twice before the events are read.
    for rule in ["deny *:81", "deny *:82"] {
        fixture.statistics.set_rules(vec![rule.parse().unwrap()]);
    }
    fixture.serve();
    fixture.writers[0].set_generation(2);
    fixture.report(
        0,
        0,
        FlowEventKind::Refused {
            reason: RefusalReason::Egress(DecisionGround::Rule(0)),
        },
    );
    fixture.report(0, 0, decided(5));
    fixture.writers[0].set_generation(99);
    fixture.report(0, 0, decided(0));
    fixture.serve();
    let rules: Vec<_> = fixture.records()[1..]
        .iter()
        .map(|record| record["rule"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(
        rules,
        [
            Some("allow *:80".to_owned()),
            Some("deny *:81".to_owned()),
            None,
            None
        ]
    );
}

#[test]
fn records_of_proofs_have_the_name_of_the_same_flow() {
    let mut fixture = Fixture::new();
    let part = |text: &str, is_first| FlowEventKind::ServerName {
        part: NamePart::new(text.as_bytes(), is_first).unwrap(),
    };
    let proof = |result| FlowEventKind::Proof {
        result,
        ground: Some(DecisionGround::Rule(0)),
    };
    fixture.report(0, 1, part("api.example.", true));
    fixture.report(0, 1, part("org", false));
    fixture.report(1, 1, part("other.example", true));
    fixture.report(0, 1, proof(Ok(())));
    fixture.report(1, 1, proof(Err(UnprovenCause::OtherName)));
    // Names of other flows, and parts without the first one.
    fixture.report(0, 2, part("lost.example", true));
    fixture.report(0, 3, proof(Err(UnprovenCause::Timeout)));
    fixture.report(0, 4, part("example", false));
    fixture.report(0, 4, proof(Ok(())));
    fixture.serve();
    let records = fixture.records().split_off(1);
    let names = ["type", "decision", "proof", "name", "rule"];
    let field = |record: &Value, name: &str| record[name].as_str().unwrap_or("-").to_owned();
    let fields = |record: &Value| names.map(|name| field(record, name)).join(" ");
    let mut fields: Vec<String> = records.iter().map(fields).collect();
    fields.sort();
    assert_eq!(
        fields,
        [
            "decided allow proven - allow *:80",
            "decided allow proven api.example.org allow *:80",
            "decided deny other-name other.example allow *:80",
            "decided deny timeout - allow *:80",
        ]
    );
    // Parts of names have no numbers.
    assert_eq!(fixture.types().len(), 5);
}

#[test]
fn without_audit_file_events_are_used_while_there_is_a_client() {
    let statistics = Statistics::new(StatsTable::private(2, 4), Vec::new());
    let events = Events::with(2, 16, None, statistics.clone()).unwrap();
    let mut fixture = Fixture::new();
    fixture.events = events;
    fixture.start();
    fixture.report(0, 1, OPENED);
    assert!(!fixture.events.serve(fixture.now));
    assert_eq!(fixture.events.deadline(), None);

    let client = fixture
        .events
        .subscribe(Filter::default(), Role::Operate, fixture.now)
        .unwrap();
    fixture.report(0, 1, closed(false));
    assert!(fixture.events.serve(fixture.now));
    let mut part = Vec::new();
    client.borrow_mut().take(&mut part);
    let record: Value = serde_json::from_slice(&part).unwrap();
    assert_eq!(
        (&record["type"], &record["opened"]),
        (&"closed".into(), &Value::Null)
    );
    fixture.serve();
    drop(client);
    assert!(!fixture.events.serve(fixture.now));
    fixture.report(0, 1, OPENED);
    let next = fixture.events.0.borrow().log.recorder.next_number();
    fixture.serve();
    assert_eq!(fixture.events.0.borrow().log.recorder.next_number(), next);
}

#[test]
fn words_of_a_compromised_engine_make_valid_records() {
    for value in [
        0,
        1,
        u64::MAX,
        1 << 60,
        0x5000_0000_0000_0000,
        0x1ff0_0000_0000_0000,
    ] {
        let mut fixture = Fixture::new();
        for slot in 0..40 {
            fixture.report(0, slot, OPENED);
        }
        let setup = fixture.events.setup().unwrap();
        for word in &setup.rings.words()[1..] {
            word.store(value, std::sync::atomic::Ordering::Relaxed);
        }
        for _ in 0..20 {
            fixture.events.serve(fixture.now);
            fixture.now += PAUSE;
        }
        fixture.events.finish(fixture.now);
        assert_eq!(fixture.types().last().unwrap(), "end");
    }
}
