//! The layout of rows, generations of rules, and words that no worker writes.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

use super::*;

fn publish(writer: &mut RowWriter, engine: &Counters, generation: u64, hits: &[u64]) {
    let values = Values {
        gauges: Gauges {
            flows: 3,
            pool_bytes: 65_536,
            tls_proving: 5,
        },
        layers: [1, 0, 1, 1],
        link: LinkCounters {
            link_malformed: 4,
            ..LinkCounters::default()
        },
    };
    let mut histograms = Histograms::default();
    histograms.tcp_connect_seconds.count(100_000);
    let mut of_worker = WorkerHistograms::default();
    of_worker.batch_frames.count(17);
    let hits = Some((generation, hits.iter().copied()));
    writer.publish(&values, engine, (&histograms, &of_worker), hits);
}

fn counters() -> Counters {
    Counters {
        frames_up: 7,
        panics: 1,
        ..Counters::default()
    }
}

#[test]
fn each_value_is_read_under_its_name() {
    for table in [StatsTable::private(2, 1), StatsTable::shared(2, 1).unwrap()] {
        publish(&mut table.writer(WorkerId(1)), &counters(), 1, &[7, 8, 9]);
        assert_eq!(table.read(0), Row::default());
        let row = table.read(1);
        assert_eq!((row.gauges().flows, row.gauges().pool_bytes), (3, 65_536));
        assert_eq!(row.gauges().tls_proving, 5);
        let inactive: Vec<_> = row.layers().filter(|(_, active)| *active == 0).collect();
        assert_eq!(inactive, [("root", 0)]);
        let counted: Vec<_> = row.counters().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("frames_up", 7), ("panics", 1), ("link_malformed", 4)]);
        let histograms = row.histograms().map(|histogram| {
            let last = histogram.counts.len() - 1;
            let counts = [histogram.counts[0], histogram.counts[last]];
            (histogram.quantity.name, histogram.sum, counts)
        });
        assert_eq!(
            histograms.collect::<Vec<_>>(),
            [
                ("tcp_connect_seconds", 100_000, [1, 0]),
                ("batch_frames", 17, [0, 1])
            ]
        );
        assert_eq!(table.hits(1, 1, 1), Some(vec![7, 8, 9]));

        let mut sum = row;
        sum.add(&row.ended());
        assert_eq!(
            (sum.gauges(), sum.counters().next()),
            (row.gauges(), Some(("frames_up", 14)))
        );
        table.clear();
        assert_eq!((table.read(1), table.hits(1, 1, 1)), (Row::default(), None));
    }
}

#[test]
fn counters_of_the_process_are_in_the_first_row() {
    let table = StatsTable::private(2, 0);
    let [one, other] = [table.process(), table.process()];
    let refused = |sandbox_refused| ProcessCounters {
        sandbox_refused,
        ..ProcessCounters::default()
    };
    let captured = ProcessCounters {
        capture_frames: 3,
        capture_dropped: 1,
        ..ProcessCounters::default()
    };
    one.add(&captured);
    publish(&mut table.writer(WorkerId(0)), &counters(), 1, &[]);
    other.add(&captured);
    one.raise(&refused(5));
    other.raise(&refused(4));
    let expected = ProcessCounters {
        capture_frames: 6,
        capture_dropped: 2,
        sandbox_refused: 5,
    };
    assert_eq!(table.read(0).process(), expected);
    assert_eq!(table.read(0).counters().next(), Some(("frames_up", 7)));
    assert_eq!(table.read(1), Row::default());
}

#[test]
fn rows_of_workers_do_not_overlap() {
    const RULES: usize = 30;
    let table = StatsTable::private(3, RULES);
    for worker in 0..3 {
        let hits = [u64::from(worker) + 1; RULES + BESIDE_RULES + 50];
        publish(&mut table.writer(WorkerId(worker)), &counters(), 1, &hits);
    }
    for worker in 0..3 {
        assert_eq!(table.read(worker).counters().next(), Some(("frames_up", 7)));
        let hits = table.hits(worker, 1, RULES).unwrap();
        assert_eq!(hits, [u64::from(worker) + 1; RULES + BESIDE_RULES]);
    }
    let beyond = &mut table.writer(WorkerId(3));
    publish(beyond, &counters(), 1, &[]);
    assert_eq!((table.read(3), table.hits(3, 1, 0)), (Row::default(), None));
}

#[test]
fn hits_are_those_of_the_requested_generation_only() {
    let table = StatsTable::private(1, 4);
    assert_eq!(table.hits(0, 1, 1), None, "nothing was published");
    let writer = &mut table.writer(WorkerId(0));
    publish(writer, &counters(), 1, &[5, 6, 7]);
    assert_eq!(
        (table.hits(0, 1, 1), table.hits(0, 2, 1)),
        (Some(vec![5, 6, 7]), None)
    );
    publish(writer, &counters(), 2, &[0, 5, 6, 7]);
    assert_eq!(
        (table.hits(0, 1, 1), table.hits(0, 2, 2)),
        (None, Some(vec![0, 5, 6, 7]))
    );
    let histograms = (&Histograms::default(), &WorkerHistograms::default());
    let unchanged: Option<(u64, std::iter::Empty<u64>)> = None;
    writer.publish(&Values::default(), &counters(), histograms, unchanged);
    assert_eq!(table.hits(0, 2, 2), Some(vec![0, 5, 6, 7]));
}

/// At every moment a reader finds hits of one list only.
#[test]
fn hits_are_withheld_while_they_are_replaced() {
    let table = StatsTable::private(1, 2);
    let writer = &mut table.writer(WorkerId(0));
    publish(writer, &counters(), 1, &[5, 5]);
    let seen = || [table.hits(0, 1, 0), table.hits(0, 2, 0)];
    assert_eq!(seen(), [Some(vec![5, 5]), None]);
    let mut during = Vec::new();
    let hits = [9, 9].into_iter().inspect(|_| during.push(seen()));
    let histograms = (&Histograms::default(), &WorkerHistograms::default());
    writer.publish(&Values::default(), &counters(), histograms, Some((2, hits)));
    assert_eq!(during, [[None, None], [None, None]]);
    assert_eq!(seen(), [None, Some(vec![9, 9])]);
}

#[test]
fn arbitrary_words_are_numbers() {
    let table = StatsTable::private(2, 3);
    for fill in [u64::MAX, 1 << 63, 1] {
        for word in table.words() {
            word.store(fill, Ordering::Relaxed);
        }
        let mut sum = table.read(0);
        sum.add(&table.read(1));
        sum.add(&table.read(u8::MAX));
        assert_eq!(sum.gauges().flows, fill.saturating_mul(2));
        assert!(sum.counters().all(|(_, count)| count == fill.saturating_mul(2)));
        assert_eq!(sum.histograms().count(), 2);
        // The number of hits is the reader's choice: more than there is room for are not returned.
        assert_eq!(table.hits(0, fill, 1), Some(vec![fill; 3]));
        assert!(table.hits(1, fill, 1000).unwrap().len() < 32);
        assert_eq!(table.hits(0, 7, 1), None);
    }
}

#[test]
fn counters_and_histograms_of_a_row_have_different_names() {
    let row = Row::default();
    let process = row.process();
    let counters = row.counters().chain(process.iter()).map(|(name, _)| name);
    let measured = row.histograms().map(|histogram| histogram.quantity.name);
    let names: Vec<_> = counters.chain(measured).collect();
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(names.len(), distinct.len());
    assert!(names.len() < WORDS);
}

/// The least CPU time of several rounds, which other load does not change. Run it with
/// `cargo test --release -p pontoon-worker --lib publication -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_publication() {
    const CALLS: u32 = 10_000;
    let cpu_time = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
    };
    for rules in [0, 10, 1000] {
        let table = StatsTable::shared(1, rules).unwrap();
        let (writer, process) = (&mut table.writer(WorkerId(0)), table.process());
        let hits = vec![1; rules + BESIDE_RULES];
        let histograms = (&Histograms::default(), &WorkerHistograms::default());
        let mut round = || {
            let begin = cpu_time();
            for _ in 0..CALLS {
                let hits = black_box(&hits).iter().copied();
                writer.publish(
                    black_box(&Values::default()),
                    black_box(&counters()),
                    black_box(histograms),
                    Some((1, hits)),
                );
                process.raise(black_box(&ProcessCounters::default()));
            }
            (cpu_time() - begin) / CALLS
        };
        let least = (0..100).map(|_| round()).min().unwrap();
        eprintln!("{rules} rules: {least:?}");
    }
}

#[test]
fn turn_belongs_to_its_worker_and_to_no_row() {
    let table = StatsTable::private(2, 3);
    let (first, second) = (table.writer(WorkerId(0)), table.writer(WorkerId(1)));
    first.begin_turn(Instant(7));
    second.begin_turn(Instant(8));
    assert_eq!([0, 1, 2].map(|worker| table.turn_began(worker)), [7, 8, 0]);
    assert_eq!([table.read(0), table.read(1)], [Row::default(); 2]);
    first.end_turn();
    assert_eq!([0, 1].map(|worker| table.turn_began(worker)), [0, 8]);
    table.clear();
    assert_eq!(table.turn_began(1), 0);
}
