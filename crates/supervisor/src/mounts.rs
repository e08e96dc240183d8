//! The guest's view of files: its own `/proc` and its own resolv.conf; everything else is the host's.

use std::fs;

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};

use crate::error::{Context as _, Error, reason};
use crate::resolv;

/// Keeps the mounts that follow inside this mount namespace. The first act of privilege in a user namespace.
///
/// # Errors
/// EPERM or EACCES: there is no privilege in this user namespace.
pub fn keep_private() -> std::io::Result<()> {
    Ok(mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?)
}

/// Puts `text` in the place of `/etc/resolv.conf`, or of the file that it links to. Call it before [`proc`]: the file
/// lives in a tmpfs that is mounted over `/proc` for a moment, as that directory exists everywhere; the bind mount
/// keeps it alive.
///
/// # Errors
/// A mount was refused.
pub fn resolv_conf(text: &str) -> Result<(), Error> {
    if !fs::exists(resolv::PATH).unwrap_or(false) {
        tracing::warn!("{} does not exist, so the guest gets no resolver", resolv::PATH);
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", "/proc", "tmpfs", flags, c"size=64k,mode=755").context("cannot mount a tmpfs")?;
    let result = fs::write("/proc/resolv.conf", text)
        .and_then(|()| Ok(mount_bind("/proc/resolv.conf", resolv::PATH)?))
        .context(format_args!("cannot mount over {}", resolv::PATH));
    unmount("/proc", UnmountFlags::DETACH).context("cannot unmount the tmpfs")?;
    result
}

/// Mounts the `/proc` of this pid namespace.
pub fn proc() {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Refused where parts of the host's /proc are covered (in a container): the guest then sees that one.
    if let Err(error) = mount("proc", "/proc", "proc", flags, None) {
        let reason = reason(&error.into());
        tracing::warn!("cannot mount /proc, so the guest sees the host's: {reason}");
    }
}
