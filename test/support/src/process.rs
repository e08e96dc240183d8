//! Runs a test in a process of its own, and closes sockets of which the processes of other tests may hold copies.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, WaitOptions, waitpid};

/// Closes a socket that is bound to a port, and frees the port at once: a process that another test has just forked may
/// hold a copy of the descriptor until it calls execve(2).
pub fn close_port(socket: impl Into<OwnedFd>) {
    rustix::net::connect_unspec(socket.into()).unwrap();
}

/// Ports that the kernel assigns to no socket by itself (`ip_local_port_range` begins at 32768 by default), so that
/// connections of other tests do not take one between its choice and its use.
const PORTS: std::ops::Range<u32> = 12_000..32_000;

/// Returns a TCP port that no socket has. It differs from those of previous calls in this process, whose connections
/// may be in TIME-WAIT.
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let ports = PORTS.end - PORTS.start;
    // Processes of tests that run at the same time begin at different ports.
    let first = std::process::id().wrapping_mul(7919);
    for _ in 0..ports {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(PORTS.start + first.wrapping_add(call) % ports).unwrap();
        let listeners = [
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
            TcpListener::bind((Ipv6Addr::LOCALHOST, port)),
        ];
        let is_used = |bound: &io::Result<TcpListener>| matches!(bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse);
        let is_free = !listeners.iter().any(is_used);
        listeners.into_iter().flatten().for_each(close_port);
        if is_free {
            return port;
        }
    }
    panic!("no TCP port is free");
}

const INSIDE: &str = "PONTOON_TEST_INSIDE";

/// Exit status of a child that panicked, the same as of Rust's standard library.
const PANICKED: u8 = 101;

/// In the test harness, runs the test with this full name in a new process and returns its output. In that process
/// returns `None`.
#[track_caller]
pub fn alone(name: &str) -> Option<Output> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(output)
}

/// Runs `body` in a single-threaded child process, and returns its exit status, or 128 plus the number of the signal
/// that has killed it. The test with the full name `name` is first run again in a new process, so that the child has
/// no descriptors of other tests.
#[track_caller]
pub fn in_child(name: &str, body: impl FnOnce() -> u8) -> u8 {
    if let Some(output) = alone(name) {
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("1 passed"), "{printed}{output:?}");
        // The test harness does not capture direct writes to standard error.
        std::io::stderr().write_all(&output.stderr).unwrap();
        return 0;
    }
    // SAFETY: the child has a copy of its one thread. glibc keeps its allocator usable after a fork, and the child takes no
    // lock of the test harness: it prints nothing, and `_exit` runs no exit handlers.
    match unsafe { libc::fork() } {
        0 => {
            let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
            // SAFETY: the call takes a number and does not return.
            unsafe { libc::_exit(status.into()) }
        }
        pid => {
            let (_, status) = waitpid(Pid::from_raw(pid), WaitOptions::empty())
                .unwrap()
                .unwrap();
            let by_signal = status.terminating_signal().map(|number| number + 128);
            let status = status.exit_status().or(by_signal).unwrap();
            u8::try_from(status).unwrap()
        }
    }
}
