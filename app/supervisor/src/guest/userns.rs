//! User namespaces (user_namespaces(7)): whether a guest needs one, its id maps, and the reasons why the host may refuse
//! it.

use std::fs;
use std::io;
use std::process::{Command, Stdio};

use pontoon_process::Error;
use pontoon_process::error::{Context as _, reason};
use rustix::process::{Pid, getegid, geteuid};
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};

pub(crate) mod confinement;
pub(crate) mod refusal;

use refusal::{Reason, Step};

/// Returns true if the caller needs a user namespace to create other namespaces. A root user without capabilities (in a
/// container) needs one, too.
#[must_use]
pub(crate) fn needed() -> bool {
    let wanted = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    let held = capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted));
    !(geteuid().is_root() && held)
}

/// User namespace of a guest, by the user and group ids that it maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserNamespace {
    /// The caller's ids are mapped to root's. For an unprivileged caller, who is root inside.
    Caller,
    /// Every id is mapped to itself. For a caller that is root: the command is root inside, with every capability there,
    /// but none over the host's namespaces.
    Same,
}

impl UserNamespace {
    /// Returns the kind of user namespace for a guest of this caller; `None` if the guest stays in the caller's user
    /// namespace, with the caller's capabilities.
    pub(crate) fn choose(keep_capabilities: bool) -> Option<Self> {
        match (needed(), keep_capabilities) {
            (true, _) => Some(Self::Caller),
            (false, false) => Some(Self::Same),
            (false, true) => None,
        }
    }

    /// Writes the id maps of the user namespace of `child`.
    ///
    /// # Errors
    /// The kernel refuses the maps.
    pub(crate) fn map(self, child: Pid) -> Result<(), Error> {
        match self {
            Self::Caller => {
                if let Some(problem) = map(child)? {
                    problem.log();
                }
                Ok(())
            }
            Self::Same => map_same(child),
        }
    }

    /// Returns the error for a user namespace that the host refuses to create.
    pub(crate) fn explain(self, error: &io::Error) -> Error {
        let reason = Reason::of(Step::Creation, error);
        match (self, reason.fix()) {
            (Self::Same, Some(fix)) => Error::new(reason.what()).with_fix(&fix.or(KEEP)),
            _ => reason.error(),
        }
    }
}

/// Returns the error for a user namespace that the host refuses this process to create.
pub(crate) fn explain_creation(error: &io::Error) -> Error {
    Reason::of(Step::Creation, error).error()
}

/// Returns the error for a user namespace in which the host refuses this process the use of a capability.
pub(crate) fn explain_use(error: &io::Error) -> Error {
    Reason::of(Step::Use, error).error()
}

/// Advice for root to run without a user namespace.
pub(crate) const KEEP: &str = "--keep-capabilities";

/// Writes maps in which every id of the caller's own user namespace is mapped to itself.
fn map_same(child: Pid) -> Result<(), Error> {
    let child = child.as_raw_nonzero();
    for file in ["uid_map", "gid_map"] {
        let own =
            fs::read_to_string(format!("/proc/self/{file}")).context(format_args!("cannot read {file}"))?;
        fs::write(format!("/proc/{child}/{file}"), same(&own))
            .map_err(|error| Error::io(format_args!("cannot write {file}"), &error).advise(KEEP))?;
    }
    Ok(())
}

/// Returns a map in which each inner id of `map` is mapped to itself.
fn same(map: &str) -> String {
    let mut text = String::new();
    for line in map.lines() {
        let mut numbers = line.split_whitespace();
        if let (Some(first), Some(_), Some(count)) = (numbers.next(), numbers.next(), numbers.next()) {
            text.extend([first, " ", first, " ", count, "\n"]);
        }
    }
    text
}

/// Reason why a guest has no subordinate ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NoRange {
    /// The file has no range for the user.
    Unlisted(String),
    /// The program cannot be executed.
    NoHelper {
        /// Name of the program.
        helper: String,
        /// True if it is not installed.
        missing: bool,
        /// Text of the error.
        reason: String,
    },
    /// The program has refused the map, with this text.
    Refused {
        /// Name of the program.
        helper: String,
        /// Last line of its standard error.
        reason: String,
    },
}

impl NoRange {
    fn log(&self) {
        match self {
            Self::Unlisted(table) => tracing::debug!("no range of ids in {table}"),
            Self::NoHelper { helper, reason, .. } => tracing::debug!("cannot run {helper}: {reason}"),
            Self::Refused { helper, reason } => {
                tracing::info!("{helper} failed, so that only root exists in the guest: {reason}");
            }
        }
    }
}

/// Writes the id maps of the user namespace of `child`: the caller becomes root inside, and the caller's subordinate ids
/// follow from 1 on if newuidmap(1) and newgidmap(1) grant them. Returns the reason why the child has none, if it has none.
///
/// # Errors
/// The kernel refuses to map even the caller's own id.
pub(crate) fn map(child: Pid) -> Result<Option<NoRange>, Error> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let whole = map_ranges(child, "newuidmap", SUBUID, uid, uid)
        .and_then(|()| map_ranges(child, "newgidmap", SUBGID, uid, gid));
    let Err(missing) = whole else {
        return Ok(None);
    };
    // A map can be written only once: a map that the helper has written is kept.
    let child = child.as_raw_nonzero();
    let write = |file: &str, text: &str| fs::write(format!("/proc/{child}/{file}"), text);
    let alone = |file: &str, id: u32| match write(file, &format!("0 {id} 1\n")) {
        Err(error) if !mapped(child.get(), file) => Err(error),
        _ => Ok(()),
    };
    alone("uid_map", uid).context("cannot map the user id")?;
    // The kernel requires `setgroups` to be denied before an unprivileged process writes the group map.
    if !mapped(child.get(), "gid_map") {
        write("setgroups", "deny\n").context("cannot give up setgroups")?;
    }
    alone("gid_map", gid).context("cannot map the group id")?;
    Ok(Some(missing))
}

fn mapped(child: i32, file: &str) -> bool {
    fs::read(format!("/proc/{child}/{file}")).is_ok_and(|map| !map.is_empty())
}

/// Maps `id` to 0 and the subordinate ids of `user` from 1 on by newuidmap(1) or newgidmap(1).
///
/// # Errors
/// The reason why the user gets no subordinate ids.
fn map_ranges(child: Pid, helper: &str, table: &str, user: u32, id: u32) -> Result<(), NoRange> {
    let ranges = fs::read_to_string(table).map(|text| {
        let name = fs::read_to_string(PASSWD).ok();
        let name = name.as_deref().and_then(|passwd| user_name(passwd, user));
        subordinate(&text, name, user)
    });
    let Some(ranges) = ranges.ok().filter(|ranges| !ranges.is_empty()) else {
        return Err(NoRange::Unlisted(table.to_owned()));
    };
    let mut command = Command::new(helper);
    command.arg(child.as_raw_nonzero().to_string());
    command.args(["0", &id.to_string(), "1"]);
    let mut inside = 1;
    for (first, count) in ranges {
        command.args([inside, first, count].map(|number| number.to_string()));
        inside = inside.saturating_add(count);
    }
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let helper = helper.to_owned();
    match quiet.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(NoRange::Refused {
            helper,
            reason: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        }),
        Err(error) => Err(NoRange::NoHelper {
            helper,
            missing: error.kind() == io::ErrorKind::NotFound,
            reason: reason(&error),
        }),
    }
}

/// Files with the subordinate ids of users, and with their names.
pub(crate) const SUBUID: &str = "/etc/subuid";
pub(crate) const SUBGID: &str = "/etc/subgid";
pub(crate) const PASSWD: &str = "/etc/passwd";

/// Returns the name of a user id in the text of passwd(5).
pub(crate) fn user_name(passwd: &str, user: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then_some(name)
    })
}

/// Returns the id ranges that the text of subuid(5) or subgid(5) grants to a user, by name or number.
pub(crate) fn subordinate(table: &str, name: Option<&str>, user: u32) -> Vec<(u32, u32)> {
    let range = |line: &str| {
        let mut fields = line.trim().split(':');
        let who = fields.next()?;
        if Some(who) != name && who.parse() != Ok(user) {
            return None;
        }
        let range = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (range.1 > 0).then_some(range)
    };
    table.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ranges_are_found_by_name_and_id() {
        let table = "alice:100000:65536\nbob:165536:65536\n1000:300000:10\nalice:bad:1\nalice:5:0\n";
        assert_eq!(
            subordinate(table, Some("alice"), 1000),
            [(100_000, 65_536), (300_000, 10)]
        );
        assert_eq!(subordinate(table, Some("carol"), 1001), []);
        assert_eq!(subordinate(table, None, 1000), [(300_000, 10)]);
    }

    #[test]
    fn each_id_is_mapped_to_itself() {
        assert_eq!(same("         0          0 4294967295\n"), "0 0 4294967295\n");
        let nested = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(same(nested), "0 0 1\n1 1 65536\n");
    }

    #[test]
    fn user_names_are_found_by_id() {
        let passwd = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n";
        assert_eq!(user_name(passwd, 1000), Some("alice"));
        assert_eq!(user_name(passwd, 0), Some("root"));
        assert_eq!(user_name(passwd, 7), None);
    }
}
