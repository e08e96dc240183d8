//! Operations that each layer of the sandbox refuses when it is the only active layer, so that a gap in one layer is
//! covered by another.
//!
//! The program does not use the test harness, because a process with several threads cannot enter a user namespace.
//! Each operation is tried in a child of this program's only thread; the child enters the sandbox first.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use pontoon_sandbox::{Layer, Namespaces, ResourceLimits, Role, Sandbox, namespaces, trap};
use pontoon_sys::disabled::Disabled;

/// The only active layer of a child.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SingleLayer {
    /// The restrictions that no host refuses: no capability, `no_new_privs`, not dumpable.
    Nothing,
    Namespaces,
    Landlock,
    Seccomp,
}

/// An operation that a child tries. It returns errno, or 0 on success.
type Attempt = fn() -> i32;

const ABSTRACT: &str = "pontoon-sandbox-layers";

fn main() -> ExitCode {
    // Open until the last child has exited.
    let _listener =
        SocketAddr::from_abstract_name(ABSTRACT).and_then(|address| UnixListener::bind_addr(&address));
    let attempts: [(&str, SingleLayer, Attempt, i32); 19] = [
        ("mount", SingleLayer::Nothing, mount, libc::EPERM),
        (
            "enter the host's namespaces",
            SingleLayer::Nothing,
            setns,
            libc::EPERM,
        ),
        (
            "map more memory than the limit",
            SingleLayer::Nothing,
            memory,
            libc::ENOMEM,
        ),
        ("be dumpable", SingleLayer::Nothing, dumpable, 0),
        ("open a file", SingleLayer::Namespaces, open, libc::ENOENT),
        ("signal the parent", SingleLayer::Namespaces, signal, libc::ESRCH),
        ("mount", SingleLayer::Namespaces, mount, libc::EPERM),
        ("open a file", SingleLayer::Landlock, open, libc::EACCES),
        ("trace the parent", SingleLayer::Landlock, trace, libc::EPERM),
        ("signal the parent", SingleLayer::Landlock, signal, libc::EPERM),
        (
            "send to an abstract socket",
            SingleLayer::Landlock,
            send_to_abstract_socket,
            libc::EPERM,
        ),
        ("open a file", SingleLayer::Seccomp, open, libc::EPERM),
        ("signal the parent", SingleLayer::Seccomp, signal, libc::EPERM),
        (
            "send to an abstract socket",
            SingleLayer::Seccomp,
            send_to_abstract_socket,
            libc::EPERM,
        ),
        ("make a descriptor non-blocking", SingleLayer::Seccomp, unblock, 0),
        (
            "make another ioctl request",
            SingleLayer::Seccomp,
            request,
            libc::EPERM,
        ),
        (
            "write IP headers",
            SingleLayer::Seccomp,
            write_headers,
            libc::EPERM,
        ),
        (
            "set the options that a flow needs",
            SingleLayer::Seccomp,
            set_needed_options,
            0,
        ),
        ("count refused calls", SingleLayer::Seccomp, counted, 0),
    ];
    let mut failed = false;
    for (what, only, attempt, wanted) in attempts {
        let verdict = match tried(only, attempt) {
            AttemptOutcome::Answered(errno) if errno == wanted => "ok".to_owned(),
            AttemptOutcome::Answered(errno) => {
                failed = true;
                format!("FAILED: errno {errno} instead of {wanted}")
            }
            AttemptOutcome::Refused => "SKIPPED: the host does not have the layer".to_owned(),
            AttemptOutcome::Killed(status) => {
                failed = true;
                format!("FAILED: wait status {status:#x}")
            }
        };
        eprintln!("{what}, {}: {verdict}", name(only));
    }
    let ends: [(&str, SingleLayer, Attempt, i32); 4] = [
        ("abort", SingleLayer::Seccomp, abort, ABORT_SIGNAL),
        (
            "access address 0",
            SingleLayer::Seccomp,
            access_null,
            libc::SIGSEGV,
        ),
        (
            "overflow the stack",
            SingleLayer::Seccomp,
            overflow_stack,
            libc::SIGSEGV,
        ),
        (
            "access address 0",
            SingleLayer::Namespaces,
            access_null,
            libc::SIGSEGV,
        ),
    ];
    for (what, only, attempt, signal) in ends {
        let verdict = match tried(only, attempt) {
            AttemptOutcome::Killed(status)
                if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal =>
            {
                "ok".to_owned()
            }
            AttemptOutcome::Refused => "SKIPPED: the host does not have the layer".to_owned(),
            AttemptOutcome::Answered(errno) => {
                failed = true;
                format!("FAILED: the process goes on, errno {errno}")
            }
            AttemptOutcome::Killed(status) => {
                failed = true;
                format!("FAILED: wait status {status:#x}")
            }
        };
        eprintln!("{what}, {}: {verdict}", name(only));
    }
    match failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn name(only: SingleLayer) -> &'static str {
    match only {
        SingleLayer::Nothing => "no capability alone",
        SingleLayer::Namespaces => "namespaces alone",
        SingleLayer::Landlock => "Landlock alone",
        SingleLayer::Seccomp => "seccomp alone",
    }
}

enum AttemptOutcome {
    Answered(i32),
    Refused,
    Killed(i32),
}

/// Exit status of a child if the host does not support the layer.
const REFUSED: i32 = 255;

fn tried(only: SingleLayer, attempt: Attempt) -> AttemptOutcome {
    let disabled = Disabled {
        namespaces: only != SingleLayer::Namespaces,
        landlock: only != SingleLayer::Landlock,
        seccomp: only != SingleLayer::Seccomp,
        ..Disabled::default()
    };
    let status = namespaces::choices(&disabled)
        .into_iter()
        .find_map(|namespaces| child(namespaces, &disabled, attempt));
    match status {
        None => AttemptOutcome::Refused,
        Some(status) if libc::WIFEXITED(status) => match libc::WEXITSTATUS(status) {
            REFUSED => AttemptOutcome::Refused,
            errno => AttemptOutcome::Answered(errno),
        },
        Some(status) => AttemptOutcome::Killed(status),
    }
}

/// Returns the wait status of a child that enters the sandbox and tries the operation; `None` if the child cannot be
/// cloned.
fn child(namespaces: Namespaces, disabled: &Disabled, attempt: Attempt) -> Option<i32> {
    let flags = namespaces.flags() | libc::SIGCHLD;
    // SAFETY: without CLONE_VM this is fork(2), by the only thread of this program; the pointers are unused.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if pid == 0 {
        let sandbox = Sandbox {
            role: Role::Engine,
            namespaces,
            required: false,
        };
        let code = match sandbox.enter(disabled) {
            Ok(layers) if layers.iter().all(|(_, layer)| stands(layer)) => attempt(),
            Ok(_) | Err(_) => REFUSED,
        };
        // SAFETY: the call ends the child; none of the parent's destructors runs in it.
        unsafe { libc::_exit(code) };
    }
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let mut status = 0;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        // SAFETY: `status` is a live int that the call writes.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
            // SAFETY: the child has not been reaped, so that its number is still its own.
            0 => drop(unsafe { libc::kill(pid, libc::SIGKILL) }),
            waited => return (waited == pid).then_some(status),
        }
    }
}

/// Returns true if the layer is active or disabled; for Landlock, only in a version that restricts signals and abstract
/// sockets (Linux 6.12).
fn stands(layer: &Layer) -> bool {
    match layer {
        Layer::Active(form) => form
            .strip_prefix("version ")
            .is_none_or(|version| version.parse().is_ok_and(|version: u32| version >= 6)),
        Layer::Refused(_) => false,
        Layer::Disabled => true,
    }
}

fn errno(result: i64) -> i32 {
    match result {
        -1 => io::Error::last_os_error().raw_os_error().unwrap_or(-1),
        _ => 0,
    }
}

/// Signal by which abort(3) ends the process, as the process may not signal itself. With glibc it is that of the last
/// instruction, `hlt` on x86-64 and `brk` on aarch64. musl blocks all signals first, and the kernel ends a process in which
/// SIGSYS is blocked.
const ABORT_SIGNAL: i32 = match (cfg!(target_env = "musl"), cfg!(target_arch = "aarch64")) {
    (true, _) => libc::SIGSYS,
    (false, true) => libc::SIGTRAP,
    (false, false) => libc::SIGSEGV,
};

fn abort() -> i32 {
    std::process::abort()
}

fn access_null() -> i32 {
    // The standard library's handler of faults is that of every process of the product.
    // SAFETY: none: the access faults, which ends the process, as the caller expects.
    unsafe { std::ptr::null::<i32>().read_volatile() }
}

fn overflow_stack() -> i32 {
    #[inline(never)]
    fn deeper(depth: i32) -> i32 {
        let room = std::hint::black_box([depth; 1024]);
        match depth {
            i32::MAX => 0,
            _ => deeper(depth + 1) + room[0],
        }
    }
    deeper(0)
}

fn open() -> i32 {
    // SAFETY: the path is a C string; a descriptor that the call opens is closed when the process exits.
    errno(unsafe { libc::open(c"/etc/passwd".as_ptr(), libc::O_RDONLY) }.into())
}

fn mount() -> i32 {
    let (kind, place) = (c"tmpfs".as_ptr(), c"/".as_ptr());
    // SAFETY: both arguments are C strings, and the data may be null.
    errno(unsafe { libc::mount(kind, place, kind, 0, std::ptr::null()) }.into())
}

/// Tries to enter a UTS namespace; setns(2) is refused for every type. The network namespace is not tried, as the
/// process is in the host's already.
fn setns() -> i32 {
    // SAFETY: neither call accesses memory of the process. An invalid descriptor would yield EBADF.
    let opened = unsafe { libc::open(c"/proc/self/ns/uts".as_ptr(), libc::O_RDONLY) };
    // SAFETY: setns(2) accesses no memory of the process.
    errno(unsafe { libc::setns(opened, libc::CLONE_NEWUTS) }.into())
}

/// Maps half of the limit on memory, which works, then twice the limit, which fails.
fn memory() -> i32 {
    const LIMIT: u32 = 256 << 20;
    let sandbox = Sandbox {
        role: Role::Engine,
        namespaces: Namespaces::NONE,
        required: false,
    };
    let limits = ResourceLimits {
        memory: LIMIT.into(),
        threads: 1,
    };
    if sandbox.limit(limits, &Disabled::default()).is_err() {
        return -1;
    }
    let map = |len: u32| {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: the call maps new memory, which is unmapped when the process exits.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED { errno(-1) } else { 0 }
    };
    match map(LIMIT / 2) {
        0 => map(2 * LIMIT),
        _ => -1,
    }
}

/// Returns 0 if the process is not dumpable: no core dump, and no access to its memory by other processes of the user
/// (`SUID_DUMP_DISABLE`).
fn dumpable() -> i32 {
    // SAFETY: the call accesses no memory.
    unsafe { libc::prctl(libc::PR_GET_DUMPABLE) }
}

fn trace() -> i32 {
    // SAFETY: PTRACE_ATTACH accesses no memory of this process.
    errno(unsafe { libc::ptrace(libc::PTRACE_ATTACH, libc::getppid(), 0, 0) })
}

fn signal() -> i32 {
    // In an own PID namespace the parent has no process id; any other id serves the test.
    // SAFETY: signal 0 is not sent; the kernel only checks the permission.
    let parent = match unsafe { libc::getppid() } {
        0 => 2,
        parent => parent,
    };
    // SAFETY: signal 0 is not sent, and the call accesses no memory.
    errno(unsafe { libc::kill(parent, 0) }.into())
}

fn send_to_abstract_socket() -> i32 {
    let spoken =
        SocketAddr::from_abstract_name(ABSTRACT).and_then(|address| UnixStream::connect_addr(&address));
    spoken.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| 0)
}

fn unblock() -> i32 {
    let unblocked = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.set_nonblocking(true));
    unblocked.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |()| 0)
}

fn request() -> i32 {
    let mut waiting: libc::c_int = 0;
    // SAFETY: `waiting` is a live int to which the call writes.
    errno(unsafe { libc::ioctl(0, libc::FIONREAD, &raw mut waiting) }.into())
}

/// Tries IP_HDRINCL on a UDP socket, as raw sockets need privilege. Without the filter the kernel returns ENOPROTOOPT.
fn write_headers() -> i32 {
    set(libc::SOL_IP, libc::IP_HDRINCL)
}

fn set_needed_options() -> i32 {
    [
        (libc::SOL_IP, libc::IP_TTL),
        (libc::SOL_SOCKET, libc::SO_RCVBUF),
        (libc::SOL_UDP, libc::UDP_GRO),
    ]
    .into_iter()
    .map(|(level, name)| set(level, name))
    .find(|errno| *errno != 0)
    .unwrap_or(0)
}

/// Sets an option of a new UDP socket to 1.
fn set(level: i32, name: i32) -> i32 {
    let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) else {
        return -1;
    };
    let one: i32 = 1;
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the socket is open, and `one` is a live int, which the call reads.
    errno(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const one).cast(), len) }.into())
}

fn counted() -> i32 {
    let before = trap::refused();
    open();
    let refused = trap::refused() - before;
    i32::from(refused != 1 || !is_open(trap::last()))
}

/// Returns true if `call` is the number of the system call with which the C library opens files.
fn is_open(call: u64) -> bool {
    i64::try_from(call) == Ok(libc::SYS_openat)
}
