//! Namespaces of its own, and a root directory with nothing in it.

use libc::{CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS, c_int};
use pontoon_sys::disabled::Disabled;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::{chdir, pivot_root};

use crate::layers::Layer;

/// Namespaces of a new process, as flags of clone(2): `CLONE_NEW*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces(c_int);

/// All types but the network namespace. The user namespace is the first, because users other than root need it to create
/// the others.
const ALL: [(c_int, &str); 6] = [
    (CLONE_NEWUSER, "user"),
    (CLONE_NEWNS, "mount"),
    (CLONE_NEWPID, "pid"),
    (CLONE_NEWIPC, "ipc"),
    (CLONE_NEWUTS, "uts"),
    (CLONE_NEWCGROUP, "cgroup"),
];

/// A directory that every host has, as clone(2)'s caller looks at it, too. What is in it does not matter.
const SOME_DIRECTORY: &str = "/proc";

/// Sets of namespaces to try, the strictest first. The last set is empty, which no host refuses.
#[must_use]
pub fn choices(disabled: &Disabled) -> Vec<Namespaces> {
    let all = ALL.iter().fold(0, |flags, (flag, _)| flags | flag);
    let choices = match disabled.namespaces {
        true => vec![0],
        // Root may have all but the user namespace where user namespaces are switched off.
        false => vec![all, all & !CLONE_NEWUSER, 0],
    };
    choices.into_iter().map(Namespaces).collect()
}

impl Namespaces {
    /// None of its own.
    pub const NONE: Self = Self(0);

    /// The flags for clone(2).
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

    /// Puts an empty, read-only directory in the root's place, and lets go of everything that was mounted.
    pub(crate) fn empty_root(self) -> Layer {
        if self.0 & CLONE_NEWNS == 0 {
            return Layer::Refused("there is no mount namespace for it".to_owned());
        }
        match empty_root() {
            Ok(()) => Layer::Active("empty".to_owned()),
            // What a policy for user namespaces (AppArmor's on Ubuntu 23.10 and later) makes of CAP_SYS_ADMIN.
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
    // Root and current directory become the new one; the old root lies over it, and goes (pivot_root(2)).
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
