//! Layer of `tracing` that limits the number of log lines per minute.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pontoon_process::log::{output, rate_limit};
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::layer::{Context, Layer};

/// Limit on the log lines of this process. Errors are exempt, because they end the program, and so are the levels that
/// `--verbose` adds.
#[derive(Debug, Default)]
pub(super) struct RateLimit(Mutex<rate_limit::LogRateLimit>);

impl<S: Subscriber> Layer<S> for RateLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        output::report_dropped();
        if event.metadata().target() == output::DROPPED {
            return true;
        }
        if !matches!(*event.metadata().level(), Level::WARN | Level::INFO) {
            return true;
        }
        let mut limit = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (permitted, left_out) = limit.count(0, Instant::now());
        // The lock is released first, because the warning below calls this function again.
        drop(limit);
        if left_out > 0 {
            let most = rate_limit::LogRateLimit::LINES;
            warn!("dropped {left_out} log lines: more than {most} in a minute");
        }
        permitted
    }
}
