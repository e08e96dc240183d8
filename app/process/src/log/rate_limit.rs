//! Limit on log lines per minute. Without it an attacker could cause lines that fill the disk.

use std::time::{Duration, Instant};

/// Counter of the log lines of one process in the current minute.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    since: Option<Instant>,
    lines: u32,
}

impl LogRateLimit {
    /// Limit on the lines that are logged in one window.
    pub const LINES: u32 = 1000;

    const WINDOW: Duration = Duration::from_secs(60);

    /// Counts a line at the time `now`. Returns true if the line is to be logged, and, if it begins a new window, the
    /// number of lines that were dropped in the previous one.
    pub fn count(&mut self, now: Instant) -> (bool, u32) {
        let mut left_out = 0;
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= Self::WINDOW)
        {
            left_out = self.lines.saturating_sub(Self::LINES);
            *self = Self {
                since: Some(now),
                lines: 0,
            };
        }
        self.lines = self.lines.saturating_add(1);
        (self.lines <= Self::LINES, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_over_the_limit_are_dropped_and_counted_at_the_next_window() {
        let begin = Instant::now();
        let mut limit = LogRateLimit::default();
        for _ in 0..LogRateLimit::LINES {
            assert_eq!(limit.count(begin), (true, 0));
        }
        for _ in 0..7 {
            assert_eq!(limit.count(begin + LogRateLimit::WINDOW / 2), (false, 0));
        }
        assert_eq!(limit.count(begin + LogRateLimit::WINDOW), (true, 7));
        assert_eq!(limit.count(begin + LogRateLimit::WINDOW), (true, 0));
    }
}
