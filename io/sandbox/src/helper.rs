//! Sandbox of the process that opens sockets in the guest's network namespace. It has no namespaces of its own and no empty root:
//! its list of system calls contains none that opens a file.

use std::io;

use pontoon_sys::disabled::Disabled;
use pontoon_sys::{caps, context};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::layers::Layer;
use crate::{Role, landlock, overflow_user, seccomp};

/// Drops all privileges of the calling process, which has one thread; they cannot be regained. `before_filter` is called when all
/// layers but the filter of system calls are entered.
///
/// # Errors
/// A capability could not be dropped, or the sandbox is `required` and the host refuses a layer; the error of `before_filter`.
pub fn enter(
    disabled: &Disabled,
    required: bool,
    before_filter: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let landlock = match disabled.landlock {
        true => Layer::Disabled,
        false => landlock::restrict().map_err(|error| context("cannot apply Landlock", &error))?,
    };
    // Run by root, the process may be in the host's user namespace.
    overflow_user::switch_to().map_err(|error| context("cannot change to the overflow user", &error))?;
    caps::drop_all().map_err(|error| context("cannot drop privileges", &error))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| context("cannot forbid core dumps", &error.into()))?;
    before_filter()?;
    let filter = match disabled.seccomp {
        true => Layer::Disabled,
        false => seccomp::restrict(Role::SocketHelper)
            .map_err(|error| context("cannot apply the filter of system calls", &error))?,
    };
    for layer in [&landlock, &filter] {
        if let (Layer::Refused(reason), true) = (layer, required) {
            let text = format!("the sandbox is incomplete: {reason}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
    }
    Ok(())
}
