//! Resource limits of a process (setrlimit(2)). They are higher than its needs, so that only a compromised process reaches
//! them.

use std::io;

use libc::CLONE_NEWUSER;
use pontoon_sys::disabled::Disabled;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Sandbox;

/// The resource limits of a process.
#[derive(Clone, Copy, Debug)]
pub struct ResourceLimits {
    /// Bytes of memory of its own that it may write to. What it shares with others is not among them.
    pub memory: u64,
    /// Threads.
    pub threads: u64,
}

impl Sandbox {
    /// Limits memory, and threads where that means this process's: of root the kernel counts none, and in no user namespace of
    /// its own, or before Linux 5.14, all of the user's processes. There is no limit on files: a capture of any
    /// size can be started later.
    ///
    /// Call it before [`Sandbox::enter`], which takes away the call for it.
    ///
    /// # Errors
    /// The kernel's.
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

/// Lowers both limits; they may be lower already.
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

/// The first two numbers of a kernel's release.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_releases() {
        assert_eq!(release("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(release("5.4.0-1-amd64"), Some((5, 4)));
        assert_eq!(release("6.1"), Some((6, 1)));
        assert_eq!(release("plan9"), None);
    }
}
