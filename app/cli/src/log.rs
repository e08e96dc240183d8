//! Log of the program on standard error.

use std::fmt;
use std::process::ExitCode;
use std::sync::OnceLock;

use pontoon_process::Error;
use pontoon_process::log::output;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::LogFormat;
use rate_limit::RateLimit;

mod rate_limit;

/// Handle that changes the log level. A forked child has its own copy.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Starts the log with the given format and level.
pub(crate) fn start(format: LogFormat, level: LevelFilter) {
    let (filter, handle) = reload::Layer::new(level);
    LEVEL.get_or_init(|| handle);
    let registry = tracing_subscriber::registry()
        .with(filter)
        .with(RateLimit::default());
    let lines = tracing_subscriber::fmt::layer().with_writer(|| output::Lines);
    match format {
        LogFormat::Text => registry.with(lines.event_format(Plain)).init(),
        LogFormat::Json => registry
            .with(lines.json().flatten_event(true).with_target(false))
            .init(),
    }
}

/// Sets the log level of this process. Events below the level cost almost nothing, because tracing caches the interest of
/// call sites.
pub(crate) fn set(level: LevelFilter) {
    if let Some(handle) = LEVEL.get() {
        // The call fails only without a subscriber, which exists as long as the process.
        let _ = handle.reload(level);
    }
}

/// Returns the exit status for the result of a verb. Logs an error, and waits up to a second for the reader of the log.
pub(crate) fn end(result: Result<u8, Error>) -> ExitCode {
    let status = result.unwrap_or_else(|error| {
        tracing::error!("{error}");
        error.status()
    });
    output::finish();
    status.into()
}

/// Returns the log level that `--quiet` and `--verbose` select.
pub(crate) fn level(quiet: bool, verbose: u8) -> LevelFilter {
    match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::INFO,
        (false, 1) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    }
}

/// Text format of log lines: each begins with `error: `, `warning: ` and so on.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let word = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        write!(to, "{word}: ")?;
        ctx.format_fields(to.by_ref(), event)?;
        writeln!(to)
    }
}
