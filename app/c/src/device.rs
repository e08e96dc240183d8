//! Virtio-net device of a VMM.

use core::ffi::{c_int, c_void};

use pontoon::vm_memory::mmap::MmapRegionBuilder;
use pontoon::vm_memory::{GuestAddress, GuestMemoryRegion, GuestRegionMmap};
use pontoon::{GuestMemoryMmap, NetDevice, QueueConfig};
use std::sync::Mutex;

use crate::call::{Failure, call};
use crate::network::{duplicate, lock, network, pontoon_network, start};
use crate::options::{Opened, pontoon_options};

/// Length in bytes of the configuration space of the device (virtio 1.2, section 5.1.4).
pub const PONTOON_DEVICE_CONFIG: usize = 12;

/// Memory of the guest, as the program has mapped it.
#[repr(C)]
pub struct pontoon_memory_region {
    /// The guest's physical address of the first byte.
    pub guest_address: u64,
    /// Number of bytes.
    pub size: u64,
    /// Address of the first byte in the program: the beginning of a page, which can be read and written.
    pub memory: *mut c_void,
}

/// A virtqueue, as the driver has configured it. Addresses are physical ones of the guest.
#[repr(C)]
pub struct pontoon_queue {
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the available ring, or driver area.
    pub available: u64,
    /// Address of the used ring, or device area.
    pub used: u64,
    /// Number of descriptors, a power of two.
    pub size: u16,
    /// Eventfd that is readable after the driver has notified the device (ioeventfd of KVM).
    pub kick: c_int,
    /// Eventfd to which the device writes to interrupt the driver (irqfd of KVM).
    pub call: c_int,
}

/// Returns the device of a network that was started with one.
fn device(network: &pontoon_network) -> Result<&Mutex<NetDevice>, Failure> {
    let device = network.device.as_ref();
    device.ok_or_else(|| Failure::invalid("the network has no device"))
}

/// Starts the network of a VMM's guest, whose virtio-net device the library implements: features, configuration space and one pair
/// of queues. The VMM implements the registers, and calls pontoon_device_activate and pontoon_device_reset. Parameters and result
/// are those of pontoon_network_attach. The option `threads` `off` is an error.
///
/// # Safety
/// Those of `pontoon_network_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_device(
    network: *mut *mut pontoon_network,
    options: *const pontoon_options,
) -> c_int {
    let open = |opened: Opened| {
        let (network, device) = opened.builder.device()?;
        let mut network = pontoon_network::new(network, None, opened.requests, opened.events)?;
        network.device = Some(Mutex::new(device));
        Ok(network)
    };
    // SAFETY: the caller promises the same (section Safety).
    unsafe { start(network, options, open) }
}

/// Writes the features to offer to the driver (virtio 1.2, sections 5.1.3 and 6) to `features`. Returns 0 or an error.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; `features` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_device_features(
    network: *const pontoon_network,
    features: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let network = unsafe { self::network(network)? };
        let offered = lock(device(network)?)?.features();
        if features.is_null() {
            return Err(Failure::invalid("the place for the features is null"));
        }
        // SAFETY: the caller promises that it can be written.
        unsafe { features.write(offered) };
        Ok(0)
    })
}

/// Writes the configuration space of the device to `space`, PONTOON_DEVICE_CONFIG bytes: the guest's Ethernet address and its MTU.
/// Returns 0 or an error.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; the bytes at `space` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_device_config(network: *const pontoon_network, space: *mut u8) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let network = unsafe { self::network(network)? };
        let config: [u8; PONTOON_DEVICE_CONFIG] = lock(device(network)?)?.config();
        if space.is_null() {
            return Err(Failure::invalid("the place for the configuration space is null"));
        }
        // SAFETY: the caller promises that the bytes can be written.
        unsafe { space.copy_from_nonoverlapping(config.as_ptr(), config.len()) };
        Ok(0)
    })
}

/// Serves the queues of the device, after the driver has set DRIVER_OK and accepted `features`. `regions` has `count` parts of the
/// guest's memory; `receive` and `transmit` are queues 0 and 1. Queues of an earlier activation are released first. The library
/// duplicates the descriptors, and accesses the memory until the next call of this function or of pontoon_device_reset returns, or
/// pontoon_network_stop: it must stay mapped until then. The call waits for the network's thread.
///
/// Returns 0, or an error if features were not offered or a queue is not in the memory; no queue is served then.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; `count` regions can be read at `regions`,
/// which do not overlap and whose memory is valid as described; `receive` and `transmit` can be read; no other thread closes
/// their descriptors during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_device_activate(
    network: *const pontoon_network,
    features: u64,
    regions: *const pontoon_memory_region,
    count: usize,
    receive: *const pontoon_queue,
    transmit: *const pontoon_queue,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let network = unsafe { self::network(network)? };
        let device = device(network)?;
        if regions.is_null() || count == 0 || count > MOST_REGIONS {
            return Err(Failure::invalid("there is no memory, or it has too many parts"));
        }
        // SAFETY: the caller promises that the regions can be read, and their number is small.
        let regions = unsafe { core::slice::from_raw_parts(regions, count) };
        // SAFETY: the caller promises that the memory stays valid as long as it is used.
        let memory = unsafe { memory(regions)? };
        // SAFETY: the caller promises that the queues can be read, and that their descriptors are not closed.
        let queues = unsafe { [queue(receive)?, queue(transmit)?] };
        let activated = lock(device)?.activate(&memory, features, queues);
        activated.map_err(|error| Failure::invalid(error.to_string()))?;
        Ok(0)
    })
}

/// Releases the queues and closes the guest's flows, after the driver has reset the device. When the function returns, the library
/// does not access the guest's memory any more. It waits for the network's thread. Returns 0 or an error.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_device_reset(network: *const pontoon_network) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let network = unsafe { self::network(network)? };
        lock(device(network)?)?.reset();
        Ok(0)
    })
}

/// Limit on the parts of a guest's memory: more than a machine of any VMM has (KVM_CAP_NR_MEMSLOTS is 32,764 at most).
const MOST_REGIONS: usize = 32_768;

/// Returns the guest's memory.
///
/// # Safety
/// The regions do not overlap in the program, and stay mapped as long as the result or a copy of it is used.
unsafe fn memory(regions: &[pontoon_memory_region]) -> Result<GuestMemoryMmap, Failure> {
    let invalid = |why: &dyn std::fmt::Display| Failure::invalid(format!("the guest's memory: {why}"));
    let mut mapped = Vec::new();
    for region in regions {
        let size = usize::try_from(region.size).map_err(|error| invalid(&error))?;
        if region.memory.is_null() || size == 0 {
            return Err(invalid(&"a part is empty"));
        }
        let builder = MmapRegionBuilder::new(size)
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: the caller promises that the memory is mapped.
        let builder = unsafe { builder.with_raw_mmap_pointer(region.memory.cast()) };
        let region_of_program = builder.build().map_err(|error| invalid(&error))?;
        let region = GuestRegionMmap::new(region_of_program, GuestAddress(region.guest_address));
        mapped.push(region.ok_or_else(|| invalid(&"an address is out of range"))?);
    }
    mapped.sort_by_key(GuestMemoryRegion::start_addr);
    GuestMemoryMmap::from_regions(mapped).map_err(|error| invalid(&error))
}

/// Returns the configuration of a queue.
///
/// # Safety
/// `queue` is null or can be read, and no other thread closes its descriptors during the call.
unsafe fn queue(queue: *const pontoon_queue) -> Result<QueueConfig, Failure> {
    // SAFETY: the caller promises it (section Safety).
    let queue = unsafe { queue.as_ref() }.ok_or_else(|| Failure::invalid("a queue is null"))?;
    // SAFETY: the caller promises that the descriptors stay open during the call.
    let [kick, call] = unsafe { [duplicate(queue.kick)?, duplicate(queue.call)?] };
    Ok(QueueConfig {
        size: queue.size,
        descriptors: queue.descriptors,
        available: queue.available,
        used: queue.used,
        kick,
        call,
    })
}
