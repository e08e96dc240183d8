//! Exhausts resource limits of the current process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Calls `act` while this process can open no descriptor (RLIMIT_NOFILE 0). The test must run in a process of its
/// own.
pub fn without_descriptors<T>(act: impl FnOnce() -> T) -> T {
    let limit = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(3),
        ..limit
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let done = act();
    setrlimit(Resource::Nofile, limit).unwrap();
    done
}
