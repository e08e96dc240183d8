//! Resource limits of a sandboxed process (setrlimit(2)). They exceed its needs, so that only a compromised process
//! reaches them.

use std::io;

use libc::CLONE_NEWUSER;
use pontoon_sys::disabled::Disabled;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Sandbox;

/// Resource limits of a sandboxed process.
#[derive(Clone, Copy, Debug)]
pub struct ResourceLimits {
    /// Private writable memory in bytes (`RLIMIT_DATA`); shared memory does not count.
    pub memory: u64,
    /// Number of threads (`RLIMIT_NPROC`).
    pub threads: u64,
}

impl Sandbox {
    /// Sets the limits on memory and threads, and forbids core dumps. The number of threads is limited only in an own
    /// user namespace and since Linux 5.14; otherwise the kernel would count all processes of the user (for root,
    /// none). The size of files is not limited, as a capture of any size may be started later.
    ///
    /// It must be called before [`Sandbox::enter`], whose filter forbids setrlimit(2).
    ///
    /// # Errors
    /// Errors of setrlimit(2) and getrlimit(2).
    pub fn limit(&self, limits: ResourceLimits, disabled: &Disabled) -> io::Result<()> {
        if disabled.limits {
            return Ok(());
        }
        lower(Resource::Core, 0)?;
        lower(Resource::Data, limits.memory)?;
        if self.namespaces.flags() & CLONE_NEWUSER != 0 && counts_in_namespaces() {
            lower(Resource::Nproc, limits.threads)?;
        }
        Ok(())
    }
}

/// Lowers the soft and hard limit to `most`; a hard limit that is lower already is kept.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let maximum = getrlimit(resource).maximum.map_or(most, |now| now.min(most));
    let limit = Rlimit {
        current: Some(maximum),
        maximum: Some(maximum),
    };
    Ok(setrlimit(resource, limit)?)
}

fn counts_in_namespaces() -> bool {
    let name = rustix::system::uname();
    release(&name.release().to_string_lossy()).is_some_and(|release| release >= (5, 14))
}

/// Returns the first two numbers of a kernel release, for example (6, 18) of "6.18.2".
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_numbers_are_parsed() {
        assert_eq!(release("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(release("5.4.0-1-amd64"), Some((5, 4)));
        assert_eq!(release("6.1"), Some((6, 1)));
        assert_eq!(release("plan9"), None);
    }
}
