//! Check of the ids in a guest's user namespace: newuidmap(1), newgidmap(1), and the ranges of subuid(5) and subgid(5).

use std::fs;

use pontoon_process::Fix;
use rustix::process::geteuid;

use super::{Check, Status};
use crate::guest::userns::confinement::Confinement;
use crate::guest::userns::{NoRange, PASSWD, SUBGID, SUBUID, user_name};

const NAME: &str = "subordinate-ids";

/// Consequence of a guest without subordinate ids.
const ONLY_ROOT: &str =
    "the guest of pontoon run has one user: programs that change their user or group fail in it";

/// Judges the ids of a namespace that was created: `missing` is the reason why it has no subordinate ids, and `users` the
/// number of its user ids.
pub(super) fn check(root: bool, missing: Option<&NoRange>, users: u64) -> Check {
    let Some(problem) = missing else {
        let whose = if root {
            "those of root's own user namespace"
        } else {
            "with subordinate ids"
        };
        return Check::ok(NAME, format!("{users} user ids, {whose}"));
    };
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let tables = [text(SUBUID), text(SUBGID)];
    let user = geteuid().as_raw();
    let host = Host {
        user,
        name: user_name(&text(PASSWD), user).map(str::to_owned),
        first: first_free([tables[0].as_str(), &tables[1]]),
        os_release: text("/etc/os-release"),
        no_new_privs: Confinement::read().no_new_privs,
    };
    judge(problem, &host)
}

/// State of the host on which the remedy depends.
struct Host {
    user: u32,
    name: Option<String>,
    /// First id after all ranges.
    first: u64,
    os_release: String,
    no_new_privs: bool,
}

fn judge(problem: &NoRange, host: &Host) -> Check {
    let (found, fix) = match problem {
        NoRange::Unlisted(table) => (
            format!("{table} has no range for user {}", host.shown()),
            host.range(),
        ),
        NoRange::NoHelper {
            helper,
            missing: true,
            ..
        } => (format!("{helper} is not installed"), host.package()),
        NoRange::NoHelper { helper, reason, .. } => (
            format!("cannot run {helper}: {reason}"),
            Fix::root(format!("chmod 4755 \"$(command -v {helper})\"")),
        ),
        NoRange::Refused { helper, reason } if host.no_new_privs => (
            format!("{helper} gets no privileges, as no_new_privs is set: {reason}"),
            Fix::user("a container or service without no_new_privs (no-new-privileges, NoNewPrivileges=)"),
        ),
        NoRange::Refused { helper, reason } => (
            format!("{helper} failed: {reason}"),
            Fix::root(format!("chmod 4755 \"$(command -v {helper})\""))
                .or("a range that the caller's user namespace maps"),
        ),
    };
    Check::finding(Status::Loss, NAME, found, ONLY_ROOT, fix)
}

impl Host {
    fn shown(&self) -> String {
        match &self.name {
            Some(name) => format!("{name} ({})", self.user),
            None => self.user.to_string(),
        }
    }

    /// Returns the command that grants a range to the user.
    fn range(&self) -> Fix {
        let (first, last) = (self.first, self.first + u64::from(COUNT) - 1);
        Fix::root(match &self.name {
            Some(name) => format!("usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {name}"),
            None => format!("echo {}:{first}:{COUNT} | tee -a {SUBUID} >>{SUBGID}", self.user),
        })
    }

    /// Returns the command that installs newuidmap and newgidmap.
    fn package(&self) -> Fix {
        let value = |key: &str| {
            let line = self
                .os_release
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches('"').to_owned()
        };
        let families = format!("{} {}", value("ID"), value("ID_LIKE"));
        let command = families.split_whitespace().find_map(|family| {
            Some(match family {
                "debian" | "ubuntu" => "apt-get install uidmap",
                "fedora" | "rhel" => "dnf install shadow-utils",
                "alpine" => "apk add shadow-uidmap",
                "arch" => "pacman -S shadow",
                "suse" => "zypper install shadow",
                _ => return None,
            })
        });
        match command {
            Some(command) => Fix::root(command),
            None => Fix::user("the package with newuidmap (uidmap, shadow-utils or shadow)"),
        }
    }
}

/// Number of ids of a new range, as useradd(8) grants by default.
const COUNT: u32 = 65_536;

/// Lowest id of a new range (`SUB_UID_MIN` of login.defs(5)).
const LEAST: u64 = 100_000;

/// Returns the first id that follows all ranges of the texts of subuid(5) and subgid(5).
fn first_free(tables: [&str; 2]) -> u64 {
    let end = |line: &str| {
        let mut numbers = line.trim().split(':').skip(1).map(str::parse::<u64>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(first)), Some(Ok(count))) => first.checked_add(count),
            _ => None,
        }
    };
    let lines = tables.into_iter().flat_map(str::lines);
    lines.filter_map(end).fold(LEAST, u64::max)
}

/// Returns the number of ids in the text of a file `uid_map`.
pub(super) fn count(map: &str) -> u64 {
    let counts = map
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: Option<&str>) -> Host {
        Host {
            user: 1000,
            name: name.map(str::to_owned),
            first: 165_536,
            os_release: "NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n".to_owned(),
            no_new_privs: false,
        }
    }

    #[test]
    fn missing_range_is_granted_after_all_others() {
        let unlisted = NoRange::Unlisted("/etc/subuid".to_owned());
        let check = judge(&unlisted, &host(Some("alice")));
        assert_eq!(check.status, Status::Loss);
        assert_eq!(check.found, "/etc/subuid has no range for user alice (1000)");
        let command = "usermod --add-subuids 165536-231071 --add-subgids 165536-231071 alice";
        assert_eq!(check.fix, Some(Fix::root(command)));
        let command = "echo 1000:165536:65536 | tee -a /etc/subuid >>/etc/subgid";
        assert_eq!(judge(&unlisted, &host(None)).fix, Some(Fix::root(command)));
        assert_eq!(first_free(["", "x\n"]), 100_000);
        assert_eq!(
            first_free(["alice:100000:65536\n", "bob:165536:65536\nbad:1\n"]),
            231_072
        );
    }

    #[test]
    fn missing_program_is_installed_by_the_distribution() {
        let missing = NoRange::NoHelper {
            helper: "newuidmap".to_owned(),
            missing: true,
            reason: "no such file or directory".to_owned(),
        };
        let fix = |os_release: &str| {
            let host = Host {
                os_release: os_release.to_owned(),
                ..host(None)
            };
            judge(&missing, &host).fix.unwrap().to_string()
        };
        assert_eq!(fix("ID=ubuntu\n"), "as root: apt-get install uidmap");
        assert_eq!(
            fix("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"),
            "as root: dnf install shadow-utils"
        );
        assert_eq!(fix("ID=alpine\n"), "as root: apk add shadow-uidmap");
        assert_eq!(
            fix(""),
            "the package with newuidmap (uidmap, shadow-utils or shadow)"
        );
    }

    #[test]
    fn refused_map_names_no_new_privs() {
        let refused = NoRange::Refused {
            helper: "newuidmap".to_owned(),
            reason: "write to uid_map failed".to_owned(),
        };
        let check = judge(&refused, &host(None));
        assert_eq!(check.found, "newuidmap failed: write to uid_map failed");
        assert_eq!(
            check.fix.unwrap().command,
            "chmod 4755 \"$(command -v newuidmap)\""
        );
        let host = Host {
            no_new_privs: true,
            ..host(None)
        };
        assert!(judge(&refused, &host).found.contains("no_new_privs"));
    }

    #[test]
    fn ids_of_a_map_are_counted() {
        assert_eq!(count("0 1000 1\n1 100000 65536\n"), 65_537);
        assert_eq!(count("         0          0 4294967295\n"), 4_294_967_295);
        assert_eq!(count(""), 0);
        let check = check(true, None, 7);
        assert_eq!(
            (check.status, check.found.as_str()),
            (Status::Ok, "7 user ids, those of root's own user namespace")
        );
    }
}
