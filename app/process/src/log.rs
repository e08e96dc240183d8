//! Log lines on standard error and in a file: writes that do not block, a limit on lines per minute, and one line for each panic.

pub mod file;
pub mod output;
pub mod panics;
pub mod rate_limit;
