//! How much is said in a minute at most: whoever is hostile can cause any number of lines, and lines fill disks.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::layer::{Context, Layer};

/// Lines in a window. Errors do not count, as they end the program, nor does what somebody has asked for by `--verbose`.
const LINES: u32 = 1000;
const WINDOW: Duration = Duration::from_secs(60);

/// One process's.
#[derive(Debug, Default)]
pub(super) struct Quota(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    since: Option<Instant>,
    lines: u32,
}

impl<S: Subscriber> Layer<S> for Quota {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        if !matches!(*event.metadata().level(), Level::WARN | Level::INFO) {
            return true;
        }
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (said, left_out) = window.count(Instant::now());
        // What follows is a line, too.
        drop(window);
        if left_out > 0 {
            warn!("{left_out} lines were left out: there were more than {LINES} in a minute");
        }
        said
    }
}

impl Window {
    /// Whether one more is said at `now`, and how many were left out in the window that it ends.
    fn count(&mut self, now: Instant) -> (bool, u32) {
        let mut left_out = 0;
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            left_out = self.lines.saturating_sub(LINES);
            *self = Self {
                since: Some(now),
                lines: 0,
            };
        }
        self.lines = self.lines.saturating_add(1);
        (self.lines <= LINES, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_in_a_minute_is_left_out_and_told_of_later() {
        let begin = Instant::now();
        let mut window = Window::default();
        for _ in 0..LINES {
            assert_eq!(window.count(begin), (true, 0));
        }
        for _ in 0..7 {
            assert_eq!(window.count(begin + WINDOW / 2), (false, 0));
        }
        assert_eq!(window.count(begin + WINDOW), (true, 7));
        assert_eq!(window.count(begin + WINDOW), (true, 0));
    }
}
