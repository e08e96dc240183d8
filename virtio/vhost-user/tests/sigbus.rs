//! Tests that SIGBUS outside of guest memory behaves as in a process without a device. Each case runs in its own
//! process, because the handler is never removed.

// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, ptr};

use pontoon_vhost_user::Backend;
use rustix::fs::{MemfdFlags, memfd_create};
use vm_memory::{FileOffset, MmapRegion};

const CASE: &str = "PONTOON_TEST_SIGBUS";
const PAGE: usize = 4096;

/// Address of the missing page.
static PLACE: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Handles SIGBUS by mapping a page of zeros in place of the missing one.
extern "C" fn plain(signal: libc::c_int) {
    assert_eq!(signal, libc::SIGBUS);
    let place = ptr::without_provenance_mut(PLACE.load(Ordering::Relaxed));
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the place is a mapping of the test's, of that length.
    let mapped = unsafe { libc::mmap(place, PAGE, libc::PROT_READ, flags, -1, 0) };
    assert_eq!(mapped, place);
    CALLS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn informed(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: this is called for faults, of which it holds the address.
    let address = unsafe { (*info).si_addr().addr() };
    assert_eq!(address, PLACE.load(Ordering::Relaxed));
    plain(signal);
}

/// Sets the handler of SIGBUS.
fn set(handler: usize, flags: libc::c_int) {
    // SAFETY: all-zero bytes are a `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: the call reads a live `sigaction`, whose handler has the type that its flags require.
    let result = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// Returns the current handler of SIGBUS.
fn current() -> usize {
    // SAFETY: all-zero bytes are a `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to a live `sigaction`.
    let result = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut action) };
    assert_eq!(result, 0);
    action.sa_sigaction
}

/// Reads a page behind the end of its file.
fn fault() {
    let file = File::from(memfd_create("some", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(PAGE as u64).unwrap();
    let map = MmapRegion::<()>::from_file(FileOffset::new(file.try_clone().unwrap(), 0), PAGE).unwrap();
    file.set_len(0).unwrap();
    PLACE.store(map.as_ptr().addr(), Ordering::Relaxed);
    // SAFETY: the page is mapped for as long as `map` exists.
    assert_eq!(unsafe { map.as_ptr().read_volatile() }, 0);
}

fn raise() {
    // SAFETY: the call accesses no memory.
    assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0);
}

fn case(name: &str) {
    match name {
        "plain" => set(plain as extern "C" fn(_) as usize, 0),
        "informed" => set(informed as extern "C" fn(_, _, _) as usize, libc::SA_SIGINFO),
        "ignored" => set(libc::SIG_IGN, 0),
        _ => set(libc::SIG_DFL, 0),
    }
    let before = current();
    let _device = Backend::new(1, 1500).unwrap();
    let installed = current();
    assert_ne!(installed, before);
    for round in 1..=3 {
        match name {
            "plain" | "informed" => {
                fault();
                assert_eq!(CALLS.load(Ordering::Relaxed), round);
            }
            _ => raise(),
        }
        assert_eq!(current(), installed, "round {round}");
    }
}

#[test]
fn previous_sigbus_action_is_kept() {
    if let Ok(name) = env::var(CASE) {
        return case(&name);
    }
    for (name, signal) in [
        ("plain", None),
        ("informed", None),
        ("ignored", None),
        ("default", Some(libc::SIGBUS)),
    ] {
        let mut again = Command::new(env::current_exe().unwrap());
        again.args(["--exact", "previous_sigbus_action_is_kept"]);
        let ended = again.env(CASE, name).output().unwrap();
        assert_eq!(ended.status.signal(), signal, "{name}: {ended:?}");
        assert_eq!(ended.status.success(), signal.is_none(), "{name}: {ended:?}");
    }
}
