//! Reasons why the host refuses a user namespace, or the use of capabilities in one, and their remedies.

use std::fs;
use std::io;

use pontoon_process::error::{Error, reason};
use pontoon_process::{Fix, child::spawn};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::confinement::{Confinement, Label};

/// Step that the host has refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The creation of the namespace, by clone(2).
    Creation,
    /// The first system call in it that needs a capability.
    Use,
}

/// State of the host on which the reason of a refusal depends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Circumstances {
    /// Value of `user.max_user_namespaces`; `None` if the kernel lacks it, as for the others.
    pub(crate) most: Option<u64>,
    /// Value of `kernel.unprivileged_userns_clone` (Debian, Arch).
    pub(crate) unprivileged: Option<u64>,
    /// Value of `kernel.apparmor_restrict_unprivileged_userns` (Ubuntu 23.10).
    pub(crate) apparmor: Option<u64>,
    /// Confinement of the process for which the step failed.
    pub(crate) confinement: Confinement,
    /// True if a filter of system calls refuses the creation of user namespaces.
    pub(crate) filtered: bool,
    /// True if the user id of the process has no id in its user namespace.
    pub(crate) unmapped: bool,
}

/// Reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reason {
    /// `user.max_user_namespaces` is 0.
    Disabled,
    /// `kernel.unprivileged_userns_clone` is 0.
    DisabledForUsers,
    /// The limit on the number or the depth of user namespaces is reached; the number is `user.max_user_namespaces`.
    Limit(Option<u64>),
    /// AppArmor restricts the user namespaces of programs without a profile that permits them.
    AppArmorRestriction,
    /// An AppArmor profile denies the step.
    AppArmorProfile(String),
    /// SELinux denies the step to a process with this label.
    SeLinux(String),
    /// A filter of system calls denies the step.
    Filter,
    /// The process is in a chroot.
    Chroot,
    /// The user id of the process has no id in its user namespace.
    UnmappedUser,
    /// Another reason; the text is the kernel's.
    Other {
        /// Text of the error.
        text: String,
        /// True if the kernel denies a permission.
        denied: bool,
    },
}

/// Number of user namespaces that the remedy permits; it is the kernel's default for 1 GiB of memory, or more.
const ENOUGH: u32 = 15_000;

impl Circumstances {
    /// Reads the current circumstances of this process.
    #[must_use]
    pub(crate) fn read() -> Self {
        let read = |path| fs::read_to_string(path).ok()?.trim().parse().ok();
        let uid_map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self {
            most: read("/proc/sys/user/max_user_namespaces"),
            unprivileged: read("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor: read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            confinement: Confinement::read(),
            filtered: spawn::filters_user_namespaces(),
            unmapped: !maps(&uid_map, geteuid().as_raw()),
        }
    }

    /// Returns the reason of the `error` of a step.
    #[must_use]
    pub(crate) fn reason(&self, step: Step, error: &io::Error) -> Reason {
        let creation = step == Step::Creation;
        let label = self.confinement.label.as_ref();
        let other = Reason::Other {
            text: reason(error),
            denied: error.kind() == io::ErrorKind::PermissionDenied,
        };
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EUSERS) if self.most == Some(0) => return Reason::Disabled,
            Some(libc::ENOSPC | libc::EUSERS) => return Reason::Limit(self.most),
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {}
            _ => return other,
        }
        if creation && self.filtered {
            return Reason::Filter;
        }
        if creation && self.unprivileged == Some(0) {
            return Reason::DisabledForUsers;
        }
        if label.is_some_and(Label::is_restricted_namespace) {
            return Reason::AppArmorRestriction;
        }
        let denied_by_module = !creation || error.raw_os_error() == Some(libc::EACCES);
        match label {
            Some(label @ Label::AppArmor(_)) if denied_by_module => {
                if let Some(profile) = label.profile() {
                    return Reason::AppArmorProfile(profile.to_owned());
                }
            }
            Some(Label::SeLinux(label))
                if denied_by_module && self.confinement.selinux_enforcing != Some(false) =>
            {
                return Reason::SeLinux(label.clone());
            }
            _ => {}
        }
        if creation && self.unmapped {
            return Reason::UnmappedUser;
        }
        if creation && self.confinement.chroot {
            return Reason::Chroot;
        }
        match self.apparmor {
            Some(1) => Reason::AppArmorRestriction,
            _ => other,
        }
    }
}

impl Reason {
    /// Returns the reason of the `error` of a step that this process has tried.
    #[must_use]
    pub(crate) fn of(step: Step, error: &io::Error) -> Self {
        Circumstances::read().reason(step, error)
    }

    /// Returns the reason as a text.
    #[must_use]
    pub(crate) fn what(&self) -> String {
        match self {
            Self::Disabled => "user namespaces are disabled: user.max_user_namespaces is 0".to_owned(),
            Self::DisabledForUsers => {
                "user namespaces are disabled for unprivileged users: kernel.unprivileged_userns_clone is 0"
                    .to_owned()
            }
            Self::Limit(most) => {
                let most = most.map_or_else(String::new, |most| {
                    format!(" (user.max_user_namespaces is {most} here)")
                });
                format!("cannot make a user namespace: a limit on user namespaces is reached{most}")
            }
            Self::AppArmorRestriction => {
                "AppArmor restricts user namespaces: kernel.apparmor_restrict_unprivileged_userns is 1"
                    .to_owned()
            }
            Self::AppArmorProfile(profile) => {
                format!("cannot use a user namespace: the AppArmor profile {profile} denies it")
            }
            Self::SeLinux(label) => format!("cannot use a user namespace: SELinux denies it to {label}"),
            Self::Filter => {
                "cannot make a user namespace: a filter of system calls (seccomp) refuses it".to_owned()
            }
            Self::Chroot => "cannot make a user namespace: this process is in a chroot".to_owned(),
            Self::UnmappedUser => {
                "cannot make a user namespace: the user id of this process is not mapped".to_owned()
            }
            Self::Other { text, .. } => format!("cannot make a user namespace: {text}"),
        }
    }

    /// Returns the remedy, if one is known.
    #[must_use]
    pub(crate) fn fix(&self) -> Option<Fix> {
        let sysctl = |setting: &str| Fix::root(format!("sysctl -w {setting}"));
        Some(match self {
            Self::Disabled | Self::Limit(_) => sysctl(&format!("user.max_user_namespaces={ENOUGH}")),
            Self::DisabledForUsers => sysctl("kernel.unprivileged_userns_clone=1"),
            Self::AppArmorRestriction => {
                Fix::root(profile()).or("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0")
            }
            Self::AppArmorProfile(_) => Fix::user("an AppArmor profile that permits it")
                .or("the container option --security-opt apparmor=unconfined"),
            Self::SeLinux(_) => Fix::root(
                "ausearch -m avc -c pontoon --raw | audit2allow -M pontoon && semodule -i pontoon.pp",
            )
            .or("the container option --security-opt label=disable"),
            Self::Filter => Fix::user("a container's seccomp profile that permits clone with CLONE_NEWUSER")
                .or("the container option --security-opt seccomp=unconfined"),
            Self::Chroot => {
                Fix::user("bwrap --bind DIRECTORY / --dev-bind /dev /dev --proc /proc, in place of chroot")
            }
            Self::UnmappedUser => Fix::user("unshare --map-current-user, or another map of user ids"),
            Self::Other { denied: true, .. } => {
                Fix::user("outside a chroot, or with a container's seccomp profile that allows it")
            }
            Self::Other { .. } => return None,
        })
    }

    /// Returns the reason and its remedy as an error.
    #[must_use]
    pub(crate) fn error(&self) -> Error {
        let plain = Error::new(self.what());
        match self.fix() {
            Some(fix) => plain.with_fix(&fix),
            None => plain,
        }
    }
}

/// Returns the command that loads an AppArmor profile for this program, which permits it user namespaces.
fn profile() -> String {
    let path = std::env::current_exe();
    let path = path.map_or_else(
        |_| "/usr/bin/pontoon".to_owned(),
        |path| path.display().to_string(),
    );
    format!(
        "printf 'abi <abi/4.0>,\\nprofile pontoon-local \"%s\" flags=(unconfined) {{\\n  userns,\\n}}\\n' '{path}' \
         >/etc/apparmor.d/pontoon-local && apparmor_parser --replace /etc/apparmor.d/pontoon-local"
    )
}

/// Returns true if the text of a file `uid_map` maps an id (user_namespaces(7)).
fn maps(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) => id >= first && id - first < count,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests;
