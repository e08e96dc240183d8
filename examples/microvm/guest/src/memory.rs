//! Memory-mapped and port I/O, and other instructions that need assembly.

use core::arch::asm;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// Reads a 32-bit device register.
pub(crate) fn load(register: u64) -> u32 {
    // SAFETY: everything below 4 GiB is mapped, and no object of the program is at the address of a register.
    unsafe { with_exposed_provenance::<u32>(register as usize).read_volatile() }
}

/// Writes a 32-bit device register.
pub(crate) fn store(register: u64, value: u32) {
    // SAFETY: everything below 4 GiB is mapped, and no object of the program is at the address of a register.
    unsafe { with_exposed_provenance_mut::<u32>(register as usize).write_volatile(value) }
}

/// Copies `bytes` to memory that is shared with the VMM.
pub(crate) fn put(address: u64, bytes: &[u8]) {
    let to = with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: no object of the program is in that memory, and it is longer than any frame.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
}

/// Copies from memory that is shared with the VMM.
pub(crate) fn take(address: u64, bytes: &mut [u8]) {
    let from = with_exposed_provenance::<u8>(address as usize);
    // SAFETY: no object of the program is in that memory, and it is longer than any frame.
    unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) }
}

/// Writes to an I/O port, which transfers control to the VMM.
pub(crate) fn out(port: u16, value: u32) {
    // SAFETY: the VMM accesses only the memory that is shared with it.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) }
}

/// Waits for an interrupt. Interrupts are enabled only here, so that one which arrived since the last call ends the
/// wait at once.
pub(crate) fn halt() {
    // SAFETY: the interrupt handler preserves all registers. Interrupts are still disabled for the instruction after
    // `sti`, so none can occur between the two.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) }
}

/// Reads the time stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: the instruction reads a register that every x86-64 has.
    unsafe { core::arch::x86_64::_rdtsc() }
}
