//! Landlock (Linux 5.13 and later): no file by any path, no signal to others, no abstract socket of others.
//!
//! TCP is not handled: a domain that handles those rights refuses every connect that no rule names.

use std::io;

use landlock::{
    ABI, Access, AccessFs, LandlockStatus, RestrictionStatus, Ruleset, RulesetAttr, RulesetError,
    RulesetStatus, Scope,
};

use crate::layers::Layer;

/// The newest version whose rights are asked for: signals and abstract sockets came with 6 (Linux 6.12).
const WANTED: ABI = ABI::V6;

/// Applies it to the calling thread.
///
/// # Errors
/// Memory or descriptors are short.
pub(crate) fn restrict() -> io::Result<Layer> {
    match nothing_allowed() {
        Ok(status) => Ok(layer(&status)),
        Err(error) => Layer::refused(&error),
    }
}

/// Every right is handled, and no rule grants one.
fn nothing_allowed() -> Result<RestrictionStatus, RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(WANTED))?
        .scope(Scope::from_all(WANTED))?
        .create()?
        .restrict_self()
}

/// Describes the layer. On a kernel with an older ABI version the ruleset handles only the rights of that version.
fn layer(status: &RestrictionStatus) -> Layer {
    match (&status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => {
            Layer::Refused("switched off at boot".to_owned())
        }
        (RulesetStatus::NotEnforced, _) => Layer::Refused("the kernel does not have it".to_owned()),
        (_, LandlockStatus::Available { effective_abi, .. }) => {
            Layer::Active(format!("version {}", effective_abi as i32))
        }
        (_, LandlockStatus::NotEnabled | LandlockStatus::NotImplemented) => {
            Layer::Refused("its version is not known".to_owned())
        }
    }
}
