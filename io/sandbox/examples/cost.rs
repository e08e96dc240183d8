//! Measures the cost of the engine's seccomp filter per system call: `cargo run --release -p pontoon-sandbox --example
//! cost`.
//!
//! The measured calls fail at once, so that little but the filter takes time: a call that is allowed with all
//! arguments, for which the kernel caches the result (Linux 5.11 and later), and calls whose arguments the filter
//! checks each time.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use pontoon_sandbox::{Namespaces, Role, Sandbox};
use pontoon_sys::disabled::Disabled;

const CALLS: u32 = 2_000_000;
const ROUNDS: usize = 9;

fn main() -> io::Result<()> {
    let all = || [any_argument, some_arguments, option].map(median);
    let without = all();
    let sandbox = Sandbox {
        role: Role::Engine,
        namespaces: Namespaces::NONE,
        required: false,
    };
    let disabled = Disabled {
        namespaces: true,
        landlock: true,
        ..Disabled::default()
    };
    let layers = sandbox.enter(&disabled)?;
    let with = all();
    let mut out = io::stdout();
    writeln!(out, "{layers}")?;
    for (what, (without, with)) in ["any argument", "some arguments", "a socket option"]
        .iter()
        .zip(without.iter().zip(with))
    {
        writeln!(out, "{what}: {without:.0} ns, then {with:.0} ns a call")?;
    }
    Ok(())
}

/// Returns the median time of one call in nanoseconds.
fn median(call: fn()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| call());
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_unstable_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// Calls close(2) with an invalid descriptor.
fn any_argument() {
    // SAFETY: the descriptor is invalid, so the call closes none.
    black_box(unsafe { libc::close(-1) });
}

/// Calls mprotect(2) with a length of zero.
fn some_arguments() {
    // SAFETY: with a length of zero the call changes no page.
    black_box(unsafe { libc::mprotect(std::ptr::null_mut(), 0, libc::PROT_READ) });
}

/// Calls setsockopt(2) with an invalid descriptor.
fn option() {
    let (level, name) = (libc::SOL_IPV6, libc::IPV6_RECVPKTINFO);
    // SAFETY: the descriptor is invalid, so the call reads no memory.
    black_box(unsafe { libc::setsockopt(-1, level, name, std::ptr::null(), 0) });
}
