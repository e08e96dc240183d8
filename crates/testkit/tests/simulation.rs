//! Thousands of seeded worlds. A failing seed is run again on its own with a trace:
//! `PONTOON_SEED=<seed> cargo test -p pontoon-testkit --test simulation one_seed -- --nocapture`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pontoon_testkit::scenario::Scenario;

const THREADS: usize = 2;

/// What is wrong with a seed, if anything.
fn failure(seed: u64) -> Option<String> {
    let run = catch_unwind(|| Scenario::from_seed(seed).run(false));
    match run {
        Ok(run) => run.failure,
        Err(panic) => Some(message(&*panic)),
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    format!(
        "panic: {}",
        text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")
    )
}

#[test]
fn many_seeds() {
    let count: u64 = std::env::var("PONTOON_SEEDS").map_or(10_000, |count| count.parse().expect("a number"));
    let first: u64 = std::env::var("PONTOON_FIRST_SEED").map_or(0, |first| first.parse().expect("a number"));
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    if let Some(what) = failure(seed) {
                        failures.lock().unwrap().push((seed, what));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    for (seed, what) in &failures {
        let first_line = what.lines().next().unwrap_or_default();
        eprintln!(
            "seed {seed}: {first_line}\n  PONTOON_SEED={seed} cargo test -p pontoon-testkit --test simulation one_seed -- --nocapture"
        );
    }
    assert!(failures.is_empty(), "{} of {count} seeds fail", failures.len());
}

/// Runs the one seed in `PONTOON_SEED` (else seed 0) and prints its packets when it fails.
#[test]
fn one_seed() {
    let seed: u64 = std::env::var("PONTOON_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let scenario = Scenario::from_seed(seed);
    let run = AssertUnwindSafe(|| scenario.run(true));
    let run = run();
    if let Some(what) = &run.failure {
        eprintln!("{scenario:#?}\n{}", run.trace);
        panic!("seed {seed}: {what}");
    }
}
