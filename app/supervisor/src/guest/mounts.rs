//! Mounts of the guest: its own `/proc`, its own network interfaces in `/sys` and its own resolv.conf; all other files are
//! the host's.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use pontoon_process::error::{Context as _, Error, reason};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, open, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsmount, fsopen, mount, mount_bind, mount_change,
    move_mount, open_tree, unmount,
};

use crate::host::resolv;

/// Makes all mounts private, so that later ones are not propagated out of this mount namespace. It is the first system call
/// that needs a capability in the user namespace.
///
/// # Errors
/// EPERM or EACCES: this process has no capabilities in its user namespace.
pub(crate) fn keep_private() -> io::Result<()> {
    Ok(mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?)
}

/// Copy of the host's `/proc` for the guest's first process, while `/proc` itself is covered by an empty directory.
///
/// A mount namespace of a further user namespace, which is made meanwhile, inherits the cover, and no process in it can remove
/// the cover. The kernel permits to mount a proc there only while another one is visible, which is the copy.
#[derive(Debug)]
pub(crate) struct ProcCover {
    copy: OwnedFd,
}

impl ProcCover {
    /// Covers `/proc` in this mount namespace.
    ///
    /// # Errors
    /// The kernel is older than Linux 5.2, or refuses the mount.
    pub(crate) fn new() -> io::Result<Self> {
        let clone =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let copy = open_tree(CWD, "/proc", clone)?;
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("tmpfs", "/proc", "tmpfs", flags, c"size=4k,mode=555")?;
        Ok(Self { copy })
    }

    /// Removes the cover in the mount namespace in which it was made.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn remove(self) -> io::Result<()> {
        Ok(unmount("/proc", UnmountFlags::DETACH)?)
    }

    /// Mounts the proc of this PID namespace over the cover, in a mount namespace that has inherited it. If the kernel refuses
    /// that, the host's is mounted there.
    ///
    /// # Errors
    /// The kernel refuses any mount.
    pub(crate) fn replace(&self) -> io::Result<()> {
        let onto_proc =
            |tree: &OwnedFd| move_mount(tree, "", CWD, "/proc", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
        onto_proc(&self.copy)?;
        let Ok(proc) = detached_proc() else {
            return Ok(());
        };
        unmount("/proc", UnmountFlags::DETACH)?;
        Ok(onto_proc(&proc)?)
    }
}

impl AsFd for ProcCover {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.copy.as_fd()
    }
}

/// Returns a proc of this PID namespace that is mounted nowhere.
fn detached_proc() -> io::Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Directories of `/sys` that list network interfaces: the symbolic links by name, and the virtual interfaces to which they
/// lead.
const INTERFACES: [&str; 2] = ["class/net", "devices/virtual/net"];

/// Mounts a file with `text` over `/etc/resolv.conf`, or over the file that it links to, if it exists; shows the interfaces of
/// this network namespace in `/sys`; and mounts the `/proc` of this PID namespace.
///
/// The file and a sysfs are in a tmpfs that is mounted over `/proc` first, as that directory exists everywhere. The bind mounts
/// keep references to them, and the new `/proc` covers them: to unmount the tmpfs would wait some milliseconds for the kernel.
///
/// Returns the file, if it may have to be mounted again.
///
/// # Errors
/// A mount was refused.
pub(crate) fn resolv_conf_sys_and_proc(text: Option<&str>) -> Result<Option<ResolvConf>, Error> {
    let mut kept = None;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", "/proc", "tmpfs", flags, c"size=64k,mode=755").context("cannot mount a tmpfs")?;
    interfaces("/proc/sys");
    if let Some(text) = text {
        if fs::exists(resolv::PATH).unwrap_or(false) {
            write_for_all("/proc/resolv.conf", text).context("cannot write the guest's resolv.conf")?;
            mount_bind("/proc/resolv.conf", resolv::PATH)
                .context(format_args!("cannot mount over {}", resolv::PATH))?;
            kept =
                Some(ResolvConf::keep("/proc/resolv.conf").context("cannot open the guest's resolv.conf")?);
        } else {
            tracing::warn!("{} does not exist, so the guest gets no resolver", resolv::PATH);
        }
    }
    // The kernel refuses the mount if parts of the host's /proc are covered (in a container); the guest then sees the
    // host's /proc.
    if let Err(error) = mount("proc", "/proc", "proc", flags, None) {
        let reason = reason(&error.into());
        tracing::warn!("cannot mount /proc, so the guest sees the host's: {reason}");
        // After the tmpfs is unmounted, its file cannot be bind-mounted again, so its descriptor is not kept.
        kept = None;
        unmount("/proc", UnmountFlags::DETACH).context("cannot unmount the tmpfs")?;
    }
    Ok(kept)
}

/// Shows the interfaces of this network namespace in `/sys`, instead of the host's. The rest of `/sys` stays the host's:
/// programs inside need its cgroups and CPUs.
///
/// A sysfs shows the interfaces of the network namespace in which it was mounted. It is mounted at `at`, and its directories
/// are bound from there. The kernel permits a container in the guest to mount a sysfs with the flags of one that is mounted and
/// has nothing mounted on it, which is this one: so it is not read-only, and its mount is kept.
///
/// The kernel refuses the mount if parts of the host's `/sys` are covered (in a container): the guest then sees the host's
/// interfaces there, and can do nothing with them.
fn interfaces(at: &str) {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let sysfs = |flags| mount("sysfs", at, "sysfs", flags, None);
    // If the host's sysfs is mounted read-only, the kernel permits only a read-only mount.
    let mounted =
        fs::create_dir(at).and_then(|()| Ok(sysfs(flags).or_else(|_| sysfs(flags | MountFlags::RDONLY))?));
    if let Err(error) = mounted {
        tracing::debug!("cannot mount a sysfs, so /sys shows the host's interfaces: {error}");
        return;
    }
    for directory in INTERFACES {
        let (from, onto) = (format!("{at}/{directory}"), format!("/sys/{directory}"));
        if let Err(error) = mount_bind(from, &onto) {
            tracing::debug!("cannot mount over {onto}: {error}");
        }
    }
}

/// Guest's resolv.conf, which is mounted over the host's. If the host replaces its file, the kernel removes the mount in
/// all namespaces (rename(2) and unlink(2), since Linux 3.18), and the guest would see the host's file.
#[derive(Debug)]
pub(crate) struct ResolvConf {
    /// Guest's file (`O_PATH`), the source of the mount.
    file: OwnedFd,
    /// Device and inode number of the directory of the host's resolv.conf.
    directory: Option<(u64, u64)>,
}

impl ResolvConf {
    fn keep(path: &str) -> io::Result<Self> {
        Ok(Self {
            file: open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?,
            directory: directory(),
        })
    }

    /// Mounts the guest's file again, if the host's file is visible.
    ///
    /// # Errors
    /// The kernel refuses the mount.
    pub(crate) fn mount_again(&self) -> io::Result<()> {
        let there = match statx(CWD, resolv::PATH, AtFlags::empty(), StatxFlags::empty()) {
            Ok(there) => there,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // Mounts that the guest itself has made on the file or the directory are not changed.
        if there.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) || directory() != self.directory {
            return Ok(());
        }
        let clone =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(&self.file, "", clone)?;
        let onto = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
        match move_mount(&tree, "", CWD, resolv::PATH, onto) {
            // The host's file was removed meanwhile: the file that replaces it causes another event.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns device and inode number of the directory that contains resolv.conf.
fn directory() -> Option<(u64, u64)> {
    let directory = fs::metadata(Path::new(resolv::PATH).parent()?).ok()?;
    Some((directory.dev(), directory.ino()))
}

/// Writes a file that all users may read, independently of the umask: the guest may have several users.
fn write_for_all(path: impl AsRef<Path>, text: &str) -> io::Result<()> {
    fs::write(&path, text)?;
    fs::set_permissions(&path, Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_readable_by_all_users() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        fs::write(&path, "").unwrap();
        // The umask would have removed the permissions of other users.
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        write_for_all(&path, "nameserver 10.0.2.3\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"nameserver 10.0.2.3\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    }
}
