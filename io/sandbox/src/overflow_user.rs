//! Change of a root process to the overflow user, who owns no files. Without the change, root without capabilities
//! could still write root's files.

use std::io;

use pontoon_sys::caps;
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid, parent_process_death_signal, set_parent_process_death_signal};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The kernel's default overflow user id and group id (`overflowuid` in proc_sys_kernel(5)).
const OVERFLOW_ID: u32 = 65534;

/// Changes user and groups of a root process to the overflow user. Processes of other users are not changed, nor is
/// root in a user namespace that does not map the id.
pub(crate) fn switch_to() -> io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    // After the change of user id the process would lack CAP_SETPCAP, which this needs.
    caps::drop_bounding()?;
    let at_parents_death = parent_process_death_signal()?;
    let (user, group) = (Uid::from_raw(OVERFLOW_ID), Gid::from_raw(OVERFLOW_ID));
    let changed = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(group, group, group))
        .and_then(|()| set_thread_res_uid(user, user, user));
    match changed {
        // EINVAL, EPERM: the user namespace does not map the overflow id.
        Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    // The change of user id has cleared the parent-death signal (PR_SET_PDEATHSIG).
    Ok(set_parent_process_death_signal(at_parents_death)?)
}
