//! Edge: kernel interfaces that need raw system calls, behind safe functions.
//!
//! One kernel interface is one file. Nothing here decides anything; callers do.

pub mod caps;
pub mod disabled;
pub mod seqpacket;
pub mod tun;
