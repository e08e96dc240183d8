//! Landlock rules (Linux 5.13 and later) that forbid access to all files, signals to processes outside the sandbox, and
//! connections to their abstract Unix sockets.
//!
//! The TCP rights are not handled, because a ruleset that handles them refuses every connect(2) to a port without a
//! rule.

use std::io;

use landlock::{
    ABI, Access, AccessFs, LandlockStatus, RestrictionStatus, Ruleset, RulesetAttr, RulesetError,
    RulesetStatus, Scope,
};

use crate::layers::Layer;

/// Newest ABI version of Landlock whose rights are requested; version 6 added signals and abstract sockets (Linux
/// 6.12).
const WANTED: ABI = ABI::V6;

/// Applies the Landlock ruleset to the calling thread and the threads that it starts later.
///
/// # Errors
/// Too little memory, or too many open descriptors.
pub(crate) fn restrict() -> io::Result<Layer> {
    match nothing_allowed() {
        Ok(status) => Ok(layer(&status)),
        Err(error) => Layer::refused(&error),
    }
}

/// Creates and applies a ruleset that handles every right and contains no rule, so that nothing is permitted.
fn nothing_allowed() -> Result<RestrictionStatus, RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(WANTED))?
        .scope(Scope::from_all(WANTED))?
        .create()?
        .restrict_self()
}

/// Returns the state of the layer for reports. On a kernel with an older ABI version the ruleset handles only the
/// rights of that version.
fn layer(status: &RestrictionStatus) -> Layer {
    match (&status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => {
            Layer::Refused("Landlock is disabled at boot".to_owned())
        }
        (RulesetStatus::NotEnforced, _) => Layer::Refused("the kernel does not support Landlock".to_owned()),
        (_, LandlockStatus::Available { effective_abi, .. }) => {
            Layer::Active(format!("version {}", effective_abi as i32))
        }
        (_, LandlockStatus::NotEnabled | LandlockStatus::NotImplemented) => {
            Layer::Refused("its ABI version is unknown".to_owned())
        }
    }
}
