//! A guest without an operating system: the guest library, smoltcp, and a platform for them.

#![no_std]
#![no_main]

mod calls;
mod interrupts;
mod machine;
mod memory;
mod report;
mod tasks;
mod virtio;

use pontoon_microvm_abi::{Link, ORDER, Order};

/// The entry point, at the image's first byte.
// SAFETY: no other symbol has this name; the linker script places the section.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.start")]
extern "C" fn start() -> ! {
    // SAFETY: the VMM wrote the order before it started the guest, and does not change it.
    let order = unsafe { core::ptr::with_exposed_provenance::<Order>(ORDER as usize).read() };
    interrupts::set_up();
    let outcome = match order.link {
        link if link == Link::Calls as u32 => tasks::run(calls::Calls::new(&order), &order),
        _ => virtio::open(&order).and_then(|net| tasks::run(net, &order)),
    };
    report::end(outcome)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    report::fail(format_args!("{info}"))
}
