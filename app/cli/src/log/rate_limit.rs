//! No more than so many lines are said in a minute.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pontoon_supervisor::{log_rate_limit, output};
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::layer::{Context, Layer};

/// One process's. Errors do not count, as they end the program, nor does what somebody has asked for by `--verbose`.
#[derive(Debug, Default)]
pub(super) struct RateLimit(Mutex<log_rate_limit::LogRateLimit>);

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
        let (said, left_out) = limit.count(Instant::now());
        // What follows is a line, too.
        drop(limit);
        if left_out > 0 {
            let most = log_rate_limit::LogRateLimit::LINES;
            warn!("{left_out} lines were left out: there were more than {most} in a minute");
        }
        said
    }
}
