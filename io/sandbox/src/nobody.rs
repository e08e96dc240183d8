//! The user `nobody`, who owns nothing: root without capabilities could still write root's files.

use std::io;

use pontoon_sys::caps;
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid, parent_process_death_signal, set_parent_process_death_signal};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The overflow id.
const NOBODY: u32 = 65534;

/// Changes root to the user `nobody`. Other users are not changed, nor is root in a user namespace without that id.
pub(crate) fn become_one() -> io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    // Afterwards it would lack the privilege.
    caps::drop_bounding()?;
    let at_parents_death = parent_process_death_signal()?;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    let changed = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(group, group, group))
        .and_then(|()| set_thread_res_uid(user, user, user));
    match changed {
        // The one id of a namespace that maps no other.
        Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    // A change of ids has taken it away.
    Ok(set_parent_process_death_signal(at_parents_death)?)
}
