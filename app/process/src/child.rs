//! Child processes: the engine and the relay's workers, in their sandbox.

pub mod background;
pub mod environment;
mod exit_reason;
mod process;
pub mod restart_policy;
pub mod run_state;
pub mod spawn;
pub mod stderr_pipe;
pub mod stdio;

pub use exit_reason::ExitReason;
pub use process::{ChildProcess, ProcessConfig, ProcessState, exit_status};
