//! Result of a run of the virtual machine.

use std::fmt;
use std::net::Ipv4Addr;

use serde::Serialize;

use crate::statistics::CpuStatistics;

/// Result of a run. The counters cover the task only, without the configuration by DHCP.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// IPv4 address that the guest has received by DHCP.
    pub(crate) address: Ipv4Addr,
    /// Number of repetitions that the guest has completed.
    pub(crate) done: u32,
    /// Number of frames that the guest has sent.
    pub(crate) sent: u32,
    /// Number of frames that the guest has received.
    pub(crate) received: u32,
    /// Number of notifications that the guest has sent to the device.
    pub(crate) doorbells: u32,
    /// Number of times that the CPU's thread has returned from KVM_RUN.
    pub(crate) returns: u64,
    /// Number of interrupts that the VMM has sent, without those of an irqfd.
    pub(crate) signals: u64,
    /// Counters of KVM for the CPU.
    pub(crate) kvm: CpuStatistics,
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
            "{address} completed {done} repetitions, sent {sent} frames and received {received}:"
        )?;
        write!(
            f,
            "{doorbells} doorbells, {returns} returns from KVM_RUN, {} halts, {} interrupts",
            kvm.halts, kvm.interrupts
        )
    }
}
