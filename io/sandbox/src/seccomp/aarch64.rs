//! What aarch64 has beside: nothing, as it began without the old calls.

use super::Entry;

pub(super) const ALLOWED: &[Entry] = &[];
