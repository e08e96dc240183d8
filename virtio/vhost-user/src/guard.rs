//! Handling of SIGBUS in mapped files that are truncated.
//!
//! The guest's memory is a file that the front-end can truncate at any time; a file in hugetlbfs can also run out of
//! pages. Access to a missing page raises SIGBUS. Sealing would prevent only truncation, and few front-ends seal the
//! file (QEMU's memory-backend-memfd does; Cloud Hypervisor and DPDK do not). So the signal handler maps zeroed memory
//! over the region and marks the region as faulted, which its users check between bursts. The process and other
//! regions, queues and sessions continue. System calls return EFAULT instead of raising the signal.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use vm_memory::MmapRegion;

/// Protection of a mapped file against SIGBUS, for as long as this value exists. It must be dropped before the mapping.
#[derive(Debug)]
pub(crate) struct MappingGuard(&'static ProtectedMapping);

/// Limit on the number of protected mappings in the process. A session has at most [`crate::memory::MAX_REGIONS`], and
/// as many again while the memory table is being replaced; tests run several sessions at once.
const SLOTS: usize = 1024;

impl MappingGuard {
    /// Protects the mapping `map`.
    ///
    /// # Errors
    /// The SIGBUS handler cannot be installed, or too many mappings are protected.
    pub(crate) fn new(map: &MmapRegion) -> io::Result<Self> {
        install()?;
        let begin = map.as_ptr().addr();
        // mmap rounds the length up to whole pages, and the replacement has the same length.
        let slot = TABLE.iter().find(|slot| slot.claim(begin, map.size()));
        slot.map(Self)
            .ok_or_else(|| io::Error::other(format!("more than {SLOTS} protected mappings")))
    }

    /// Returns true if an access has found a missing page.
    pub(crate) fn has_faulted(&self) -> bool {
        self.0.faulted.load(Ordering::Relaxed)
    }
}

impl Drop for MappingGuard {
    fn drop(&mut self) {
        self.0.begin.store(FREE, Ordering::Release);
    }
}

/// A protected mapping in the table that the signal handler searches.
#[derive(Debug)]
struct ProtectedMapping {
    /// Address of the mapping, or [`FREE`] or [`CLAIMED`].
    begin: AtomicUsize,
    len: AtomicUsize,
    faulted: AtomicBool,
}

const FREE: usize = 0;
/// Address of an entry that is being filled in; no mapping begins there.
const CLAIMED: usize = 1;

static TABLE: [ProtectedMapping; SLOTS] = [const {
    ProtectedMapping {
        begin: AtomicUsize::new(FREE),
        len: AtomicUsize::new(0),
        faulted: AtomicBool::new(false),
    }
}; SLOTS];

impl ProtectedMapping {
    fn claim(&self, begin: usize, len: usize) -> bool {
        let claimed = self
            .begin
            .compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if claimed {
            self.faulted.store(false, Ordering::Relaxed);
            self.len.store(len, Ordering::Relaxed);
            self.begin.store(begin, Ordering::Release);
        }
        claimed
    }

    /// Replaces the mapping by zeroed memory if it contains `address`.
    ///
    /// The thread that faults in a mapping holds its [`MappingGuard`], so the entry of that mapping does not change at
    /// the same time. Other entries may, but a mapping that is removed while its entry is read does not contain
    /// `address`.
    fn replace(&self, address: usize) -> bool {
        let begin = self.begin.load(Ordering::Acquire);
        let len = self.len.load(Ordering::Relaxed);
        let covers = begin > CLAIMED && address.checked_sub(begin).is_some_and(|at| at < len);
        if !covers || self.begin.load(Ordering::Acquire) != begin {
            return false;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // The replacement is shared, as the file's mapping was: a private one would count against RLIMIT_DATA, which
        // the guest's memory may exceed.
        let flags = libc::MAP_FIXED | libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let place = ptr::without_provenance_mut(begin);
        // SAFETY: the range is a mapping of a `MappingGuard`, which its owner has not unmapped yet. The replacement
        // keeps all of it mapped, readable and writable. Nothing in this process relies on its content.
        let mapped = unsafe { libc::mmap(place, len, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return false;
        }
        self.faulted.store(true, Ordering::Relaxed);
        true
    }
}

/// Installs the SIGBUS handler of this process. The handler passes faults outside of protected mappings to the previous
/// handler. A handler that is installed later must pass faults to this one.
///
/// # Errors
/// Errors of sigaction(2).
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

/// The action for SIGBUS before this handler was installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO. For a fault (a positive code) it holds
    // an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // SAFETY: the location is this thread's, always valid.
    let errno = unsafe { *libc::__errno_location() };
    let fault = code > 0;
    if !(fault && TABLE.iter().any(|slot| slot.replace(address))) {
        // SAFETY: all-zero bytes are a `sigaction`: the default action.
        let default: libc::sigaction = unsafe { std::mem::zeroed() };
        let previous = PREVIOUS.get().unwrap_or(&default);
        match previous.sa_sigaction {
            libc::SIG_IGN if !fault => {}
            libc::SIG_DFL | libc::SIG_IGN => restore(signal, previous, fault),
            _ => call_previous(signal, info, context, previous),
        }
    }
    // SAFETY: the location is this thread's. The interrupted code may be about to read its errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Calls the previous handler for a fault outside of protected mappings. This handler stays installed for later faults,
/// because the previous one may resolve this one.
fn call_previous(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    previous: &libc::sigaction,
) {
    // Some previous handlers, such as that of the standard library, do not resolve the fault but reset the action, so
    // that the next fault ends the process. In a sandbox that forbids `sigaction` the fault would repeat forever.
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call writes to a live `sigaction` and is async-signal-safe.
    if unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) } != 0 {
        exit(signal);
    }
    match previous.sa_flags & libc::SA_SIGINFO {
        0 => {
            // SAFETY: the value is neither SIG_DFL nor SIG_IGN, and SA_SIGINFO is not set, so it is a function with one
            // argument.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(previous.sa_sigaction) };
            handler(signal);
        }
        _ => {
            // SAFETY: the value is neither SIG_DFL nor SIG_IGN, and SA_SIGINFO is set, so it is a function with three
            // arguments.
            let handler: Action = unsafe { std::mem::transmute(previous.sa_sigaction) };
            handler(signal, info, context);
        }
    }
}

/// Restores the previous action (default or ignore) for a signal outside of protected mappings. A fault occurs again
/// when this handler returns.
fn restore(signal: libc::c_int, previous: &libc::sigaction, fault: bool) {
    // SAFETY: the call restores the action that was set before; `sigaction` is async-signal-safe.
    let set = unsafe { libc::sigaction(signal, previous, ptr::null_mut()) };
    if set != 0 {
        // In a sandbox that forbids `sigaction` the fault would repeat forever.
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

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::File;
    use std::process::Command;

    use rustix::fs::{MemfdFlags, memfd_create};
    use vm_memory::FileOffset;

    use super::*;

    const CHILD: &str = "PONTOON_TEST_DATA_LIMIT";
    const LIMIT: libc::rlim_t = 128 << 20;
    const LEN: usize = 512 << 20;

    /// Reads a page behind the end of the file of a mapping that is larger than RLIMIT_DATA, and then allocates memory.
    fn fault_in_a_large_mapping() {
        let limit = libc::rlimit {
            rlim_cur: LIMIT,
            rlim_max: LIMIT,
        };
        // SAFETY: the call reads a live `rlimit`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) }, 0);
        let file = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(LEN as u64).unwrap();
        let map = MmapRegion::<()>::from_file(FileOffset::new(file.try_clone().unwrap(), 0), LEN).unwrap();
        let guard = MappingGuard::new(&map).unwrap();
        file.set_len(0).unwrap();
        // SAFETY: the page is mapped for as long as `map` exists.
        assert_eq!(unsafe { map.as_ptr().read_volatile() }, 0);
        assert!(guard.has_faulted());
        // The kernel refuses memory to a process above the limit.
        if Vec::<u8>::new().try_reserve_exact(16 << 20).is_err() {
            // A panic would allocate memory.
            std::process::abort();
        }
    }

    /// RLIMIT_DATA applies to a whole process, so the test runs in its own process.
    #[test]
    fn truncated_file_larger_than_the_data_limit_leaves_memory_to_the_process() {
        if env::var_os(CHILD).is_some() {
            return fault_in_a_large_mapping();
        }
        // AddressSanitizer's shadow memory exceeds the limit.
        if env::var("PONTOON_DISABLE").is_ok_and(|disabled| disabled.split(',').any(|word| word == "limits"))
        {
            eprintln!("SKIPPED: memory of the process cannot be limited");
            return;
        }
        let mut child = Command::new(env::current_exe().unwrap());
        child.args([
            "--exact",
            "guard::tests::truncated_file_larger_than_the_data_limit_leaves_memory_to_the_process",
        ]);
        let ended = child.env(CHILD, "1").output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    }
}
