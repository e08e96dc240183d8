//! C functions that create an interface in memory which the caller provides.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::time::Duration;

use pontoon_guest::{DeviceGone, Interface, Map, Ring};
use pontoon_ring::memory::{Raw, Window};
use pontoon_ring::{Features, Layout};

use crate::frames::FOREVER;
use crate::{Kind, Pontoon, SIZE, code};

pub(crate) type CreatedInterface = Interface<Window<Raw<'static>>, Callbacks, SIZE>;

/// Size in bytes of an interface's private memory (PONTOON_STORAGE).
const STORAGE: usize = 16_384;

/// Required alignment in bytes of the private and of the shared memory.
const ALIGN: usize = 64;

const _: () = assert!(size_of::<Pontoon>() <= STORAGE && align_of::<Pontoon>() <= ALIGN);

/// The functions by which the C program provides clock, notification and sleep (`struct pontoon_platform`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Platform {
    context: *mut c_void,
    // SAFETY: all three may be called with the context, as the caller of `pontoon_create` promises.
    now: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    notify: Option<unsafe extern "C" fn(*mut c_void, c_int)>,
    sleep: Option<unsafe extern "C" fn(*mut c_void, u64) -> c_int>,
}

/// Configuration of an interface by the C program (`struct pontoon_config`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    storage: *mut c_void,
    shared: *mut c_void,
    address: u64,
    frame: u16,
    event_idx: u8,
    pacing: c_int,
    platform: Platform,
}

/// Addresses of a virtqueue's parts (`struct pontoon_ring`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VringLayout {
    descriptors: u64,
    available: u64,
    used: u64,
}

/// Returns the size in bytes of the memory that an interface shares with the device, for frames of up to `frame` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn pontoon_shared_bytes(frame: u16) -> usize {
    Map::<SIZE>::new(0, frame).bytes()
}

/// Creates an interface in memory that the caller provides.
///
/// # Safety
/// `config` can be read, and `interface` and two elements at `rings` can be written. Until the last use of the
/// interface, both memories of the configuration exist, of `STORAGE` and of [`pontoon_shared_bytes`] bytes, and this
/// program accesses them only through this library; and the platform's functions may be called with its context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_create(
    interface: *mut *mut Pontoon,
    config: *const Config,
    rings: *mut VringLayout,
) -> c_int {
    if interface.is_null() || config.is_null() || rings.is_null() {
        return code::INVALID;
    }
    // SAFETY: the caller of this function promises it (section Safety).
    let config = unsafe { config.read() };
    let map = Map::<SIZE>::new(config.address, config.frame);
    // SAFETY: the caller of this function promises it (section Safety).
    match unsafe { create(config, map) } {
        // SAFETY: the caller promises that all can be written.
        Ok(pontoon) => unsafe {
            rings.write(map.receive().into());
            rings.add(1).write(map.transmit().into());
            interface.write(pontoon.as_ptr());
            0
        },
        Err(code) => code,
    }
}

/// # Safety
/// Those of [`pontoon_create`] for the configuration.
unsafe fn create(config: Config, map: Map<SIZE>) -> Result<NonNull<Pontoon>, c_int> {
    let pacing = code::pacing(config.pacing).ok_or(code::INVALID)?;
    let callbacks = Callbacks::new(config.platform).ok_or(code::INVALID)?;
    let [storage, shared] = [config.storage, config.shared].map(aligned);
    let (storage, shared) = (storage.ok_or(code::INVALID)?, shared.ok_or(code::INVALID)?);
    let features = Features {
        event_idx: config.event_idx != 0,
        indirect: false,
    };
    // SAFETY: the caller promises that the memory exists as long as the interface is used, and the `Raw` is not used
    // longer.
    let memory = Window::new(unsafe { Raw::new(shared, map.bytes()) }, config.address);
    let interface = CreatedInterface::new(memory, map, features, callbacks, pacing).map_err(code::of)?;
    let pontoon = storage.cast::<Pontoon>();
    // SAFETY: the storage is large enough (checked at compile time) and aligned, and the caller promises that it can be
    // written.
    unsafe { pontoon.write(Pontoon(Kind::Created(interface))) };
    Ok(pontoon)
}

fn aligned(memory: *mut c_void) -> Option<NonNull<u8>> {
    NonNull::new(memory.cast()).filter(|memory| memory.addr().get().is_multiple_of(ALIGN))
}

impl From<Layout> for VringLayout {
    fn from(layout: Layout) -> Self {
        Self {
            descriptors: layout.descriptors,
            available: layout.available,
            used: layout.used,
        }
    }
}

/// The platform of the C program, after a check that no function is null.
#[derive(Debug)]
pub(crate) struct Callbacks {
    context: *mut c_void,
    // SAFETY: all three may be called with the context, as the caller of `pontoon_create` promises.
    now: unsafe extern "C" fn(*mut c_void) -> u64,
    notify: unsafe extern "C" fn(*mut c_void, c_int),
    sleep: unsafe extern "C" fn(*mut c_void, u64) -> c_int,
}

impl Callbacks {
    fn new(platform: Platform) -> Option<Self> {
        Some(Self {
            context: platform.context,
            now: platform.now?,
            notify: platform.notify?,
            sleep: platform.sleep?,
        })
    }
}

impl pontoon_guest::Platform for Callbacks {
    fn now(&mut self) -> Duration {
        // SAFETY: the caller of `pontoon_create` promised that function and context may be used.
        Duration::from_nanos(unsafe { (self.now)(self.context) })
    }

    fn notify(&mut self, ring: Ring) {
        // SAFETY: the caller of `pontoon_create` promised that function and context may be used.
        unsafe { (self.notify)(self.context, ring as c_int) }
    }

    fn sleep(&mut self, until: Option<Duration>) -> Result<(), DeviceGone> {
        let until = until.and_then(|until| u64::try_from(until.as_nanos()).ok());
        // SAFETY: the caller of `pontoon_create` promised that function and context may be used.
        match unsafe { (self.sleep)(self.context, until.unwrap_or(FOREVER)) } {
            0 => Ok(()),
            _ => Err(DeviceGone),
        }
    }
}

#[cfg(test)]
mod tests;
