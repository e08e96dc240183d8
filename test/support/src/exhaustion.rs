//! Limits of this process for tests of exhausted resources.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Does something while this process, which has to be the test's own, gets no descriptor.
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
