//! Networks.

use core::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use pontoon::{EventQueue, FramePort, Guest, NetDevice, Network, RequestQueue};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::call::{Failure, PONTOON_ERROR_HOST, PONTOON_ERROR_INTERNAL, call};
use crate::frames::Frames;
use crate::options::{Opened, pontoon_options};
use crate::text;

/// The guest's descriptor is a SOCK_STREAM socket; each frame is preceded by its length, 32 bits big endian.
pub const PONTOON_STREAM: c_int = 1;
/// The guest's descriptor is a SOCK_SEQPACKET or SOCK_DGRAM socket; each message is a frame.
pub const PONTOON_PACKET: c_int = 2;
/// The guest's descriptor is a SOCK_STREAM socket for vhost-user.
pub const PONTOON_VHOST_USER: c_int = 3;
/// The guest's descriptor is a queue of a tap, with IFF_TAP and IFF_NO_PI, and IFF_VNET_HDR to be fast.
pub const PONTOON_TAP: c_int = 4;

/// A network of one guest (opaque). All functions may be called by several threads at the same time, except pontoon_network_stop.
#[expect(non_camel_case_types, reason = "the name of the C type")]
pub struct pontoon_network {
    network: Mutex<Network>,
    /// The guest's end of a link whose frames the program writes and reads.
    pub(crate) frames: Option<Mutex<Frames>>,
    /// The virtio-net device of a VMM.
    pub(crate) device: Option<Mutex<NetDevice>>,
    pub(crate) requests: Option<RequestQueue>,
    /// Queue of records, and a record that did not fit into a buffer.
    pub(crate) events: Option<(EventQueue, Mutex<Option<String>>)>,
    /// Epoll instance with the descriptors of the network and its queues.
    poll: OwnedFd,
}

/// The functions are called by any thread, and by several at the same time.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<pontoon_network>();
};

impl pontoon_network {
    pub(crate) fn new(
        network: Network,
        frames: Option<FramePort>,
        requests: Option<RequestQueue>,
        events: Option<EventQueue>,
    ) -> Result<Self, Failure> {
        let poll = epoll::create(CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let add = |descriptor: BorrowedFd<'_>| {
            epoll::add(&poll, descriptor, EventData::new_u64(0), EventFlags::IN).map_err(std::io::Error::from)
        };
        add(network.as_fd())?;
        requests.iter().try_for_each(|queue| add(queue.as_fd()))?;
        events.iter().try_for_each(|queue| add(queue.as_fd()))?;
        Ok(Self {
            network: Mutex::new(network),
            frames: frames.map(|port| Mutex::new(Frames::new(port))),
            device: None,
            requests,
            events: events.map(|queue| (queue, Mutex::default())),
            poll,
        })
    }

    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Network>, Failure> {
        lock(&self.network)
    }
}

/// Locks a value that a call has not left by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Failure> {
    let poisoned = |_| Failure::new(PONTOON_ERROR_INTERNAL, "an earlier call has panicked");
    mutex.lock().map_err(poisoned)
}

/// Returns the network at a pointer.
///
/// # Safety
/// The pointer is null or from a function that starts networks, and the network is not stopped during `'a`.
pub(crate) unsafe fn network<'a>(network: *const pontoon_network) -> Result<&'a pontoon_network, Failure> {
    // SAFETY: the caller promises it (section Safety).
    unsafe { network.as_ref() }.ok_or_else(|| Failure::invalid("the network is null"))
}

/// Duplicates a descriptor of the program, which the program keeps.
///
/// # Safety
/// No other thread closes the descriptor during the call.
pub(crate) unsafe fn duplicate(fd: c_int) -> Result<OwnedFd, Failure> {
    if fd < 0 {
        return Err(Failure::invalid("the descriptor is negative"));
    }
    // SAFETY: the number is not -1, and is used for one call only, which fails if it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned()
        .map_err(|error| Failure::new(PONTOON_ERROR_HOST, format!("cannot use the descriptor: {error}")))
}

/// Starts a network at `network`.
///
/// # Safety
/// `network` is null or can be written; `options` is null or from `pontoon_options_new`, and is not changed during the call.
pub(crate) unsafe fn start(
    network: *mut *mut pontoon_network,
    options: *const pontoon_options,
    open: impl FnOnce(Opened) -> Result<pontoon_network, Failure>,
) -> c_int {
    call(|| {
        if network.is_null() {
            return Err(Failure::invalid("the place for the network is null"));
        }
        // SAFETY: the caller promises it (section Safety).
        let options = unsafe { options.as_ref() };
        let opened = options.unwrap_or(&pontoon_options::default()).open()?;
        let started = Box::new(open(opened)?);
        // SAFETY: the caller promises that the place can be written.
        unsafe { network.write(Box::into_raw(started)) };
        Ok(0)
    })
}

/// Starts the network of a guest behind `fd`, a descriptor of the kind `kind`: PONTOON_STREAM, PONTOON_PACKET,
/// PONTOON_VHOST_USER or PONTOON_TAP. A socket is connected to the guest, or listens for it; one guest is served at a time. The
/// library duplicates the descriptor, and sets the file to non-blocking, also for other descriptors of it.
///
/// `options` may be NULL for the defaults, and may be changed or freed afterwards.
///
/// Returns 0, and writes the network to `network`, which is stopped by pontoon_network_stop; or an error.
///
/// # Safety
/// `network` can be written. `options` is NULL or from `pontoon_options_new`, and no other thread changes it or closes `fd` during
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_attach(
    network: *mut *mut pontoon_network,
    options: *const pontoon_options,
    kind: c_int,
    fd: c_int,
) -> c_int {
    let open = |opened: Opened| {
        // SAFETY: the caller promises that no other thread closes it during the call.
        let fd = unsafe { duplicate(fd)? };
        let guest = match kind {
            PONTOON_STREAM => Guest::stream(fd)?,
            PONTOON_PACKET => Guest::packet(fd)?,
            PONTOON_VHOST_USER => Guest::vhost_user(fd, opened.queues)?,
            PONTOON_TAP => Guest::tap(fd)?,
            _ => return Err(Failure::invalid("there is no such kind of guests")),
        };
        let network = opened.builder.attach(guest)?;
        pontoon_network::new(network, None, opened.requests, opened.events)
    };
    // SAFETY: the caller promises the same (section Safety).
    unsafe { start(network, options, open) }
}

/// Starts the network of a guest whose frames the program writes and reads by pontoon_network_write_frame and
/// pontoon_network_read_frame. Parameters and result are those of pontoon_network_attach.
///
/// # Safety
/// Those of `pontoon_network_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_frames(
    network: *mut *mut pontoon_network,
    options: *const pontoon_options,
) -> c_int {
    let open = |opened: Opened| {
        let (network, frames) = opened.builder.frames()?;
        pontoon_network::new(network, Some(frames), opened.requests, opened.events)
    };
    // SAFETY: the caller promises the same (section Safety).
    unsafe { start(network, options, open) }
}

/// Stops a network and frees it: closes its flows and published ports, and ends its threads. Records that were not taken are lost;
/// to have all, stop the traffic and take them before. NULL is ignored.
///
/// Returns 0, or the error with which the engine had failed before; the network is freed in any case.
///
/// # Safety
/// `network` is NULL or from a function that starts networks, no other thread uses it, and it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_stop(network: *mut pontoon_network) -> c_int {
    call(|| {
        if network.is_null() {
            return Ok(0);
        }
        // SAFETY: the caller promises that the value is from `Box::into_raw` and is not used again.
        let network = *unsafe { Box::from_raw(network) };
        let inner = network.network.into_inner();
        let inner = inner.unwrap_or_else(std::sync::PoisonError::into_inner);
        inner.stop()?;
        Ok(0)
    })
}

/// Returns the descriptor to poll for reading (poll(2), epoll(7)): while it is readable, call pontoon_network_dispatch, and take
/// requests and records, if the options enable them. It belongs to the network. Returns an error if `network` is NULL.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_fd(network: *const pontoon_network) -> c_int {
    // SAFETY: the caller promises it (section Safety).
    call(|| Ok(unsafe { self::network(network) }?.poll.as_raw_fd()))
}

/// Processes what is pending, and does not wait. With the option `threads` `off`, packets are processed in this call only, for up
/// to some milliseconds. Otherwise it checks that the network runs.
///
/// Returns 0, or an error: PONTOON_ERROR_ENDED when the guest has disconnected for good.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_dispatch(network: *const pontoon_network) -> c_int {
    change(network, |network| network.dispatch())
}

/// Publishes ports of the guest on the host: `specification` is a value of the option --publish, such as `127.0.0.1:8080:80`.
/// When the function returns 0, clients can connect. It waits for the network's threads.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; `specification` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_publish(
    network: *const pontoon_network,
    specification: *const c_char,
) -> c_int {
    change_by(network, specification, |network, text| network.publish(text))
}

/// Ends the publication of ports; connections continue. It waits for the network's threads. Returns 0 or an error.
///
/// # Safety
/// Those of `pontoon_network_publish`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_unpublish(
    network: *const pontoon_network,
    specification: *const c_char,
) -> c_int {
    change_by(network, specification, |network, text| network.unpublish(text))
}

/// Replaces the rules for destinations: `rules` has a rule on each line, `allow TARGET` or `deny TARGET`, with the values of the
/// options --allow and --deny. When the function returns 0, they apply, and flows that they deny are closed. It waits for the
/// network's threads. After an error the rules are unchanged.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; `rules` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_set_rules(
    network: *const pontoon_network,
    rules: *const c_char,
) -> c_int {
    change_by(network, rules, |network, text| {
        let rules: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        network.set_rules(&rules)
    })
}

/// Waits until the changes of the host's addresses, routes and resolvers that precede the call apply. A network follows them without
/// this call, usually within a millisecond. Returns 0 or an error.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_refresh_host(network: *const pontoon_network) -> c_int {
    change(network, |network| network.refresh_host())
}

/// Writes a counter of the network to `value`. `name` is `flows` or `pool_bytes`, which are current values, or one of the
/// counters, such as `frames_up`. Returns 0 or an error.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; `name` is a string, and `value` can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_counter(
    network: *const pontoon_network,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let (network, name) = unsafe { (self::network(network)?, text::read(name)?) };
        if value.is_null() {
            return Err(Failure::invalid("the place for the value is null"));
        }
        let stats = network.lock()?.stats()?;
        let found = match name {
            "flows" => Some(stats.flows),
            "pool_bytes" => Some(stats.pool_bytes),
            name => stats.counter(name),
        };
        let found = found.ok_or_else(|| Failure::invalid(format!("there is no counter '{name}'")))?;
        // SAFETY: the caller promises that it can be written.
        unsafe { value.write(found) };
        Ok(0)
    })
}

/// Writes an address of the guest's link as text to `buffer`. `name` is `guest4`, `gateway4`, `dns4`, `guest6`, `gateway6` or
/// `dns6`; guest addresses have the length of their prefix: `10.0.2.15/24`. Returns the length of the text, which is 0 if there is
/// no such address, or an error. 64 bytes suffice.
///
/// # Safety
/// `network` is from a function that starts networks, and is not stopped during the call; `name` is a string, and `size` bytes at
/// `buffer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_network_address(
    network: *const pontoon_network,
    name: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let (network, name) = unsafe { (self::network(network)?, text::read(name)?) };
        let addresses = network.lock()?.addresses().clone();
        let (v4, v6) = (addresses.ipv4, addresses.ipv6);
        let found = match name {
            "guest4" => v4.map(|v4| format!("{}/{}", v4.guest, v4.prefix_len)),
            "gateway4" => v4.map(|v4| v4.gateway.to_string()),
            "dns4" => v4.and_then(|v4| v4.dns).map(|dns| dns.to_string()),
            "guest6" => v6.map(|v6| format!("{}/{}", v6.guest, v6.prefix_len)),
            "gateway6" => v6.map(|v6| v6.gateway.to_string()),
            "dns6" => v6.and_then(|v6| v6.dns).map(|dns| dns.to_string()),
            name => return Err(Failure::invalid(format!("there is no address '{name}'"))),
        };
        // SAFETY: the caller promises that the buffer can be written.
        let len = unsafe { text::write(&found.unwrap_or_default(), buffer, size)? };
        Ok(c_int::try_from(len).unwrap_or(c_int::MAX))
    })
}

fn change(
    network: *const pontoon_network,
    make: impl FnOnce(&mut Network) -> Result<(), pontoon::Error>,
) -> c_int {
    call(|| {
        // SAFETY: the callers of the exported functions promise that the network is valid.
        let network = unsafe { self::network(network)? };
        make(&mut *network.lock()?)?;
        Ok(0)
    })
}

fn change_by(
    network: *const pontoon_network,
    text: *const c_char,
    make: impl FnOnce(&mut Network, &str) -> Result<(), pontoon::Error>,
) -> c_int {
    call(|| {
        // SAFETY: the callers of the exported functions promise that both are valid.
        let (network, text) = unsafe { (self::network(network)?, text::read(text)?) };
        make(&mut *network.lock()?, text)?;
        Ok(0)
    })
}
