//! The machine: memory at its addresses, ports, and instructions that have no name in Rust.

use core::arch::asm;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// Reads a device's register.
pub(crate) fn load(register: u64) -> u32 {
    // SAFETY: everything below 4 GiB is mapped, and no value of the program lies where registers are.
    unsafe { with_exposed_provenance::<u32>(register as usize).read_volatile() }
}

/// Writes a device's register.
pub(crate) fn store(register: u64, value: u32) {
    // SAFETY: as for `load`.
    unsafe { with_exposed_provenance_mut::<u32>(register as usize).write_volatile(value) }
}

/// Copies to memory that is shared with the VMM, at an address of the contract's.
pub(crate) fn put(address: u64, bytes: &[u8]) {
    let to = with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: such memory is no value's, and longer than any frame.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
}

/// Copies from memory that is shared with the VMM, at an address of the contract's.
pub(crate) fn take(address: u64, bytes: &mut [u8]) {
    let from = with_exposed_provenance::<u8>(address as usize);
    // SAFETY: as for `put`.
    unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) }
}

/// Calls the VMM.
pub(crate) fn out(port: u16, value: u32) {
    // SAFETY: the VMM may read and write the memory that is for it, and touches no other.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) }
}

/// Waits for an interrupt. One that came since the last time ends it at once: they are open only here.
pub(crate) fn halt() {
    // SAFETY: the interrupt's handler leaves everything as it was. What is after `sti` is still closed to interrupts, so
    // that none can come between the two.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) }
}

/// The time stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: it reads a register that every x86-64 has.
    unsafe { core::arch::x86_64::_rdtsc() }
}
