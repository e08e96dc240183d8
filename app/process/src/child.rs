//! Child processes: the engine and the relay's workers, in their sandbox.

pub mod environment;
pub mod restart_policy;
pub mod spawn;
pub mod stderr_pipe;
pub mod stdio;
