//! Dropping of capabilities and setting of `no_new_privs` (capabilities(7), `PR_SET_NO_NEW_PRIVS`).

use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_ambient_set, capability_is_in_bounding_set,
    clear_ambient_capability_set, no_new_privs, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

const EMPTY: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

/// Drops all capabilities of the calling thread: empties its effective, permitted, inheritable and ambient sets, sets
/// `no_new_privs`, and reads all of them back. The bounding set is emptied too if the thread has CAP_SETPCAP; otherwise
/// `no_new_privs` makes it ineffective.
///
/// Capabilities are a property of each thread, so the function must be called while the process has one thread.
///
/// # Errors
/// A system call failed, or a value that was read back is not the one that was set; the text names the call or value.
pub fn drop_all() -> io::Result<()> {
    drop_bounding()?;
    clear_ambient_capability_set().map_err(|error| with_context("PR_CAP_AMBIENT_CLEAR_ALL", error))?;
    set_capabilities(None, EMPTY).map_err(|error| with_context("capset", error))?;
    set_no_new_privs(true).map_err(|error| with_context("PR_SET_NO_NEW_PRIVS", error))?;
    verify()
}

/// Empties the calling thread's bounding set if the thread has CAP_SETPCAP. It must be called before a change of user
/// id, which drops that capability.
///
/// # Errors
/// Errors of prctl(2) with `PR_CAPBSET_DROP`, other than EPERM.
pub fn drop_bounding() -> io::Result<()> {
    for capability in every() {
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The thread has no CAP_SETPCAP, or the kernel knows no capability of this number.
            Err(Errno::PERM | Errno::INVAL) => break,
            Err(error) => return Err(with_context("PR_CAPBSET_DROP", error)),
        }
    }
    Ok(())
}

/// Checks that the calling thread has no capability and can gain none by execve(2).
///
/// # Errors
/// The thread has a capability, or `no_new_privs` is not set; the text names the capability or the flag.
pub fn verify() -> io::Result<()> {
    let sets = capabilities(None).map_err(|error| with_context("capget", error))?;
    let left = sets.effective | sets.permitted | sets.inheritable;
    if !left.is_empty() {
        return Err(io::Error::other(format!(
            "capabilities were not dropped: {:#x}",
            left.bits()
        )));
    }
    // The first error is that of a number beyond those of the kernel.
    let mut ambient = every().map_while(|capability| capability_is_in_ambient_set(capability).ok());
    if ambient.any(|is_set| is_set) {
        return Err(io::Error::other("ambient capabilities were not dropped"));
    }
    if no_new_privs() != Ok(true) {
        return Err(io::Error::other("no_new_privs is not set"));
    }
    Ok(())
}

/// Returns true if the calling thread's bounding set is empty.
#[must_use]
pub fn bounding_set_is_empty() -> bool {
    !every().any(|capability| capability_is_in_bounding_set(capability) == Ok(true))
}

/// Returns the capability numbers 0 to 63, of which the kernel knows the first ones.
fn every() -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit))
}

fn with_context(what: &str, error: Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_all_leaves_no_capability() {
        // In its own thread, as dropped capabilities cannot be regained.
        std::thread::spawn(|| {
            let privileged = capabilities(None)
                .unwrap()
                .effective
                .contains(CapabilitySet::SETPCAP);
            assert!(verify().is_err());
            drop_all().unwrap();
            verify().unwrap();
            assert!(bounding_set_is_empty() || !privileged);
            drop_all().expect("dropping twice is no error");
        })
        .join()
        .unwrap();
    }
}
