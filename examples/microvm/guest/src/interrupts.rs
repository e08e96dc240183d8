//! Interrupts of the virtio device and of the timer, whose handler only ends a sleep.

use core::arch::{asm, naked_asm};
use core::cell::UnsafeCell;

use crate::memory::store;
use pontoon_microvm_abi::VECTOR;

/// Interrupt vector of the timer.
const TIMER: u8 = VECTOR + 1;

/// Address of the local APIC's registers (Intel SDM volume 3, table 11-1).
const APIC: u64 = 0xfee0_0000;
const END_OF_INTERRUPT: u64 = APIC + 0xb0;
const SPURIOUS: u64 = APIC + 0xf0;
const TIMER_MODE: u64 = APIC + 0x320;
const TIMER_COUNT: u64 = APIC + 0x380;
const TIMER_DIVISOR: u64 = APIC + 0x3e0;

/// Value of the timer's divide configuration register: divide by one.
const UNDIVIDED: u32 = 0b1011;

/// Value of the spurious-interrupt register: APIC enabled, vector 0xff.
const ENABLED: u32 = 0x100 | 0xff;

/// Selector of the code segment that the VMM has set up.
const CODE: u64 = 8;

/// Type bits of a present interrupt gate (Intel SDM volume 3, section 6.14.1).
const GATE: u64 = 0x8e00;

#[repr(C, align(16))]
struct InterruptTable(UnsafeCell<[[u64; 2]; 256]>);

// SAFETY: there is one CPU, and the table is written before interrupts are enabled.
unsafe impl Sync for InterruptTable {}

static TABLE: InterruptTable = InterruptTable(UnsafeCell::new([[0; 2]; 256]));

#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: *const InterruptTable,
}

/// Installs the handler of both interrupts, and enables the APIC.
pub(crate) fn set_up() {
    let handler = wake as *const () as u64;
    let low = handler & 0xffff | CODE << 16 | GATE << 32 | (handler >> 16 & 0xffff) << 48;
    for vector in [VECTOR, TIMER] {
        // SAFETY: no other code accesses the table: interrupts are disabled, and it is not loaded.
        unsafe { (*TABLE.0.get())[usize::from(vector)] = [low, handler >> 32] };
    }
    let pointer = TablePointer {
        limit: (size_of::<InterruptTable>() - 1) as u16,
        base: &TABLE,
    };
    // SAFETY: the table is valid, and static.
    unsafe { asm!("lidt [{}]", in(reg) &pointer, options(readonly, nostack, preserves_flags)) };
    store(SPURIOUS, ENABLED);
    store(TIMER_DIVISOR, UNDIVIDED);
    store(TIMER_MODE, TIMER.into());
}

/// Starts a one-shot timer of `nanoseconds` (KVM's APIC timer counts at 1 GHz); 0 stops it.
pub(crate) fn after(nanoseconds: u64) {
    store(TIMER_COUNT, nanoseconds.min(u32::MAX.into()) as u32);
}

/// Handles both interrupts: writes the end-of-interrupt register, which is all that a sleep needs to end.
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
