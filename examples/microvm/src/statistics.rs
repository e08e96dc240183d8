//! Counters that KVM has for a CPU (KVM_GET_STATS_FD, Linux 5.14).

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use kvm_ioctls::VcpuFd;
use serde::Serialize;
use vmm_sys_util::ioctl::ioctl;
use vmm_sys_util::ioctl_io_nr;

ioctl_io_nr!(KVM_GET_STATS_FD, 0xae, 0xce);

/// File descriptor of a CPU's counters, and the offsets of those that are read.
#[derive(Debug)]
pub(crate) struct CpuCounters {
    file: File,
    halts: u64,
    interrupts: u64,
    exits: u64,
}

/// Values of the counters at one time, or their differences.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct CpuStatistics {
    /// Number of times that the CPU has halted (`halt_exits`).
    pub(crate) halts: u64,
    /// Number of injected interrupts (`irq_injections`).
    pub(crate) interrupts: u64,
    /// Number of exits of all types (`exits`), including exits for emulated instructions.
    pub(crate) exits: u64,
}

/// Size in bytes of `struct kvm_stats_header`, and of `struct kvm_stats_desc` without its name.
const HEADER: usize = 24;
const DESCRIPTOR: usize = 16;

impl CpuCounters {
    pub(crate) fn new(vcpu: &VcpuFd) -> Result<Self> {
        // SAFETY: this ioctl has no argument.
        let fd = unsafe { ioctl(vcpu, KVM_GET_STATS_FD()) };
        if fd < 0 {
            return Err(io::Error::last_os_error()).context("KVM_GET_STATS_FD");
        }
        // SAFETY: the kernel returned this descriptor to this process.
        let file = unsafe { File::from_raw_fd(fd) };
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0)?;
        let word = |bytes: &[u8], at: usize| {
            let word = bytes[at..at + 4].try_into().unwrap_or_default();
            u64::from(u32::from_ne_bytes(word))
        };
        let [name_len, count, descriptors, data] = [4, 8, 16, 20].map(|at| word(&header, at));
        let find = |wanted: &str| -> Result<u64> {
            let len = DESCRIPTOR as u64 + name_len;
            let mut descriptor = vec![0; len as usize];
            for number in 0..count {
                file.read_exact_at(&mut descriptor, descriptors + number * len)?;
                let name = descriptor[DESCRIPTOR..].split(|byte| *byte == 0).next();
                if name == Some(wanted.as_bytes()) {
                    return Ok(data + word(&descriptor, 8));
                }
            }
            anyhow::bail!("KVM does not count {wanted}")
        };
        Ok(Self {
            halts: find("halt_exits")?,
            interrupts: find("irq_injections")?,
            exits: find("exits")?,
            file,
        })
    }

    pub(crate) fn read(&self) -> Result<CpuStatistics> {
        let read = |at| -> Result<u64> {
            let mut bytes = [0; 8];
            self.file.read_exact_at(&mut bytes, at)?;
            Ok(u64::from_ne_bytes(bytes))
        };
        Ok(CpuStatistics {
            halts: read(self.halts)?,
            interrupts: read(self.interrupts)?,
            exits: read(self.exits)?,
        })
    }
}

impl CpuStatistics {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            halts: self.halts - before.halts,
            interrupts: self.interrupts - before.interrupts,
            exits: self.exits - before.exits,
        }
    }
}
