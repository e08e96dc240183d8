//! Totals across engines, and hits across changes of the rules.

use std::sync::atomic::Ordering;

use pontoon_engine::{Counters, Histograms, WorkerId};
use pontoon_worker::stats::{RowWriter, Values, WorkerHistograms};

use super::*;

/// An engine with two workers, which publishes its statistics.
struct Running {
    writers: Vec<RowWriter>,
    table: StatsTable,
}

impl Running {
    fn start(table: &StatsTable) -> Self {
        let writer = |worker| table.writer(WorkerId(worker));
        Self {
            writers: (0..2).map(writer).collect(),
            table: table.clone(),
        }
    }

    /// Both workers have received `frames` frames and have `flows` flows.
    fn publish(&mut self, frames: u64, flows: u64, generation: u64, hits: &[u64]) {
        for writer in &mut self.writers {
            let counters = Counters {
                frames_up: frames,
                ..Counters::default()
            };
            let mut values = Values {
                layers: [1; 4],
                ..Values::default()
            };
            values.gauges.flows = flows;
            let mut histograms = Histograms::default();
            (0..frames).for_each(|_| histograms.tcp_connect_seconds.count(1));
            let histograms = (&histograms, &WorkerHistograms::default());
            writer.publish(
                &values,
                &counters,
                histograms,
                Some((generation, hits.iter().copied())),
            );
        }
    }

    fn exit(self, statistics: &Statistics) {
        statistics.end_engine();
        assert!(
            self.table
                .words()
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0)
        );
    }
}

fn rule(text: &str) -> EgressRule {
    text.parse().unwrap()
}

fn of(rules: &[&str]) -> (Statistics, StatsTable) {
    let table = StatsTable::private(2, 8);
    let rules = rules.iter().map(|text| rule(text)).collect();
    (Statistics::new(table.clone(), rules), table)
}

/// Frames, flows and connects of each worker.
fn shown(statistics: &Statistics) -> Vec<(u64, u64, u64)> {
    let rows = statistics.rows();
    let rows = rows.iter().map(|row| {
        let frames = row.counters().next().unwrap().1;
        let connects = row.histograms().next().unwrap().counts.iter().sum();
        (frames, row.gauges().flows, connects)
    });
    rows.collect()
}

/// The hits of all rules, then the two counts after them.
fn hits(statistics: &Statistics) -> Vec<u64> {
    let hits = statistics.rule_hits();
    let rules = hits.rules.iter().map(|(_, hits)| *hits);
    rules.chain([hits.unlisted, hits.resolvers]).collect()
}

#[test]
fn totals_continue_and_gauges_end_with_an_engine() {
    let (statistics, table) = of(&["deny 192.0.2.1"]);
    assert_eq!(shown(&statistics), [(0, 0, 0); 2]);
    let mut engine = Running::start(&table);
    engine.publish(5, 2, 1, &[1, 2, 3]);
    assert_eq!(shown(&statistics), [(5, 2, 5); 2]);
    assert!(statistics.rows()[0].layers().all(|(_, active)| active == 1));
    engine.exit(&statistics);
    assert_eq!(shown(&statistics), [(5, 0, 5); 2]);
    assert!(statistics.rows()[0].layers().all(|(_, active)| active == 0));
    assert_eq!(hits(&statistics), [2, 4, 6]);

    let mut engine = Running::start(&table);
    engine.publish(1, 1, 1, &[1, 0, 0]);
    assert_eq!(shown(&statistics), [(6, 1, 6); 2]);
    assert_eq!(hits(&statistics), [4, 4, 6]);
    engine.exit(&statistics);
    assert_eq!(shown(&statistics), [(6, 0, 6); 2]);
    assert_eq!(hits(&statistics), [4, 4, 6]);
}

#[test]
fn hits_stay_with_their_rule_when_the_rules_change() {
    let (statistics, table) = of(&["deny 192.0.2.1", "deny 192.0.2.2"]);
    let mut engine = Running::start(&table);
    engine.publish(0, 0, 1, &[10, 20, 30, 40]);
    let update = statistics.set_rules(vec![rule("deny 192.0.2.3"), rule("deny 192.0.2.2")]);
    assert_eq!(update.generation, 2);
    // The workers count by the earlier rules still.
    assert_eq!(hits(&statistics), [0, 40, 60, 80]);
    engine.publish(0, 0, 1, &[11, 21, 31, 41]);
    assert_eq!(hits(&statistics), [0, 40, 60, 80]);
    engine.publish(0, 0, 2, &[1, 22, 32, 42]);
    assert_eq!(hits(&statistics), [2, 44, 64, 84]);
}

#[test]
fn hits_are_kept_when_an_engine_exits_before_it_has_received_the_rules() {
    let (statistics, table) = of(&["deny 192.0.2.1", "deny 192.0.2.2"]);
    let mut engine = Running::start(&table);
    engine.publish(0, 0, 1, &[1, 2, 3, 4]);
    engine.exit(&statistics);
    let mut engine = Running::start(&table);
    engine.publish(0, 0, 1, &[1, 2, 3, 4]);
    statistics.set_rules(vec![rule("deny 192.0.2.2")]);
    assert_eq!(hits(&statistics), [8, 12, 16]);
    engine.exit(&statistics);
    assert_eq!(hits(&statistics), [8, 12, 16]);
    // The next engine begins with the new rules.
    Running::start(&table).publish(0, 0, 2, &[1, 0, 0]);
    assert_eq!(hits(&statistics), [10, 12, 16]);
}

#[test]
fn equal_rules_have_the_hits_of_the_first_one() {
    let (statistics, table) = of(&["deny 192.0.2.1", "deny 192.0.2.1"]);
    Running::start(&table).publish(0, 0, 1, &[7, 0, 0, 0]);
    statistics.set_rules(vec![rule("deny 192.0.2.1"), rule("deny 192.0.2.1")]);
    assert_eq!(hits(&statistics), [14, 14, 0, 0]);
}

#[test]
fn arbitrary_words_of_several_engines_are_added_with_saturation() {
    let (statistics, table) = of(&["deny 192.0.2.1"]);
    for _ in 0..3 {
        for word in table.words() {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        let _ = (statistics.rows(), statistics.rule_hits());
        statistics.end_engine();
    }
    let rows = statistics.rows();
    assert_eq!(rows[1].counters().next(), Some(("frames_up", u64::MAX)));
    assert_eq!(rows[1].gauges().flows, 0);
    assert_eq!(hits(&statistics), [0, 0, 0], "no generation was valid");
    for word in table.words() {
        word.store(1, Ordering::Relaxed);
    }
    assert_eq!(hits(&statistics), [2, 2, 2]);
}
