//! The sandbox that an engine or relay worker process enters before it processes the first packet.
//!
//! It has several layers, so that one still holds when another fails: own namespaces with an empty root
//! ([`namespaces`]), Landlock ([`landlock`](mod@landlock)), no capability and no way to gain one, not dumpable, and a
//! list of permitted system calls ([`seccomp`]). A layer that the host refuses is reported in [`Layers`] and skipped,
//! unless the caller requires all. The process stays in the host's network namespace, because it uses sockets of the
//! host.
//!
//! The supervisor clones the process with namespaces from [`namespaces::choices`]; in the process, [`Sandbox::limit`]
//! limits memory and threads, and then [`Sandbox::enter`] enters the other layers.

use std::io;

use pontoon_sys::caps;
use pontoon_sys::context;
use pontoon_sys::disabled::Disabled;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

pub mod command;
pub mod helper;
pub mod landlock;
pub mod layers;
mod limits;
pub mod namespaces;
mod overflow_user;
pub mod seccomp;
pub mod trap;

pub use layers::{Layer, Layers};
pub use limits::ResourceLimits;
pub use namespaces::Namespaces;
pub use seccomp::Role;

/// The sandbox of a process: its role, its namespaces, and whether missing layers are errors.
#[derive(Clone, Copy, Debug)]
pub struct Sandbox {
    /// Task of the process, which selects the list of permitted system calls.
    pub role: Role,
    /// Namespaces with which the supervisor has cloned the process.
    pub namespaces: Namespaces,
    /// True if a layer that the host refuses is an error (`--require-sandbox`).
    pub required: bool,
}

impl Sandbox {
    /// Drops all privileges that processing packets does not need; they cannot be regained. It must be called while the
    /// process has one thread, and after it has opened its last file.
    ///
    /// # Errors
    /// A capability could not be dropped, or the sandbox is required and the host refuses a layer.
    pub fn enter(&self, disabled: &Disabled) -> io::Result<Layers> {
        let layers = Layers {
            namespaces: self.namespaces.layer(disabled),
            root: match disabled.namespaces {
                true => Layer::Disabled,
                false => self.namespaces.empty_root(),
            },
            landlock: match disabled.landlock {
                true => Layer::Disabled,
                false => landlock::restrict().map_err(|error| context("cannot apply Landlock", &error))?,
            },
            // The filter is not installed yet, because its list does not contain the system calls that follow here.
            seccomp: Layer::Disabled,
        };
        // The engine keeps its user, because firewalls distinguish sockets by the user that opens them. A relay worker
        // opens no socket.
        if self.role == Role::Relay {
            overflow_user::switch_to()
                .map_err(|error| context("cannot change to the overflow user", &error))?;
        }
        caps::drop_all().map_err(|error| context("cannot drop privileges", &error))?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|error| context("cannot forbid core dumps", &error.into()))?;
        let layers = Layers {
            seccomp: match disabled.seccomp {
                true => Layer::Disabled,
                false => seccomp::restrict(self.role)
                    .map_err(|error| context("cannot apply the filter of system calls", &error))?,
            },
            ..layers
        };
        if self.required && !layers.complete() {
            let text = format!(
                "the sandbox is incomplete: {} (try: without --require-sandbox)",
                layers.missing()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(layers)
    }
}
