//! Own namespaces of a sandboxed process, and an empty root directory in its mount namespace.

use libc::{CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS, c_int};
use pontoon_sys::disabled::Disabled;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::{chdir, pivot_root};

use crate::layers::Layer;

/// Set of new namespaces for a process, as flags of clone(2) (`CLONE_NEW*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces(c_int);

/// All types of namespaces except network and time, with their names in reports. The user namespace is the first,
/// because users other than root need it to create the others.
const ALL: [(c_int, &str); 6] = [
    (CLONE_NEWUSER, "user"),
    (CLONE_NEWNS, "mount"),
    (CLONE_NEWPID, "pid"),
    (CLONE_NEWIPC, "ipc"),
    (CLONE_NEWUTS, "uts"),
    (CLONE_NEWCGROUP, "cgroup"),
];

/// Directory over which the empty root is mounted. It exists on every host, and its contents do not matter.
const SOME_DIRECTORY: &str = "/proc";

/// Returns the sets of namespaces that the supervisor tries in clone(2), the strictest first. The last set is empty and
/// always works.
#[must_use]
pub fn choices(disabled: &Disabled) -> Vec<Namespaces> {
    let all = ALL.iter().fold(0, |flags, (flag, _)| flags | flag);
    let choices = match disabled.namespaces {
        true => vec![0],
        // If user namespaces are disabled on the host, root may still create the other types.
        false => vec![all, all & !CLONE_NEWUSER, 0],
    };
    choices.into_iter().map(Namespaces).collect()
}

impl Namespaces {
    /// The empty set: the process stays in the namespaces of its parent.
    pub const NONE: Self = Self(0);

    /// Returns the set as flags of clone(2).
    #[must_use]
    pub fn flags(self) -> c_int {
        self.0
    }

    pub(crate) fn layer(self, disabled: &Disabled) -> Layer {
        let names = |has: bool| {
            let names = ALL.iter().filter(|(flag, _)| (self.0 & flag != 0) == has);
            names.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
        };
        match self.0 {
            0 if disabled.namespaces => Layer::Disabled,
            0 => Layer::Refused("the host allows no namespaces".to_owned()),
            flags if flags & CLONE_NEWUSER == 0 => Layer::Refused(format!(
                "{} only: the host allows no user namespaces",
                names(true)
            )),
            _ => Layer::Active(names(true)),
        }
    }

    /// Replaces the root directory by an empty, read-only one, and unmounts all other file systems in the process's
    /// mount namespace.
    pub(crate) fn empty_root(self) -> Layer {
        if self.0 & CLONE_NEWNS == 0 {
            return Layer::Refused("the process has no mount namespace of its own".to_owned());
        }
        match empty_root() {
            Ok(()) => Layer::Active("empty".to_owned()),
            // AppArmor's restriction of user namespaces (Ubuntu 23.10 and later) denies CAP_SYS_ADMIN in them.
            Err((what, error)) => Layer::Refused(format!("{what}: {error}")),
        }
    }
}

fn empty_root() -> Result<(), (&'static str, Errno)> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|error| ("mount", error))?;
    mount("none", SOME_DIRECTORY, "tmpfs", flags, None).map_err(|error| ("mount", error))?;
    chdir(SOME_DIRECTORY).map_err(|error| ("chdir", error))?;
    // The new file system becomes root and current directory; the old root is mounted over it and then unmounted
    // (pivot_root(2), section "pivot_root(".", ".")").
    pivot_root(".", ".").map_err(|error| ("pivot_root", error))?;
    unmount(".", UnmountFlags::DETACH).map_err(|error| ("umount", error))?;
    chdir("/").map_err(|error| ("chdir", error))?;
    match rustix::fs::accessat(
        CWD,
        SOME_DIRECTORY,
        rustix::fs::Access::EXISTS,
        rustix::fs::AtFlags::empty(),
    ) {
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(("access", error)),
        Ok(()) => Err(("the root is not empty", Errno::EXIST)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_namespace_is_not_among_the_flags() {
        for choice in choices(&Disabled::default()) {
            assert_eq!(choice.flags() & libc::CLONE_NEWNET, 0);
        }
        assert_eq!(choices(&Disabled::default()).last(), Some(&Namespaces(0)));
    }

    #[test]
    fn disabled_namespaces_have_no_flags() {
        let disabled = Disabled {
            namespaces: true,
            ..Disabled::default()
        };
        assert_eq!(choices(&disabled), [Namespaces(0)]);
        assert_eq!(Namespaces(0).layer(&disabled), Layer::Disabled);
    }

    #[test]
    fn missing_namespaces_are_listed() {
        let disabled = Disabled::default();
        let choices = choices(&disabled);
        let best = choices[0].layer(&disabled);
        assert_eq!(
            best,
            Layer::Active("user, mount, pid, ipc, uts, cgroup".to_owned())
        );
        assert!(matches!(choices[1].layer(&disabled), Layer::Refused(_)));
        assert!(matches!(choices[2].layer(&disabled), Layer::Refused(_)));
        assert!(matches!(Namespaces(0).empty_root(), Layer::Refused(_)));
    }
}
