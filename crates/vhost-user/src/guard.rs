//! Files that shrink under us.
//!
//! The guest's memory is a file of the front-end's, which can truncate it at any moment; a file in hugetlbfs can also run
//! out of pages. An access to a page that is not there is SIGBUS. Sealing would prevent the first only, and few
//! front-ends seal (QEMU's memory-backend-memfd does; Cloud Hypervisor and DPDK do not). So the signal is handled: memory
//! of zeros takes the region's place, and the region is marked as broken, which its users look at between bursts. The
//! process lives, and other regions, queues and sessions go on. System calls see EFAULT instead of a signal.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use vm_memory::MmapRegion;

/// A mapping of somebody else's file, watched for as long as this lives: drop it before the mapping.
#[derive(Debug)]
pub(crate) struct Watch(&'static Slot);

/// Mappings at a time. Each session has at most [`crate::memory::MAX_REGIONS`], and one more set while the table is
/// being replaced; tests run some at once.
const SLOTS: usize = 1024;

impl Watch {
    /// Watches `map` from now on.
    ///
    /// # Errors
    /// The handler cannot be installed, or too many mappings are watched.
    pub(crate) fn new(map: &MmapRegion) -> io::Result<Self> {
        install()?;
        let begin = map.as_ptr().addr();
        // Lengths are rounded up by mmap, and so is what the handler replaces.
        let slot = SLOTS_OF_ALL.iter().find(|slot| slot.claim(begin, map.size()));
        slot.map(Self)
            .ok_or_else(|| io::Error::other(format!("more than {SLOTS} mappings")))
    }

    /// Whether a page was missing.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.begin.store(FREE, Ordering::Release);
    }
}

/// One watched mapping.
#[derive(Debug)]
struct Slot {
    /// Its address, or [`FREE`], or [`CLAIMED`].
    begin: AtomicUsize,
    len: AtomicUsize,
    broken: AtomicBool,
}

const FREE: usize = 0;
/// No mapping begins here.
const CLAIMED: usize = 1;

static SLOTS_OF_ALL: [Slot; SLOTS] = [const {
    Slot {
        begin: AtomicUsize::new(FREE),
        len: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    }
}; SLOTS];

impl Slot {
    fn claim(&self, begin: usize, len: usize) -> bool {
        let claimed = self
            .begin
            .compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if claimed {
            self.broken.store(false, Ordering::Relaxed);
            self.len.store(len, Ordering::Relaxed);
            self.begin.store(begin, Ordering::Release);
        }
        claimed
    }

    /// Puts zeros in the place of the mapping, if `address` is in it.
    ///
    /// Whoever faults in a mapping keeps its watch alive, so that the right slot does not change meanwhile. Others may,
    /// but a mapping that is gone from one slot while it is read is not one that `address` is in.
    fn replace(&self, address: usize) -> bool {
        let begin = self.begin.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed);
        let covers = begin > CLAIMED && address.checked_sub(begin).is_some_and(|at| at < len);
        if !covers || self.begin.load(Ordering::Acquire) != begin {
            return false;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let place = ptr::without_provenance_mut(begin);
        // SAFETY: the range is a mapping that a `Watch` stands for, which its owner has not unmapped yet; replacing it
        // keeps all of it mapped, readable and writable. Nothing in this process relies on its content.
        let mapped = unsafe { libc::mmap(place, len, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return false;
        }
        self.broken.store(true, Ordering::Relaxed);
        true
    }
}

/// Handles SIGBUS in this process from now on. What is none of ours goes to whoever handled it before; who comes later has
/// to pass on to this.
///
/// # Errors
/// The kernel's.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: all-zero bytes are a `sigaction`: the default action, no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: Action = handle;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut previous = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: both point to live `sigaction`s; `handle` makes async-signal-safe calls only.
        let result = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, previous.as_mut_ptr()) };
        if result != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
        }
        // SAFETY: the call has succeeded, so that it has been written.
        let _ = PREVIOUS.set(unsafe { previous.assume_init() });
        Ok(())
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// What happened on SIGBUS before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO. For a fault (a positive code) it holds
    // an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // SAFETY: the location is this thread's, always valid.
    let errno = unsafe { *libc::__errno_location() };
    let fault = code > 0;
    if !(fault && SLOTS_OF_ALL.iter().any(|slot| slot.replace(address))) {
        // SAFETY: all-zero bytes are a `sigaction`: the default action.
        let default: libc::sigaction = unsafe { std::mem::zeroed() };
        let previous = PREVIOUS.get().unwrap_or(&default);
        match previous.sa_sigaction {
            libc::SIG_IGN if !fault => {}
            libc::SIG_DFL | libc::SIG_IGN => restore(signal, previous, fault),
            _ => pass_on(signal, info, context, previous),
        }
    }
    // SAFETY: as above. The interrupted code may be about to read it.
    unsafe { *libc::__errno_location() = errno };
}

/// Not ours, but another handler's, which may mend it: ours stays, for what comes later.
fn pass_on(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    previous: &libc::sigaction,
) {
    // The standard library's, for one, mends nothing, but has the next fault end the process. Where a sandbox does not let
    // it, the fault would happen again and again.
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: it writes to a live `sigaction`; the call is async-signal-safe.
    if unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) } != 0 {
        exit(signal);
    }
    match previous.sa_flags & libc::SA_SIGINFO {
        0 => {
            // SAFETY: neither SIG_DFL nor SIG_IGN, and without SA_SIGINFO: a function that takes the signal.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(previous.sa_sigaction) };
            handler(signal);
        }
        _ => {
            // SAFETY: neither SIG_DFL nor SIG_IGN, and with SA_SIGINFO: a function that takes all three.
            let handler: Action = unsafe { std::mem::transmute(previous.sa_sigaction) };
            handler(signal, info, context);
        }
    }
}

/// Not ours, and nobody's: as it would be without us. A fault happens again when the handler returns.
fn restore(signal: libc::c_int, previous: &libc::sigaction, fault: bool) {
    // SAFETY: sets what was set before; `sigaction` is async-signal-safe.
    let set = unsafe { libc::sigaction(signal, previous, ptr::null_mut()) };
    if set != 0 {
        // In a sandbox that does not let it: the fault would happen again and again.
        exit(signal);
    }
    if !fault {
        // SAFETY: `raise` is async-signal-safe.
        unsafe { libc::raise(signal) };
    }
}

fn exit(signal: libc::c_int) -> ! {
    // SAFETY: `_exit` is async-signal-safe.
    unsafe { libc::_exit(128 + signal) }
}
