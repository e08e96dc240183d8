//! The virtual machine: memory, one CPU, and its network.

use std::ffi::CStr;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use kvm_bindings::{
    KVM_IRQ_ROUTING_MSI, KVM_MAX_CPUID_ENTRIES, KvmIrqRouting, kvm_irq_routing_entry, kvm_msi,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{IoEventAddress, Kvm, VcpuExit, VcpuFd, VmFd};
use pontoon::{Attachment, Network, NetworkOptions, Pacing, Source};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::args::{Args, Io, Route};
use crate::boot;
use crate::calls::Calls;
use crate::outcome::Outcome;
use crate::server;
use crate::statistics::{CpuCounters, CpuStatistics};
use crate::virtio::{QUEUE_NOTIFY, Virtio};
use pontoon_microvm_abi::{
    BootParameters, DEVICE, IMAGE, Link, MEMORY, PARAMETERS, PORT_STAGE, REPORT, Stage, TaskReport, VECTOR,
};

/// Image of the guest, which build.rs has built.
const GUEST: &[u8] = include_bytes!(env!("GUEST_IMAGE"));
const _: () = assert!(!GUEST.is_empty(), "the linker has kept nothing");

/// Number of the interrupt line in KVM, which is routed to a message-signalled interrupt.
const GSI: u32 = 5;

/// Size of the virtio device's registers in bytes.
const REGISTERS: u64 = 0x1000;

/// Address of message-signalled interrupts for the only CPU (Intel SDM volume 3, section 11.11.1).
const MESSAGES: u32 = 0xfee0_0000;

/// A structure in the guest's memory. The type is necessary because [`ByteValued`] cannot be implemented for types of
/// another crate.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct InGuestMemory<T>(T);

// SAFETY: the structure consists of integers without padding between them.
unsafe impl ByteValued for InGuestMemory<BootParameters> {}

// SAFETY: the structure consists of integers and bytes without padding between them; all bit patterns are valid.
unsafe impl ByteValued for InGuestMemory<TaskReport> {}

/// Opens `/dev/kvm`. Returns `None` if it does not exist.
///
/// # Errors
/// `/dev/kvm` exists but cannot be opened.
pub(crate) fn kvm() -> Result<Option<Kvm>> {
    const ENOENT: i32 = 2;
    match Kvm::new() {
        Ok(kvm) => Ok(Some(kvm)),
        Err(error) if error.errno() == ENOENT => Ok(None),
        Err(error) => Err(error).context("cannot open /dev/kvm"),
    }
}

/// Runs the guest until it has completed its task, and returns the result.
pub(crate) fn run(kvm: &Kvm, args: &Args) -> Result<Outcome> {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)])?;
    let vm = Arc::new(kvm.create_vm().context("cannot create the virtual machine")?);
    vm.create_irq_chip()
        .context("cannot create the interrupt controllers")?;
    map_memory(&vm, &memory)?;
    let mut vcpu = vm.create_vcpu(0).context("cannot create the CPU")?;
    vcpu.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?)?;
    boot::prepare(&memory, &vcpu)?;
    memory.write_slice(GUEST, GuestAddress(IMAGE))?;
    let parameters = parameters(args, server::start()?, vcpu.get_tsc_khz()?);
    memory.write_obj(InGuestMemory(parameters), GuestAddress(PARAMETERS))?;

    let deadline = args.deadline();
    thread::spawn(move || {
        thread::sleep(deadline);
        eprintln!("pontoon-microvm: the guest has not completed its task within {deadline:?}");
        std::process::exit(1);
    });

    let options = options(args.io);
    let signals = Arc::new(AtomicU64::new(0));
    let (network, mut devices) = match args.link() {
        Link::Calls => {
            let flags = SocketFlags::CLOEXEC;
            let (vmm_end, engine_end) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            let link = Attachment::Packet(Source::Connected(engine_end));
            let network = Network::attach(options, link)?;
            (network, Devices::Calls(Calls::new(vmm_end, memory.clone())))
        }
        Link::Virtio => {
            let (network, device) = Network::start(options)?;
            let event = || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC);
            // The VMM waits for the call eventfd if it sends the interrupts itself.
            let (kicks, call) = ([event()?, event()?], EventFd::new(EFD_CLOEXEC)?);
            connect_device(&vm, &kicks, &call, args, &signals)?;
            let virtio = Virtio::new(device, memory.clone(), kicks, call);
            (network, Devices::Virtio(Box::new(virtio)))
        }
    };
    let outcome = run_cpu(&mut vcpu, &mut devices, &memory, &signals);
    drop(network);
    outcome
}

fn options(io: Io) -> NetworkOptions {
    let mut options = NetworkOptions {
        pacing: match io {
            Io::Event => Pacing::Event,
            Io::Hybrid => Pacing::Hybrid,
            Io::Poll => Pacing::Poll,
        },
        ..NetworkOptions::default()
    };
    // The server listens on the host's loopback, which the guest reaches by the gateway's address.
    let v4 = options.config.plan.v4.as_ref();
    options.config.host_loopback = v4.map(|v4| v4.gateway.into()).into_iter().collect();
    options
}

fn parameters(args: &Args, port: u16, khz: u32) -> BootParameters {
    BootParameters {
        link: args.link() as u32,
        pacing: args.io as u32,
        event_idx: (!args.no_event_idx).into(),
        task: args.task() as u32,
        count: args.count,
        port: port.into(),
        khz,
    }
}

/// Maps the guest's memory into the virtual machine.
fn map_memory(vm: &VmFd, memory: &GuestMemoryMmap) -> Result<()> {
    let region = kvm_userspace_memory_region {
        slot: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY,
        userspace_addr: memory.get_host_address(GuestAddress(0))?.addr() as u64,
        flags: 0,
    };
    // SAFETY: the mapping has this length, and exists as long as the machine: both end with `run`.
    unsafe { vm.set_user_memory_region(region) }.context("cannot map memory into the virtual machine")
}

/// Connects the device to the virtual machine: notifications and interrupts are sent by eventfds, or by the VMM.
/// Returns the counter of interrupts that the VMM sends.
fn connect_device(
    vm: &Arc<VmFd>,
    kicks: &[EventFd; 2],
    call: &EventFd,
    args: &Args,
    signals: &Arc<AtomicU64>,
) -> Result<()> {
    if args.doorbells == Route::Engine {
        for (number, kick) in (0_u32..).zip(kicks) {
            vm.register_ioevent(kick, &IoEventAddress::Mmio(DEVICE + QUEUE_NOTIFY), number)
                .context("cannot register an ioeventfd")?;
        }
    }
    match args.interrupts {
        Route::Engine => {
            let mut entry = kvm_irq_routing_entry {
                gsi: GSI,
                type_: KVM_IRQ_ROUTING_MSI,
                ..kvm_irq_routing_entry::default()
            };
            entry.u.msi.address_lo = MESSAGES;
            entry.u.msi.data = VECTOR.into();
            let routing =
                KvmIrqRouting::from_entries(&[entry]).context("cannot create the interrupt routing")?;
            vm.set_gsi_routing(&routing)
                .context("cannot route the interrupt")?;
            vm.register_irqfd(call, GSI).context("cannot register an irqfd")?;
        }
        Route::Vmm => {
            let (vm, call, signals) = (vm.clone(), call.try_clone()?, signals.clone());
            thread::spawn(move || {
                while call.read().is_ok() {
                    signals.fetch_add(1, Ordering::Relaxed);
                    let message = kvm_msi {
                        address_lo: MESSAGES,
                        data: VECTOR.into(),
                        ..kvm_msi::default()
                    };
                    if let Err(error) = vm.signal_msi(message) {
                        eprintln!("pontoon-microvm: cannot interrupt the guest: {error}");
                    }
                }
            });
        }
    }
    Ok(())
}

/// Network device of the guest: port I/O or virtio.
enum Devices {
    Calls(Calls),
    Virtio(Box<Virtio>),
}

/// Values of the VMM's counters at one time.
#[derive(Clone, Copy, Default)]
struct CounterSnapshot {
    returns: u64,
    signals: u64,
    kvm: CpuStatistics,
}

/// Runs the CPU until the guest has reported the end of its task.
fn run_cpu(
    vcpu: &mut VcpuFd,
    devices: &mut Devices,
    memory: &GuestMemoryMmap,
    signals: &AtomicU64,
) -> Result<Outcome> {
    let counters = CpuCounters::new(vcpu)?;
    let mut before = CounterSnapshot::default();
    let mut returns = 0;
    loop {
        let exit = match vcpu.run() {
            Ok(exit) => exit,
            Err(error) if error.errno() == Errno::INTR.raw_os_error() => continue,
            Err(error) => return Err(error).context("the CPU cannot run"),
        };
        match exit {
            VcpuExit::IoOut(PORT_STAGE, stage) => {
                let now = CounterSnapshot {
                    returns,
                    signals: signals.load(Ordering::Relaxed),
                    kvm: counters.read()?,
                };
                if value(stage) == Stage::Begin as u32 {
                    // This return from KVM_RUN is not counted as part of the task.
                    before = CounterSnapshot {
                        returns: returns + 1,
                        ..now
                    };
                } else {
                    return read_report(value(stage), memory, before, now);
                }
            }
            VcpuExit::IoOut(port, bytes) => {
                if let Devices::Calls(calls) = devices {
                    calls.call(port, value(bytes))?;
                }
            }
            VcpuExit::MmioRead(address, into) => {
                if let (Some(register), Devices::Virtio(virtio)) = (register(address), &devices) {
                    virtio.read(register, into);
                }
            }
            VcpuExit::MmioWrite(address, bytes) => {
                if let (Some(register), Devices::Virtio(virtio)) = (register(address), &mut *devices) {
                    virtio.write(register, bytes)?;
                }
            }
            other => {
                let end = format!("{other:?}");
                let at = vcpu.get_regs()?.rip;
                bail!("the CPU has stopped unexpectedly at {at:#x}: {end}")
            }
        }
        returns += 1;
    }
}

fn register(address: u64) -> Option<u64> {
    address
        .checked_sub(DEVICE)
        .filter(|register| *register < REGISTERS)
}

/// Returns the value of a 32-bit write to an I/O port.
fn value(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_le_bytes)
}

/// Reads the guest's report, and returns it with the differences of the counters.
fn read_report(
    stage: u32,
    memory: &GuestMemoryMmap,
    before: CounterSnapshot,
    now: CounterSnapshot,
) -> Result<Outcome> {
    let InGuestMemory(report): InGuestMemory<TaskReport> = memory.read_obj(GuestAddress(REPORT))?;
    if stage != Stage::End as u32 {
        let text = CStr::from_bytes_until_nul(&report.error).unwrap_or(c"at length");
        bail!("the guest failed: {}", text.to_string_lossy());
    }
    Ok(Outcome {
        address: Ipv4Addr::from(report.address),
        done: report.done,
        sent: report.sent,
        received: report.received,
        doorbells: report.doorbells,
        returns: now.returns - before.returns,
        signals: now.signals - before.signals,
        kvm: now.kvm.since(before.kvm),
    })
}
