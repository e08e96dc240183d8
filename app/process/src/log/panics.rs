//! Log lines for panics. Their number is limited, as an attacker who can cause one panic can cause many.

use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing::error;

use crate::log::output;

/// Limit on the panics of this process that are logged; the counter `panics` counts all of them.
const MOST: u32 = 20;

/// Sets a panic hook that logs each panic of any thread as one line.
pub fn set_hook() {
    static LOGGED: AtomicU32 = AtomicU32::new(0);
    std::panic::set_hook(Box::new(|panic| {
        if LOGGED.fetch_add(1, Ordering::Relaxed) < MOST {
            error!("{}", line(panic));
            // The process may exit without a later call that writes queued lines.
            output::finish();
        }
    }));
}

fn line(panic: &PanicHookInfo<'_>) -> String {
    let what = panic.payload_as_str().unwrap_or("no message");
    match panic.location() {
        Some(place) => format!("internal error at {place}: {what} (please report it)"),
        None => format!("internal error: {what} (please report it)"),
    }
}
