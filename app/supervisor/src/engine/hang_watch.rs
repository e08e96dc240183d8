//! Detection of an engine that hangs, by the time at which each worker's present turn began, which the workers write to
//! memory that they share with the supervisor. No message is sent to the engine, and a sleeping worker is not woken.

use std::time::{Duration, Instant};

use pontoon_process::child::run_state::RunState;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Number of intervals that a worker spends in one turn until the engine counts as hung. A turn normally takes less than
/// a millisecond, and some tens of milliseconds if it applies a change to many flows.
const INTERVALS: u32 = 2;

/// CPU time that a process which could run needs in an interval: one that had less may have waited for a CPU. No turn needs as much,
/// and on two CPUs with a load of 20 an endless loop has 500 ms.
const CPU_TIME: Duration = Duration::from_millis(200);

/// The last looks at an engine.
#[derive(Debug)]
pub(super) struct HangWatch {
    looked: Instant,
    /// CPU time of the process at the last look; `None` if the next interval does not count.
    cpu_time: Option<Duration>,
    workers: Vec<Turn>,
}

/// The turn of a worker at the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// The time at which the turn began; 0 if the worker slept.
    began: u64,
    /// Number of intervals that the worker has spent in this turn.
    intervals: u32,
}

impl HangWatch {
    /// Begins to watch an engine with `workers` at the time `now`.
    pub(super) fn new(workers: u8, now: Instant) -> Self {
        Self {
            looked: now,
            cpu_time: None,
            workers: vec![Turn::default(); usize::from(workers)],
        }
    }

    /// Returns the time of the next look.
    pub(super) fn next(&self) -> Instant {
        self.looked + INTERVAL
    }

    /// Looks at the engine at the time `now`: `began` has the beginning of the present turn of a worker, and `process` is the state of
    /// its process. Returns the time for which a worker has been in one turn, if the engine hangs.
    ///
    /// An interval counts only if the process could run. It does not count if a signal or a debugger has stopped the process, if
    /// the process waited for a CPU, or if this look is late: then the supervisor, or the whole machine, was stopped as well.
    pub(super) fn look(
        &mut self,
        now: Instant,
        began: impl Fn(u8) -> u64,
        process: Option<RunState>,
    ) -> Option<Duration> {
        let is_late = now.duration_since(self.looked) >= INTERVAL * 2;
        let counts = !is_late
            && self
                .cpu_time
                .zip(process)
                .is_some_and(|(before, process)| could_run(before, process));
        self.looked = now;
        self.cpu_time = process.map(|process| process.cpu_time);
        let mut most = 0;
        for (worker, turn) in (0..).zip(&mut self.workers) {
            let began = began(worker);
            turn.intervals = match counts && began != 0 && began == turn.began {
                true => turn.intervals + 1,
                false => 0,
            };
            turn.began = began;
            most = most.max(turn.intervals);
        }
        (most >= INTERVALS).then(|| INTERVAL * most)
    }
}

/// Returns true if a process that had used the CPU time `before` at the last look could run since then.
fn could_run(before: Duration, process: RunState) -> bool {
    !process.stopped && (!process.runnable || process.cpu_time.saturating_sub(before) >= CPU_TIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine with two workers, which is looked at every five seconds.
    struct Watched {
        watch: HangWatch,
        now: Instant,
        cpu_time: Duration,
    }

    impl Watched {
        fn new() -> Self {
            let now = Instant::now();
            Self {
                watch: HangWatch::new(2, now),
                now,
                cpu_time: Duration::ZERO,
            }
        }

        /// Looks at the engine at the time of the next look, after it has used `used` of CPU time.
        fn look(&mut self, began: [u64; 2], used: Duration, runnable: bool) -> Option<Duration> {
            self.now = self.watch.next();
            self.cpu_time += used;
            let state = RunState {
                stopped: false,
                runnable,
                cpu_time: self.cpu_time,
            };
            self.watch
                .look(self.now, |worker| began[usize::from(worker)], Some(state))
        }

        /// Looks at the engine, whose second worker waits in the turn that began at the time 7.
        fn look_blocked(&mut self) -> Option<Duration> {
            self.look([0, 7], Duration::ZERO, false)
        }
    }

    const BUSY: Duration = INTERVAL;
    const HUNG: Option<Duration> = Some(Duration::from_secs(10));

    #[test]
    fn a_worker_in_one_turn_for_two_intervals_hangs() {
        for (used, runnable) in [(BUSY, true), (CPU_TIME, true), (Duration::ZERO, false)] {
            let mut engine = Watched::new();
            assert_eq!(engine.look([0, 7], used, runnable), None);
            assert_eq!(engine.look([0, 7], used, runnable), None);
            assert_eq!(engine.look([0, 7], used, runnable), HUNG);
        }
    }

    #[test]
    fn a_worker_that_sleeps_or_begins_turns_does_not_hang() {
        let mut engine = Watched::new();
        for began in 1..10 {
            assert_eq!(engine.look([0, began], BUSY, true), None);
        }
        assert_eq!(engine.look([0, 9], BUSY, true), None);
        assert_eq!(engine.look([0, 0], BUSY, true), None);
        assert_eq!(engine.look([0, 9], BUSY, true), None);
        assert_eq!(engine.look([0, 9], BUSY, true), None);
    }

    #[test]
    fn a_process_that_was_stopped_does_not_hang() {
        let mut engine = Watched::new();
        for _ in 0..10 {
            assert_eq!(engine.look_blocked(), None);
            engine.now = engine.watch.next();
            let stopped = RunState {
                stopped: true,
                runnable: false,
                cpu_time: Duration::ZERO,
            };
            assert_eq!(engine.watch.look(engine.now, |_| 7, Some(stopped)), None);
        }
    }

    #[test]
    fn a_process_whose_state_is_unknown_does_not_hang() {
        let mut engine = Watched::new();
        for _ in 0..10 {
            engine.now = engine.watch.next();
            assert_eq!(engine.watch.look(engine.now, |_| 7, None), None);
        }
    }

    #[test]
    fn a_process_that_waits_for_a_cpu_does_not_hang() {
        let mut engine = Watched::new();
        for _ in 0..10 {
            assert_eq!(engine.look([7, 0], CPU_TIME / 2, true), None);
        }
    }

    /// The supervisor is stopped with the engine by job control, and a machine that is suspended stops both.
    #[test]
    fn the_time_before_a_late_look_does_not_count() {
        let mut engine = Watched::new();
        for _ in 0..10 {
            assert_eq!(engine.look_blocked(), None);
            engine.now = engine.watch.next() + INTERVAL;
            let state = RunState {
                stopped: false,
                runnable: false,
                cpu_time: Duration::ZERO,
            };
            assert_eq!(engine.watch.look(engine.now, |_| 7, Some(state)), None);
        }
    }
}
