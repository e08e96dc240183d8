//! What we say while running, on standard error.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::args::LogFormat;

/// From here on, everything that is traced at `level` or above is said.
pub(crate) fn start(format: LogFormat, level: LevelFilter) {
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level);
    match format {
        LogFormat::Text => builder.event_format(Plain).init(),
        LogFormat::Json => builder.json().flatten_event(true).with_target(false).init(),
    }
}

/// What `--quiet` and `--verbose` ask for.
pub(crate) fn level(quiet: bool, verbose: u8) -> LevelFilter {
    match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::INFO,
        (false, 1) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    }
}

/// `error: `, `warning: ` and so on, in front of a line of text.
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
