//! The result of a run.

use std::fmt;
use std::net::Ipv4Addr;

use serde::Serialize;

use crate::statistics::Statistics;

/// The result of a run. Counters cover the task alone.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// The guest's address, from DHCP.
    pub(crate) address: Ipv4Addr,
    /// Number of repetitions done.
    pub(crate) done: u32,
    /// Frames that the guest sent.
    pub(crate) sent: u32,
    /// Frames that the guest received.
    pub(crate) received: u32,
    /// Notifications of the device by the guest.
    pub(crate) doorbells: u32,
    /// Returns of the CPU's thread from KVM_RUN.
    pub(crate) returns: u64,
    /// Interrupts sent by the VMM rather than an irqfd.
    pub(crate) signals: u64,
    /// KVM's counters.
    pub(crate) kvm: Statistics,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            done,
            sent,
            received,
            doorbells,
            returns,
            signals: _,
            kvm,
        } = self;
        writeln!(
            f,
            "{address} did it {done} times, with {sent} frames out and {received} in:"
        )?;
        write!(
            f,
            "{doorbells} doorbells, {returns} returns from KVM_RUN, {} halts, {} interrupts",
            kvm.halts, kvm.interrupts
        )
    }
}
