//! Interrupts: one of the device's, one of the timer's, and neither does anything but end a sleep.

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

/// Divides by one.
const UNDIVIDED: u32 = 0b1011;

/// The APIC is on, and a spurious interrupt would be this one.
const ENABLED: u32 = 0x100 | 0xff;

/// The code segment that the VMM has set up.
const CODE: u64 = 8;

/// An interrupt gate that is present (Intel SDM volume 3, section 6.14.1).
const GATE: u64 = 0x8e00;

#[repr(C, align(16))]
struct Table(UnsafeCell<[[u64; 2]; 256]>);

// SAFETY: there is one CPU, and the table is written before interrupts are open.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([[0; 2]; 256]));

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: *const Table,
}

/// Makes both interrupts end a sleep.
pub(crate) fn set_up() {
    let handler = wake as *const () as u64;
    let low = handler & 0xffff | CODE << 16 | GATE << 32 | (handler >> 16 & 0xffff) << 48;
    for vector in [VECTOR, TIMER] {
        // SAFETY: nobody else accesses the table: interrupts are closed, and it is not loaded.
        unsafe { (*TABLE.0.get())[usize::from(vector)] = [low, handler >> 32] };
    }
    let pointer = Pointer {
        limit: (size_of::<Table>() - 1) as u16,
        base: &TABLE,
    };
    // SAFETY: the table is valid, and stays.
    unsafe { asm!("lidt [{}]", in(reg) &pointer, options(readonly, nostack, preserves_flags)) };
    store(SPURIOUS, ENABLED);
    store(TIMER_DIVISOR, UNDIVIDED);
    store(TIMER_MODE, TIMER.into());
}

/// Has the timer interrupt once, after so many nanoseconds; KVM's counts at 1 GHz. With 0 it does not.
pub(crate) fn after(nanoseconds: u64) {
    store(TIMER_COUNT, nanoseconds.min(u32::MAX.into()) as u32);
}

/// What either interrupt does.
// SAFETY: nothing but the CPU's table enters it, and it restores the one register that it uses.
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
