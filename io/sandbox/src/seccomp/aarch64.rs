//! Additional system calls of aarch64: none, as it never had the older calls.

use super::Entry;

pub(super) const ALLOWED: &[Entry] = &[];
