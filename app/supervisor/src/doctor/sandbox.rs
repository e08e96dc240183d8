//! Checks of the layers of the engine's sandbox, which a child process enters as an engine does.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;

use pontoon_process::Fix;
use pontoon_process::child::spawn;
use pontoon_sandbox::{Layer, Layers, Role, Sandbox};
use pontoon_sys::disabled::Disabled;
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use super::{Check, DEADLINE, Status, features, trial};
use crate::guest::userns::refusal::{Reason, Step};

/// Names of the checks, in the order of [`Layers::NAMES`].
const CHECKS: [&str; 4] = ["sandbox-namespaces", "sandbox-root", "landlock", "seccomp"];

/// State of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Active(String),
    Refused(String),
    Disabled,
}

/// Result of entering the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entered {
    /// State of each layer; an error prevents all of them.
    layers: Result<[State; 4], String>,
    /// Reason why the host refuses a user namespace to this process.
    reason: Option<Reason>,
}

/// Enters the engine's sandbox in a child process.
pub(super) fn checks(disabled: &Disabled) -> Vec<Check> {
    match trial::run(DEADLINE, || enter(disabled)) {
        Ok(Entered {
            layers: Ok(layers),
            reason,
        }) => judge(&layers, reason.as_ref()),
        Ok(Entered {
            layers: Err(error), ..
        })
        | Err(error) => CHECKS.map(|name| Check::incomplete(name, &error)).into(),
    }
}

fn judge(layers: &[State; 4], reason: Option<&Reason>) -> Vec<Check> {
    let by_reason = || reason.and_then(Reason::fix);
    let named = CHECKS.into_iter().zip(layers);
    let check = |(name, layer): (&'static str, &State)| {
        let (found, fix) = match layer {
            State::Active(form) => return active(name, form),
            State::Disabled => (
                "disabled by PONTOON_DISABLE".to_owned(),
                features::newer(true, ""),
            ),
            State::Refused(why) => {
                let fix = match name {
                    "landlock" if why.contains("at boot") => Fix::user(
                        "the kernel parameter lsm=landlock,LIST, with the LIST of /sys/kernel/security/lsm",
                    ),
                    "landlock" => features::newer(false, "6.12")
                        .or("a container's seccomp profile that permits landlock_create_ruleset"),
                    "seccomp" => Fix::user("a kernel with CONFIG_SECCOMP_FILTER"),
                    _ => by_reason().unwrap_or_else(|| {
                        Fix::user("a host that permits user namespaces and mounts in them")
                    }),
                };
                (why.clone(), fix)
            }
        };
        let consequence = match name {
            "sandbox-namespaces" if found.contains("only") => {
                "an attacker who controls the engine has the rights of its user towards the kernel"
            }
            "sandbox-namespaces" => "an attacker who controls the engine sees other processes and mounts",
            "sandbox-root" => {
                "an attacker who controls the engine can reach files, unless Landlock prevents it"
            }
            "landlock" => {
                "an attacker who controls the engine can reach files, unless the empty root prevents it"
            }
            _ => "an attacker who controls the engine can make any system call that its user may make",
        };
        let consequence = format!("{consequence}; --require-sandbox fails");
        Check::finding(Status::Loss, name, found, consequence, fix)
    };
    named.map(check).collect()
}

/// Lowest ABI version of Landlock with all rights that the sandbox denies.
const LANDLOCK: u32 = 6;

fn active(name: &'static str, form: &str) -> Check {
    let version = form
        .strip_prefix("version ")
        .and_then(|version| version.parse::<u32>().ok());
    match version.filter(|version| *version < LANDLOCK) {
        None => Check::ok(name, form),
        Some(_) => Check::finding(
            Status::Loss,
            name,
            format!("{form}; version {LANDLOCK} restricts signals and abstract Unix sockets"),
            "an attacker who controls the engine can connect to abstract Unix sockets of the host's network namespace",
            features::newer(false, "6.12"),
        ),
    }
}

/// Enters the sandbox in a child in as many new namespaces as the host permits.
fn enter(disabled: &Disabled) -> Entered {
    let reason = match disabled.namespaces {
        true => None,
        false => refusal(),
    };
    Entered {
        layers: layers(disabled).map_err(|error| error.to_string()),
        reason,
    }
}

/// Returns the reason why the host refuses a user namespace to this process; `None` if it does not.
pub(crate) fn refusal() -> Option<Reason> {
    match spawn::clone(libc::CLONE_NEWUSER, || 0) {
        Ok(child) => {
            let _ = child.wait();
            None
        }
        Err(error) => Some(Reason::of(Step::Creation, &error)),
    }
}

fn layers(disabled: &Disabled) -> std::io::Result<[State; 4]> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let child = spawn::sandboxed(disabled, &mut None, |namespaces| {
        if spawn::close_all_but(&[theirs.as_fd()]).is_err() {
            return 1;
        }
        let sandbox = Sandbox {
            role: Role::Engine,
            namespaces,
            required: false,
        };
        let entered = sandbox
            .enter(disabled)
            .map(|layers| states(&layers))
            .map_err(|error| error.to_string());
        let text = serde_json::to_vec(&entered).unwrap_or_default();
        // SAFETY: this process is a child, which uses the descriptor by no other value, and calls this once.
        let mut pipe = File::from(unsafe { spawn::take_over(&theirs) });
        u8::from(pipe.write_all(&text).is_err())
    })?;
    drop(theirs);
    let mut text = Vec::new();
    File::from(ours).read_to_end(&mut text)?;
    let status = child.wait();
    let exited = |_| std::io::Error::other(format!("the child in the sandbox exited with status {status}"));
    let entered: Result<[State; 4], String> = serde_json::from_slice(&text).map_err(exited)?;
    entered.map_err(std::io::Error::other)
}

fn states(layers: &Layers) -> [State; 4] {
    let mut states = layers.iter().map(|(_, layer)| match layer {
        Layer::Active(form) => State::Active(form.clone()),
        Layer::Refused(why) => State::Refused(why.clone()),
        Layer::Disabled => State::Disabled,
    });
    std::array::from_fn(|_| states.next().unwrap_or(State::Disabled))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn active_layers() -> [State; 4] {
        ["user, mount", "empty", "version 7", "50 calls"].map(|form| State::Active(form.to_owned()))
    }

    fn refused(why: &str) -> State {
        State::Refused(why.to_owned())
    }

    #[test]
    fn names_are_in_the_order_of_the_layers() {
        assert_eq!(Layers::NAMES, ["namespaces", "root", "landlock", "seccomp"]);
        let checks = judge(&active_layers(), None);
        assert!(
            checks.iter().all(|check| check.status == Status::Ok),
            "{checks:?}"
        );
        assert_eq!(checks[3], Check::ok("seccomp", "50 calls"));
    }

    #[test]
    fn refused_namespaces_have_the_remedy_of_the_reason() {
        let mut layers = active_layers();
        layers[0] = refused("the host allows no user namespaces");
        layers[1] = refused("the process has no mount namespace of its own");
        let checks = judge(&layers, Some(&Reason::Disabled));
        for check in &checks[..2] {
            assert_eq!(check.status, Status::Loss);
            assert_eq!(check.fix, Reason::Disabled.fix());
        }
    }

    #[test]
    fn each_state_of_landlock_has_a_remedy() {
        let fix = |state: State| {
            let mut layers = active_layers();
            layers[2] = state;
            let check = judge(&layers, None).remove(2);
            assert_eq!((check.name, check.status), ("landlock", Status::Loss));
            check.fix.unwrap().command
        };
        assert!(fix(refused("Landlock is disabled at boot")).contains("lsm=landlock"));
        assert_eq!(
            fix(refused("the kernel does not support Landlock")),
            "Linux 6.12 or later"
        );
        assert_eq!(fix(State::Disabled), "unset PONTOON_DISABLE");
        assert_eq!(fix(State::Active("version 5".to_owned())), "Linux 6.12 or later");
    }
}
