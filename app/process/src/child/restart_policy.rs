//! Limits on restarts of a child process: the number of crashes, and the time for which its start may fail.

use std::time::{Duration, Instant};

/// Times of recent crashes of one child process, which decide if and when it is restarted.
#[derive(Debug, Default)]
pub struct RestartPolicy(Vec<Instant>);

impl RestartPolicy {
    /// Window of time in which crashes are counted.
    pub const WITHIN: Duration = Duration::from_secs(10);

    /// Number of crashes in one window that prevents a restart ([`Self::record_exceeds`]) or after which each restart is
    /// delayed ([`Self::backoff`]), so that a process that always crashes does not occupy a CPU.
    const MOST: usize = 3;

    /// Records a crash at the time `now`; returns true if the window has three crashes, so that the process must
    /// not be restarted.
    pub fn record_exceeds(&mut self, now: Instant) -> bool {
        self.note(now);
        self.0.len() >= Self::MOST
    }

    /// Records a crash of a process that was started at `started`; returns the delay of the restart. The delay is zero for
    /// the first `MOST` crashes in the window, and doubles with each further one, up to the window: an attacker who guesses
    /// memory addresses crashes the process with each wrong guess, so the number of guesses is limited. For a process that
    /// has run for less than [`Self::MIN_UPTIME`] the delay is at least [`Self::MIN_BACKOFF`], so that a process that
    /// always fails does not occupy a CPU.
    pub fn backoff(&mut self, started: Instant, now: Instant) -> Duration {
        self.note(now);
        let shortest = match now.duration_since(started) < Self::MIN_UPTIME {
            true => Self::MIN_BACKOFF,
            false => Duration::ZERO,
        };
        match self.0.len().checked_sub(Self::MOST + 1) {
            None => shortest,
            Some(more) => Self::WITHIN
                .min(Self::SHORTEST * 2_u32.saturating_pow(u32::try_from(more).unwrap_or(u32::MAX))),
        }
    }

    /// Running time below which a process that crashed is not restarted immediately.
    pub const MIN_UPTIME: Duration = Duration::from_millis(50);

    /// Minimum delay of the restart of a process that has run for less than [`Self::MIN_UPTIME`].
    pub const MIN_BACKOFF: Duration = Duration::from_millis(50);

    /// Shortest delay of a restart that follows too many crashes.
    const SHORTEST: Duration = Duration::from_millis(100);

    fn note(&mut self, now: Instant) {
        self.0.retain(|then| now.duration_since(*then) < Self::WITHIN);
        self.0.push(now);
    }
}

/// Failed attempts to start a new engine. They do not count as crashes, because the host may soon have the missing
/// resources.
#[derive(Clone, Copy, Debug)]
pub struct StartAttempts {
    first: Instant,
    next: Instant,
}

impl StartAttempts {
    /// Time between two attempts to start an engine. A lack of resources on the host rarely ends sooner.
    const PAUSE: Duration = Duration::from_millis(50);

    /// Creates a value without attempts; the first one is due immediately.
    pub fn new(now: Instant) -> Self {
        Self {
            first: now,
            next: now,
        }
    }

    /// Returns the time of the next attempt to start the engine.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Returns true if no attempt to start the engine has failed yet.
    pub fn is_first(&self) -> bool {
        self.next == self.first
    }

    /// Records a failed attempt at the time `now`; returns true if attempts have failed for [`RestartPolicy::WITHIN`].
    pub fn too_long(&mut self, now: Instant) -> bool {
        self.next = now + Self::PAUSE;
        now.duration_since(self.first) >= RestartPolicy::WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_crash_in_ten_seconds_exceeds_the_limit() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut restart_policy = RestartPolicy::default();
        let verdicts = [0, 9, 10, 19, 20, 21].map(|seconds| restart_policy.record_exceeds(at(seconds)));
        assert_eq!(verdicts, [false, false, false, false, false, true]);
    }

    #[test]
    fn the_backoff_doubles_with_each_crash_up_to_the_window() {
        let mut restart_policy = RestartPolicy::default();
        let start = Instant::now();
        let mut now = start + RestartPolicy::MIN_UPTIME;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = restart_policy.backoff(start, now);
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(pauses, [0, 0, 0, 100, 200, 400, 800, 1600]);
        for _ in 0..100 {
            assert!(restart_policy.backoff(start, now) <= RestartPolicy::WITHIN);
        }
        assert_eq!(
            restart_policy.backoff(start, now + RestartPolicy::WITHIN),
            Duration::ZERO
        );
    }

    #[test]
    fn the_backoff_of_a_short_lived_process_is_not_zero() {
        let mut restart_policy = RestartPolicy::default();
        let start = Instant::now();
        let pauses =
            [49, 50].map(|uptime| restart_policy.backoff(start, start + Duration::from_millis(uptime)));
        assert_eq!(pauses, [RestartPolicy::MIN_BACKOFF, Duration::ZERO]);
    }

    #[test]
    fn attempts_may_fail_for_ten_seconds() {
        let start = Instant::now();
        let mut attempts = StartAttempts::new(start);
        assert!(attempts.is_first());
        assert_eq!(attempts.next(), start);
        assert!(!attempts.too_long(start));
        assert!(!attempts.is_first());
        assert_eq!(attempts.next(), start + StartAttempts::PAUSE);
        assert!(!attempts.too_long(start + RestartPolicy::WITHIN - StartAttempts::PAUSE));
        assert!(attempts.too_long(start + RestartPolicy::WITHIN));
    }
}
