//! Log lines on standard error: writing without waiting, a limit on their number, and panics.

pub mod output;
pub mod panics;
pub mod rate_limit;
