//! How much is said in a minute at most: whoever is hostile can cause any number of lines, and lines fill disks.

use std::time::{Duration, Instant};

/// Lines of one process.
#[derive(Debug, Default)]
pub struct Quota {
    since: Option<Instant>,
    lines: u32,
}

impl Quota {
    /// Lines in a window.
    pub const LINES: u32 = 1000;

    const WINDOW: Duration = Duration::from_secs(60);

    /// Whether one more is said at `now`, and how many were left out in the window that it ends.
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
    fn what_is_too_much_in_a_minute_is_left_out_and_told_of_later() {
        let begin = Instant::now();
        let mut quota = Quota::default();
        for _ in 0..Quota::LINES {
            assert_eq!(quota.count(begin), (true, 0));
        }
        for _ in 0..7 {
            assert_eq!(quota.count(begin + Quota::WINDOW / 2), (false, 0));
        }
        assert_eq!(quota.count(begin + Quota::WINDOW), (true, 7));
        assert_eq!(quota.count(begin + Quota::WINDOW), (true, 0));
    }
}
