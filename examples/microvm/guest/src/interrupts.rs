//! Interrupts of the device and of the timer, which only end a sleep.

use core::arch::{asm, naked_asm};
use core::cell::UnsafeCell;

use crate::memory::store;
use pontoon_microvm_abi::VECTOR;

/// The timer's interrupt.
const TIMER: u8 = VECTOR + 1;

/// Registers of the local APIC (Intel SDM volume 3, table 11-1).
const APIC: u64 = 0xfee0_0000;
const END_OF_INTERRUPT: u64 = APIC + 0xb0;
const SPURIOUS: u64 = APIC + 0xf0;
const TIMER_MODE: u64 = APIC + 0x320;
const TIMER_COUNT: u64 = APIC + 0x380;
const TIMER_DIVISOR: u64 = APIC + 0x3e0;

/// Divide configuration: by one.
const UNDIVIDED: u32 = 0b1011;

/// APIC enabled, with 0xff as the spurious-interrupt vector.
const ENABLED: u32 = 0x100 | 0xff;

/// Selector of the code segment that the VMM sets up.
const CODE: u64 = 8;

/// A present interrupt gate (Intel SDM volume 3, section 6.14.1).
const GATE: u64 = 0x8e00;

#[repr(C, align(16))]
struct Table(UnsafeCell<[[u64; 2]; 256]>);

// SAFETY: there is one CPU, and the table is written before interrupts are enabled.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([[0; 2]; 256]));

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: *const Table,
}

/// Installs the handlers of both interrupts.
pub(crate) fn set_up() {
    let handler = wake as *const () as u64;
    let low = handler & 0xffff | CODE << 16 | GATE << 32 | (handler >> 16 & 0xffff) << 48;
    for vector in [VECTOR, TIMER] {
        // SAFETY: no other code accesses the table: interrupts are disabled, and it is not loaded.
        unsafe { (*TABLE.0.get())[usize::from(vector)] = [low, handler >> 32] };
    }
    let pointer = Pointer {
        limit: (size_of::<Table>() - 1) as u16,
        base: &TABLE,
    };
    // SAFETY: the table is valid, and static.
    unsafe { asm!("lidt [{}]", in(reg) &pointer, options(readonly, nostack, preserves_flags)) };
    store(SPURIOUS, ENABLED);
    store(TIMER_DIVISOR, UNDIVIDED);
    store(TIMER_MODE, TIMER.into());
}

/// Starts a one-shot timer of this many nanoseconds (KVM's counts at 1 GHz). 0 stops it.
pub(crate) fn after(nanoseconds: u64) {
    store(TIMER_COUNT, nanoseconds.min(u32::MAX.into()) as u32);
}

/// The handler of both interrupts.
// SAFETY: only the CPU's table refers to it, and it restores the one register that it uses.
#[unsafe(naked)]
extern "C" fn wake() {
    naked_asm!(
        "push rax",
        "mov eax, {end}",
        "mov dword ptr [rax], 0",
        "pop rax",
        "iretq",
        end = const END_OF_INTERRUPT,
    )
}
