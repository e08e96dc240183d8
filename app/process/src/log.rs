//! Log lines on standard error: writes that do not block, a limit on lines per minute, and one line for each panic.

pub mod output;
pub mod panics;
pub mod rate_limit;
