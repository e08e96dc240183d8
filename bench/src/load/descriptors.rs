//! The resource limit on open descriptors (RLIMIT_NOFILE).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::job::JobMessage;

use super::unreachable;

/// Raises the soft limit to the hard limit if it is less than `needed`.
///
/// # Errors
/// `Unreachable`: the hard limit is less than `needed`.
pub(crate) fn allow(needed: u64) -> Result<(), JobMessage> {
    let limit = getrlimit(Resource::Nofile);
    let suffices = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if suffices(limit.current) {
        return Ok(());
    }
    if suffices(limit.maximum) {
        let raised = Rlimit {
            current: limit.maximum,
            ..limit
        };
        return setrlimit(Resource::Nofile, raised)
            .map_err(|error| unreachable(format_args!("cannot raise RLIMIT_NOFILE: {error}")));
    }
    Err(unreachable(format_args!(
        "{needed} descriptors needed, and the hard limit (RLIMIT_NOFILE) is {}",
        limit.maximum.unwrap_or_default()
    )))
}
