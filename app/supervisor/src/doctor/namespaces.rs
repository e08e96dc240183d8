//! Checks of user namespaces: the one of a guest, the second one in it that protects the host's cgroups, and the ids in them.

use std::os::fd::{AsFd as _, OwnedFd};

use pontoon_process::Fix;
use pontoon_process::child::spawn;
use pontoon_process::error::{Error, reason};
use pontoon_sys::seqpacket;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::check::remedy;
use super::{Check, DEADLINE, Status, ids, trial};
use crate::guest::command::NAMESPACES;
use crate::guest::handshake::ToGuest;
use crate::guest::userns::refusal::{Reason, Step};
use crate::guest::userns::{self, KEEP, NoRange, UserNamespace};
use crate::guest::{cgroups, mounts};

const NAME: &str = "user-namespaces";
const SECOND: &str = "cgroup-protection";

/// Result of the attempt to create the user namespaces of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Attempt {
    /// The host refuses a step.
    Refused {
        /// True if the caller is root, and can do without the namespace.
        root: bool,
        reason: Reason,
    },
    /// Another step failed; the text is the error's.
    Failed(String),
    /// The namespace works.
    Made {
        root: bool,
        /// Reason why it has no subordinate ids.
        missing: Option<NoRange>,
        /// Number of user ids in it.
        users: u64,
        second: Result<(), Unprotected>,
    },
}

/// Reason why the host's cgroups stay writable for the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Unprotected {
    /// The mounts cannot be changed; the text is the error's.
    Mounts(String),
    /// The host refuses the second user namespace.
    Namespace(Reason),
}

/// Tries the namespaces of a guest.
pub(super) fn checks() -> Vec<Check> {
    match trial::run(DEADLINE, attempt) {
        Ok(attempt) => judge(attempt),
        Err(error) => vec![Check::incomplete(NAME, &error)],
    }
}

fn judge(attempt: Attempt) -> Vec<Check> {
    match attempt {
        Attempt::Refused { root, reason } => vec![refused(root, &reason)],
        Attempt::Failed(text) => {
            let fix = remedy(&text, None, "run true");
            vec![Check::finding(Status::Failure, NAME, text, CANNOT_START, fix)]
        }
        Attempt::Made {
            root,
            missing,
            users,
            second,
        } => {
            let mut checks = vec![Check::ok(NAME, "a guest's can be created and used")];
            checks.push(match second {
                Ok(()) => Check::ok(
                    SECOND,
                    "a second user namespace keeps the host's cgroups read-only",
                ),
                Err(problem) => unprotected(problem),
            });
            checks.push(ids::check(root, missing.as_ref(), users));
            checks
        }
    }
}

/// Consequence of a missing user namespace for unprivileged users.
const CANNOT_START: &str = "pontoon run does not start; pontoon vm starts, with fewer layers of its sandbox";

fn refused(root: bool, reason: &Reason) -> Check {
    let (consequence, other) = match root {
        true => (
            "pontoon run does not start without --keep-capabilities; the sandbox has fewer layers",
            Some(format!("pontoon run {KEEP}")),
        ),
        false => (CANNOT_START, None),
    };
    let fix = reason
        .fix()
        .unwrap_or_else(|| remedy(&reason.what(), None, "run true"));
    let fix = match other {
        Some(other) => fix.or(other),
        None => fix,
    };
    Check::finding(Status::Failure, NAME, reason.what(), consequence, fix)
}

fn unprotected(problem: Unprotected) -> Check {
    let consequence =
        "the command of pontoon run can write the cgroups that the user may write; --require-sandbox fails";
    let (found, fix) = match problem {
        Unprotected::Mounts(text) => (text, None),
        Unprotected::Namespace(reason) => (
            format!("the second of two nested user namespaces: {}", reason.what()),
            reason.fix(),
        ),
    };
    let fix =
        fix.unwrap_or_else(|| Fix::user("a host or container in which the mounts of cgroups can be changed"));
    Check::finding(Status::Loss, SECOND, found, consequence, fix)
}

/// Creates a guest's user namespace, and tries its use.
fn attempt() -> Attempt {
    let Some(kind) = UserNamespace::choose(false) else {
        return Attempt::Failed("no user namespace is chosen".to_owned());
    };
    let root = kind == UserNamespace::Same;
    let Ok((ours, theirs)) = seqpacket::pair() else {
        return Attempt::Failed("cannot make a socket pair".to_owned());
    };
    let clone = spawn::clone(libc::CLONE_NEWUSER | libc::CLONE_NEWNS, || {
        let result = serde_json::to_vec(&inside(&theirs)).unwrap_or_default();
        u8::from(seqpacket::send(&theirs, &result, &[]).is_err())
    });
    let child = match clone {
        Ok(child) => child,
        Err(error) => {
            let reason = Reason::of(Step::Creation, &error);
            return Attempt::Refused { root, reason };
        }
    };
    drop(theirs);
    let made = use_namespace(kind, child.pid(), &ours);
    child.kill();
    let _ = child.wait();
    match made {
        Ok((_, _, Err(reason))) => Attempt::Refused { root, reason },
        Ok((missing, users, Ok(second))) => Attempt::Made {
            root,
            missing,
            users,
            second,
        },
        Err(error) => Attempt::Failed(error.to_string()),
    }
}

/// Result of [`inside`]: the reason why capabilities in the namespace cannot be used, or the result of the second namespace.
type Inside = Result<Result<(), Unprotected>, Reason>;

/// Maps ids into the namespace of `child`, and receives its result. Returns the reason why it has no subordinate ids, the
/// number of its user ids, and the result.
fn use_namespace(
    kind: UserNamespace,
    child: Pid,
    channel: &OwnedFd,
) -> Result<(Option<NoRange>, u64, Inside), Error> {
    let missing = match kind {
        UserNamespace::Caller => userns::map(child)?,
        UserNamespace::Same => {
            kind.map(child)?;
            None
        }
    };
    let map = std::fs::read_to_string(format!("/proc/{}/uid_map", child.as_raw_nonzero()));
    let users = ids::count(&map.unwrap_or_default());
    let lost = |_| Error::new("the child in the user namespace has exited");
    ToGuest::Mapped.send(channel).map_err(lost)?;
    let mut buffer = [0; 4096];
    let message = seqpacket::receive(channel, &mut buffer).map_err(lost)?;
    let len = message.map_or(0, |message| message.len);
    let inside = serde_json::from_slice(&buffer[..len])
        .map_err(|_| Error::new("the child in the user namespace exited unexpectedly"))?;
    Ok((missing, users, inside))
}

/// Uses the user namespace of this process as a guest does.
fn inside(channel: &OwnedFd) -> Inside {
    let other = |error: &std::io::Error| Reason::Other {
        text: reason(error),
        denied: false,
    };
    spawn::close_all_but(&[channel.as_fd()]).map_err(|error| other(&error))?;
    ToGuest::Mapped.expect(channel).map_err(|error| other(&error))?;
    mounts::keep_private().map_err(|error| Reason::of(Step::Use, &error))?;
    if let Err(error) = cgroups::make_read_only() {
        return Ok(Err(Unprotected::Mounts(error.to_string())));
    }
    Ok(match spawn::clone(NAMESPACES | libc::CLONE_NEWUSER, || 0) {
        Ok(child) => {
            let _ = child.wait();
            Ok(())
        }
        Err(error) => Err(Unprotected::Namespace(Reason::of(Step::Creation, &error))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(root: bool, reason: Reason) -> Check {
        judge(Attempt::Refused { root, reason }).remove(0)
    }

    #[test]
    fn refusal_is_a_failure_with_the_remedy_of_its_reason() {
        let check = refused(false, Reason::Disabled);
        assert_eq!((check.name, check.status), ("user-namespaces", Status::Failure));
        assert_eq!(
            check.found,
            "user namespaces are disabled: user.max_user_namespaces is 0"
        );
        assert_eq!(
            check.fix.unwrap(),
            Fix::root("sysctl -w user.max_user_namespaces=15000")
        );
        let check = refused(true, Reason::Filter);
        assert!(check.consequence.unwrap().contains("--keep-capabilities"));
        let alternative = check.fix.unwrap().alternative;
        assert_eq!(alternative.as_deref(), Some("pontoon run --keep-capabilities"));
    }

    #[test]
    fn refused_second_namespace_is_a_loss() {
        let made = |second| {
            judge(Attempt::Made {
                root: true,
                missing: None,
                users: 1,
                second,
            })
        };
        let good = made(Ok(()));
        assert!(good.iter().all(|check| check.status == Status::Ok), "{good:?}");
        let limit = made(Err(Unprotected::Namespace(Reason::Limit(Some(1)))));
        assert_eq!(
            (limit[1].name, limit[1].status),
            ("cgroup-protection", Status::Loss)
        );
        assert_eq!(
            limit[1].fix.as_ref().unwrap().command,
            "sysctl -w user.max_user_namespaces=15000"
        );
        let mounts = made(Err(Unprotected::Mounts(
            "cannot make /x read-only: busy".to_owned(),
        )));
        assert_eq!(mounts[1].found, "cannot make /x read-only: busy");
    }

    #[test]
    fn other_failures_are_failures() {
        let check = judge(Attempt::Failed("cannot map the user id: x".to_owned())).remove(0);
        assert_eq!(check.status, Status::Failure);
        assert_eq!(check.found, "cannot map the user id: x");
    }
}
