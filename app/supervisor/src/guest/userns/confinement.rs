//! Confinement of this process by the host: the labels of security modules, filters of system calls, `no_new_privs`, and a
//! changed root directory.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

/// Confinement of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Confinement {
    /// Label of the security module, if one has labels.
    pub(crate) label: Option<Label>,
    /// True if SELinux denies what its policy does not permit; `None` if this is not known (in a container).
    pub(crate) selinux_enforcing: Option<bool>,
    /// True if the process has a filter of system calls (seccomp(2)).
    pub(crate) filter: bool,
    /// True if execve(2) grants no privileges (`no_new_privs`).
    pub(crate) no_new_privs: bool,
    /// True if the root directory is none of a mount: the process is in a chroot.
    pub(crate) chroot: bool,
}

/// Label of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Label {
    /// AppArmor's: `unconfined`, or a profile and its mode.
    AppArmor(String),
    /// SELinux's: user, role, type and level.
    SeLinux(String),
}

/// Profile to which AppArmor changes a process without a profile that creates a user namespace (Ubuntu 24.04).
const RESTRICTED: &str = "unprivileged_userns";

impl Confinement {
    /// Reads the confinement of this process.
    #[must_use]
    pub(crate) fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        // The directory of AppArmor exists since Linux 5.8; the other file belongs to the first module that has labels.
        let apparmor = text("/proc/self/attr/apparmor/current");
        let label = match Label::parse(&apparmor) {
            None => Label::parse(&text("/proc/self/attr/current")),
            label => label,
        };
        let status = text("/proc/self/status");
        Self {
            label,
            selinux_enforcing: enforcing(&text("/sys/fs/selinux/enforce")),
            filter: field(&status, "Seccomp") == Some("2"),
            no_new_privs: field(&status, "NoNewPrivs") == Some("1"),
            chroot: lacks_root(&text("/proc/self/mountinfo")),
        }
    }
}

impl Label {
    /// Parses the text of a file `attr/current` (apparmor(7), getcon(3)); `None` if it is none of these labels.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim_end_matches(['\0', '\n']);
        let is_apparmor = text == "unconfined" || text.ends_with(')');
        if is_apparmor {
            return Some(Self::AppArmor(text.to_owned()));
        }
        (text.split(':').count() >= 3).then(|| Self::SeLinux(text.to_owned()))
    }

    /// Returns true if AppArmor has restricted the user namespace of the process.
    pub(crate) fn is_restricted_namespace(&self) -> bool {
        matches!(self, Self::AppArmor(label) if label.contains(RESTRICTED))
    }

    /// Returns the AppArmor profile and its mode, unless it permits everything.
    pub(crate) fn profile(&self) -> Option<&str> {
        match self {
            Self::AppArmor(label) if label != "unconfined" && !label.ends_with("(unconfined)") => Some(label),
            _ => None,
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AppArmor(label) => write!(f, "AppArmor: {label}"),
            Self::SeLinux(label) => write!(f, "SELinux: {label}"),
        }
    }
}

fn enforcing(text: &str) -> Option<bool> {
    match text.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Returns the value of a field in the text of /proc/PID/status (proc_pid_status(5)).
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::trim)
}

/// Returns true if no mount in the text of mountinfo (proc_pid_mountinfo(5)) is at the root directory of the process.
fn lacks_root(mountinfo: &str) -> bool {
    let mut points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    !mountinfo.is_empty() && !points.any(|point| point == "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_parsed() {
        let parse = |text| Label::parse(text).unwrap();
        let free = parse("unconfined\n");
        assert_eq!((free.profile(), free.is_restricted_namespace()), (None, false));
        let free = parse("pontoon (unconfined)\n");
        assert_eq!((free.profile(), free.is_restricted_namespace()), (None, false));
        let restricted = parse("unprivileged_userns (enforce)\n");
        assert!(restricted.is_restricted_namespace());
        assert!(parse("crun//&unprivileged_userns (enforce)").is_restricted_namespace());
        let docker = parse("docker-default (enforce)\n");
        assert_eq!(docker.profile(), Some("docker-default (enforce)"));
        assert_eq!(docker.to_string(), "AppArmor: docker-default (enforce)");
        let selinux = parse("system_u:system_r:container_t:s0:c1,c2\0");
        assert_eq!(
            (selinux.profile(), selinux.is_restricted_namespace()),
            (None, false)
        );
        assert_eq!(
            selinux.to_string(),
            "SELinux: system_u:system_r:container_t:s0:c1,c2"
        );
        for text in ["", "\n", "_"] {
            assert_eq!(Label::parse(text), None);
        }
    }

    #[test]
    fn fields_of_a_status_are_found() {
        let status = "Name:\tpontoon\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(field(status, "Seccomp"), Some("2"));
        assert_eq!(field(status, "NoNewPrivs"), Some("1"));
        assert_eq!(field(status, "Cpus"), None);
        assert_eq!(
            [enforcing("1"), enforcing("0\n"), enforcing("")],
            [Some(true), Some(false), None]
        );
    }

    #[test]
    fn chroot_has_no_mount_at_its_root() {
        let root = "22 1 0:21 / / rw,relatime - ext4 /dev/vda rw\n23 22 0:22 / /proc rw - proc proc rw\n";
        assert!(!lacks_root(root));
        assert!(lacks_root("23 22 0:22 / /proc rw - proc proc rw\n"));
        // Without /proc nothing is known.
        assert!(!lacks_root(""));
    }
}
