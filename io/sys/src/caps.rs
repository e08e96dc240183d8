//! Dropping privilege (capabilities(7), `PR_SET_NO_NEW_PRIVS`).

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

/// Empties the calling thread's effective, permitted, inheritable and ambient sets, and its bounding set if it has the
/// privilege (otherwise `no_new_privs` makes the bounding set ineffective); sets `no_new_privs`; then reads everything back.
///
/// Capabilities are per thread: it must be called before the process has a second one.
///
/// # Errors
/// A step failed, or a value that was read back is not the one that was set; the text names it.
pub fn drop_all() -> io::Result<()> {
    drop_bounding()?;
    clear_ambient_capability_set().map_err(|error| with_context("PR_CAP_AMBIENT_CLEAR_ALL", error))?;
    set_capabilities(None, EMPTY).map_err(|error| with_context("capset", error))?;
    set_no_new_privs(true).map_err(|error| with_context("PR_SET_NO_NEW_PRIVS", error))?;
    verify()
}

/// Empties the calling thread's bounding set if it has the privilege. It must be called before a change of user, which
/// removes the privilege.
///
/// # Errors
/// The kernel's.
pub fn drop_bounding() -> io::Result<()> {
    for capability in every() {
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Not privileged, or past the last capability that this kernel knows.
            Err(Errno::PERM | Errno::INVAL) => break,
            Err(error) => return Err(with_context("PR_CAPBSET_DROP", error)),
        }
    }
    Ok(())
}

/// Checks that the calling thread has no capability and can never gain one.
///
/// # Errors
/// It has a capability or can gain one; the text names them.
pub fn verify() -> io::Result<()> {
    let sets = capabilities(None).map_err(|error| with_context("capget", error))?;
    let left = sets.effective | sets.permitted | sets.inheritable;
    if !left.is_empty() {
        return Err(io::Error::other(format!(
            "capabilities are left: {:#x}",
            left.bits()
        )));
    }
    if every().any(|capability| capability_is_in_ambient_set(capability) == Ok(true)) {
        return Err(io::Error::other("ambient capabilities are left"));
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

/// Returns capabilities 0 to 63, of which the kernel knows some.
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
        // A thread of its own, as dropped capabilities cannot be regained.
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
