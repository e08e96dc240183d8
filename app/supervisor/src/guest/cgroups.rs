//! Control groups of the host in the guest's mount namespace: visible, and read-only.
//!
//! A process that may write the files of a cgroup can kill, freeze and limit the processes in it (`cgroup.kill`,
//! `cgroup.freeze`), whatever namespaces they are in. The user of the guest may own cgroups of the host: systemd delegates one
//! to each user who logs in, with all processes of the session.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use pontoon_process::error::{Context as _, Error, reason};
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

/// A mount in the text of mountinfo (proc(5)).
#[derive(Debug, PartialEq, Eq)]
struct CgroupMount {
    point: PathBuf,
    /// Flags of the mount that a remount has to keep.
    flags: MountFlags,
}

/// Types of file systems of which [`make_read_only`] finds the mounts, as statfs(2) returns them.
const MAGIC: [i64; 2] = [libc::CGROUP_SUPER_MAGIC, libc::CGROUP2_SUPER_MAGIC];

/// Makes all mounts of cgroup file systems (of both versions) read-only in this mount namespace. They stay so in a mount
/// namespace of a descendant user namespace, which copies this one (mount_namespaces(7), "Restrictions on mount namespaces").
///
/// # Errors
/// The mounts cannot be listed, or one cannot be changed.
pub(crate) fn make_read_only() -> Result<(), Error> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read mountinfo")?;
    for mount in mounts.lines().filter_map(cgroup_mount) {
        let remounted = match statfs(&mount.point) {
            // Another mount covers this one. No process of the guest can remove that, as the guest has the same restrictions.
            Ok(found) if !MAGIC.contains(&found.f_type) => Ok(()),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => {
                let flags = MountFlags::BIND | MountFlags::RDONLY | mount.flags;
                mount_remount(&mount.point, flags, "")
            }
        };
        remounted.map_err(|error| {
            let point = mount.point.display();
            Error::new(format!(
                "cannot make {point} read-only: {}",
                reason(&error.into())
            ))
        })?;
    }
    Ok(())
}

/// Returns the mount in a line of mountinfo, if its file system is one of cgroups.
fn cgroup_mount(line: &str) -> Option<CgroupMount> {
    let (front, back) = line.split_once(" - ")?;
    if !matches!(back.split(' ').next()?, "cgroup" | "cgroup2") {
        return None;
    }
    let mut front = front.split(' ').skip(4);
    let point = unescape(front.next()?);
    let mut flags = MountFlags::empty();
    for option in front.next()?.split(',') {
        // Those for access times stay as they are if none is given.
        flags |= match option {
            "nosuid" => MountFlags::NOSUID,
            "nodev" => MountFlags::NODEV,
            "noexec" => MountFlags::NOEXEC,
            _ => MountFlags::empty(),
        };
    }
    Some(CgroupMount { point, flags })
}

/// Returns the path of a field of mountinfo, in which blanks and backslashes are three octal digits.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(digits.unwrap_or(*first));
        rest = after
            .get(if digits.is_some() { 3 } else { 0 }..)
            .unwrap_or_default();
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_both_versions_are_found_with_their_flags() {
        let text = "\
            22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            31 23 0:28 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755\n\
            37 31 0:34 / /sys/fs/cgroup/freezer ro,nosuid,nodev,noexec,relatime shared:9 - cgroup cgroup rw,freezer\n\
            38 31 0:34 /user.slice /mnt/a\\040b\\134c rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
        let mounts: Vec<_> = text.lines().filter_map(cgroup_mount).collect();
        let expected = [
            CgroupMount {
                point: "/sys/fs/cgroup/freezer".into(),
                flags: MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
            },
            CgroupMount {
                point: "/mnt/a b\\c".into(),
                flags: MountFlags::empty(),
            },
        ];
        assert_eq!(mounts, expected);
    }
}
