//! Limit on log lines and their bytes per minute. Without it an attacker could cause lines that fill the disk.

use std::time::{Duration, Instant};

/// Counter of log lines and their bytes in the current minute.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    since: Option<Instant>,
    lines: u32,
    bytes: usize,
    left_out: u32,
}

impl LogRateLimit {
    /// Limit on the lines that are logged in one window.
    pub const LINES: u32 = 1000;

    /// Limit on the bytes that are logged in one window: many times that of a thousand lines of usual length.
    pub const BYTES: usize = 1 << 20;

    const WINDOW: Duration = Duration::from_secs(60);

    /// Creates a counter without lines.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            since: None,
            lines: 0,
            bytes: 0,
            left_out: 0,
        }
    }

    /// Counts a line of `bytes` bytes at the time `now`. Returns true if the line is to be logged, and, if it begins a new
    /// window, the number of lines that were dropped in the previous one.
    pub fn count(&mut self, bytes: usize, now: Instant) -> (bool, u32) {
        let mut left_out = 0;
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= Self::WINDOW)
        {
            left_out = self.left_out;
            *self = Self {
                since: Some(now),
                ..Self::new()
            };
        }
        let permitted = self.lines < Self::LINES && bytes <= Self::BYTES - self.bytes;
        if permitted {
            self.lines += 1;
            self.bytes += bytes;
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
        (permitted, left_out)
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
            assert_eq!(limit.count(1, begin), (true, 0));
        }
        for _ in 0..7 {
            assert_eq!(limit.count(1, begin + LogRateLimit::WINDOW / 2), (false, 0));
        }
        assert_eq!(limit.count(1, begin + LogRateLimit::WINDOW), (true, 7));
        assert_eq!(limit.count(1, begin + LogRateLimit::WINDOW), (true, 0));
    }

    #[test]
    fn lines_over_the_limit_on_bytes_are_dropped_and_counted_at_the_next_window() {
        let begin = Instant::now();
        let mut limit = LogRateLimit::default();
        assert_eq!(limit.count(LogRateLimit::BYTES - 10, begin), (true, 0));
        assert_eq!(limit.count(11, begin), (false, 0));
        assert_eq!(limit.count(10, begin), (true, 0));
        assert_eq!(limit.count(1, begin), (false, 0));
        assert_eq!(limit.count(1, begin + LogRateLimit::WINDOW), (true, 2));
    }
}
