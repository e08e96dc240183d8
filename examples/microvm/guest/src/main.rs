//! The guest of the example: the guest library and smoltcp, without an operating system.

#![no_std]
#![no_main]

mod calls;
mod interrupts;
mod machine;
mod memory;
mod report;
mod tasks;
mod virtio;

use pontoon_microvm_abi::{BootParameters, Link, PARAMETERS};

/// Entry point of the guest, which is the first byte of the image.
// SAFETY: no other symbol has this name; the linker script places the section.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.start")]
extern "C" fn start() -> ! {
    // SAFETY: the VMM has written the parameters before it started the guest, and does not change them.
    let parameters =
        unsafe { core::ptr::with_exposed_provenance::<BootParameters>(PARAMETERS as usize).read() };
    interrupts::set_up();
    let outcome = match parameters.link {
        link if link == Link::Calls as u32 => tasks::run(calls::CallInterface::new(&parameters), &parameters),
        _ => virtio::open(&parameters).and_then(|net| tasks::run(net, &parameters)),
    };
    report::end(outcome)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    report::fail(format_args!("{info}"))
}
