//! Global allocator that counts the allocations of one thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// True if allocations of this thread are counted. The variable needs neither memory nor a destructor, so that an
    /// allocator may read it.
    static JUDGED: Cell<bool> = const { Cell::new(false) };
}
static STEADY: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static FIRST: OnceLock<Backtrace> = OnceLock::new();

/// Begins to count the allocations of the calling thread.
pub(crate) fn judge_this_thread() {
    JUDGED.set(true);
}

/// Counts the allocations of the counted threads while `steady` runs. Returns their number and the backtrace of the first.
pub(crate) fn during(steady: impl FnOnce()) -> (u64, Option<&'static Backtrace>) {
    STEADY.store(true, Relaxed);
    steady();
    STEADY.store(false, Relaxed);
    (COUNT.load(Relaxed), FIRST.get())
}

fn count() {
    if JUDGED.get() && STEADY.load(Relaxed) {
        // Allocations for the backtrace are not counted.
        JUDGED.set(false);
        COUNT.fetch_add(1, Relaxed);
        FIRST.get_or_init(Backtrace::force_capture);
        JUDGED.set(true);
    }
}

struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator; counting neither unwinds nor touches the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc_zeroed`, which is that of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `GlobalAlloc::realloc`; `memory` came from `System`, like all memory
        // of this allocator.
        unsafe { System.realloc(memory, layout, len) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`; `memory` came from `System`, like all memory
        // of this allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[test]
fn every_allocation_of_the_counted_thread_is_counted() {
    let mut list = Vec::new();
    let mut allocate = || {
        list = std::hint::black_box(Vec::<u8>::with_capacity(1));
        list.reserve_exact(4096);
        std::hint::black_box(vec![0_u8; 4096]);
    };
    let (before, _) = during(&mut allocate);
    judge_this_thread();
    allocate();
    let (after, first) = during(&mut allocate);
    JUDGED.set(false);
    assert_eq!((before, after), (0, 3));
    assert!(
        first
            .unwrap()
            .to_string()
            .contains("every_allocation_of_the_counted_thread_is_counted")
    );
}
