//! Known differences: checks that pass with the original and not with Pontoon's program. `docs/clients.md` lists them, too.

use crate::clients::cases::Case;

/// A check that may be worse.
pub(crate) struct Difference {
    /// The beginning of the name of the client: `rootlesskit` is for all of its versions.
    client: &'static str,
    function: &'static str,
    check: &'static str,
    pub(crate) reason: &'static str,
}

pub(crate) const DIFFERENCES: &[Difference] = &[];

impl Difference {
    /// Returns true if `check` of `case` may be worse.
    pub(crate) fn covers(&self, case: &Case, check: &str) -> bool {
        case.client.name().starts_with(self.client) && case.function == self.function && check == self.check
    }
}
