//! State of a process as the kernel's scheduler knows it.

use std::fs;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

use super::spawn::Child;

/// State of a process, which may have several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunState {
    /// True if a signal or a debugger has stopped the process, or it was continued since the last look.
    pub stopped: bool,
    /// True if the first thread runs or waits for a CPU.
    pub runnable: bool,
    /// CPU time of all threads.
    pub cpu_time: Duration,
}

impl RunState {
    /// Returns the state of a child; `None` if it has exited, or `/proc` does not show it (`hidepid`).
    #[must_use]
    pub fn of(child: &Child) -> Option<Self> {
        // Both are queried at each look, so that an old continuation is not found later.
        let was_stopped = child.was_stopped();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.pid().as_raw_nonzero())).ok()?;
        let state = Self::parse(&stat)?;
        Some(Self {
            stopped: state.stopped || was_stopped,
            ..state
        })
    }

    /// Parses the text of `/proc/PID/stat` (proc_pid_stat(5)).
    fn parse(stat: &str) -> Option<Self> {
        // The name of the process is in parentheses and may contain any character, so the last parenthesis ends it.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?;
        let mut times = fields.skip(10).map(|field| field.parse::<u64>().ok());
        let ticks = times.next()??.checked_add(times.next()??)?;
        match state {
            "Z" | "X" => None,
            _ => Some(Self {
                stopped: matches!(state, "T" | "t"),
                runnable: state == "R",
                cpu_time: Duration::from_millis(ticks.saturating_mul(1000) / clock_ticks_per_second().max(1)),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use rustix::process::Signal;

    use super::*;

    fn stat(state: &str) -> String {
        format!("7 (a) R b) {state} 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 100")
    }

    #[test]
    fn state_and_times_are_behind_the_last_parenthesis() {
        let ticks = 200 / clock_ticks_per_second();
        let expected = |stopped, runnable| RunState {
            stopped,
            runnable,
            cpu_time: Duration::from_secs(ticks),
        };
        assert_eq!(RunState::parse(&stat("R")), Some(expected(false, true)));
        assert_eq!(RunState::parse(&stat("S")), Some(expected(false, false)));
        assert_eq!(RunState::parse(&stat("D")), Some(expected(false, false)));
        assert_eq!(RunState::parse(&stat("T")), Some(expected(true, false)));
        assert_eq!(RunState::parse(&stat("t")), Some(expected(true, false)));
        assert_eq!(RunState::parse(&stat("Z")), None);
        assert_eq!(RunState::parse("7 (a) R 1 2"), None);
    }

    /// Waits until the child is stopped or not.
    #[track_caller]
    fn wait_for(child: &Child, stopped: bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while RunState::of(child).unwrap().stopped != stopped {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "the value that is made of it waits")]
    fn a_stop_is_found_while_it_lasts_and_once_afterwards() {
        let process = Command::new("sleep").arg("60").spawn().unwrap();
        let child = Child::new(process.id().try_into().unwrap()).unwrap();
        wait_for(&child, false);
        child.signal(Signal::STOP.as_raw());
        wait_for(&child, true);
        assert!(RunState::of(&child).unwrap().stopped);
        child.signal(Signal::CONT.as_raw());
        assert!(RunState::of(&child).unwrap().stopped);
        wait_for(&child, false);
        // A stop that has ended before the look is found as well.
        child.signal(Signal::STOP.as_raw());
        wait_for(&child, true);
        child.signal(Signal::CONT.as_raw());
        std::thread::sleep(Duration::from_millis(20));
        assert!(RunState::of(&child).unwrap().stopped);
        child.kill();
        assert_eq!(child.wait(), 128 + 9);
        assert_eq!(RunState::of(&child), None);
    }
}
