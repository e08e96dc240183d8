//! The sandbox that a process enters before it processes the first packet.
//!
//! Layers, each of which holds where the others fail: namespaces of its own with an empty root ([`namespaces`]),
//! Landlock ([`landlock`](mod@landlock)), no capability and no means to gain one, not dumpable, and a list of the system
//! calls that it may make ([`seccomp`]). A layer that the host refuses is named in [`Layers`] and left out, unless the
//! caller insists. The network namespace stays the host's, because the process uses sockets of the host.
//!
//! [`namespaces::choices`] returns the namespaces to `clone` the process with; [`Sandbox::enter`] does the rest.
//! [`Sandbox::limit`], called before it, limits memory and threads.

use std::io;

use pontoon_sys::caps;
use pontoon_sys::context;
use pontoon_sys::disabled::Disabled;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

pub mod command;
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

/// The restrictions that a process applies to itself.
#[derive(Clone, Copy, Debug)]
pub struct Sandbox {
    /// The task of the process, which selects the list of system calls.
    pub role: Role,
    /// The namespaces with which the process was cloned.
    pub namespaces: Namespaces,
    /// A layer that the host refuses is an error (`--require-sandbox`).
    pub required: bool,
}

impl Sandbox {
    /// Drops irrevocably every privilege that processing packets does not need. Call it before the process has a second
    /// thread, and after the last file was opened.
    ///
    /// # Errors
    /// Capabilities are left; or, where the sandbox is required, a layer is refused.
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
            // Not active yet: the list does not have what comes before it.
            seccomp: Layer::Disabled,
        };
        // The engine's sockets belong to the user, by whom firewalls distinguish them; a relay receives its sockets.
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
