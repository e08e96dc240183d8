//! Operations that each layer refuses when it is the only one: a way around one is not a way out.
//!
//! Without the test harness, as its threads cannot be in a user namespace: each attempt is made in a child of the one
//! thread of this program, which becomes what a sandboxed process is.

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

/// A layer that is on, alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Only {
    /// The restrictions that no host refuses: no capability, `no_new_privs`, not dumpable.
    Nothing,
    Namespaces,
    Landlock,
    Seccomp,
}

/// An operation that is tried. It returns errno, or 0 on success.
type Attempt = fn() -> i32;

const ABSTRACT: &str = "pontoon-sandbox-layers";

fn main() -> ExitCode {
    // For as long as the attempts last.
    let _listener =
        SocketAddr::from_abstract_name(ABSTRACT).and_then(|address| UnixListener::bind_addr(&address));
    let attempts: [(&str, Only, Attempt, i32); 19] = [
        ("mount", Only::Nothing, mount, libc::EPERM),
        ("enter the host's namespaces", Only::Nothing, setns, libc::EPERM),
        ("more memory than its limit", Only::Nothing, memory, libc::ENOMEM),
        ("be dumpable", Only::Nothing, dumpable, 0),
        ("open a file", Only::Namespaces, open, libc::ENOENT),
        ("signal the parent", Only::Namespaces, signal, libc::ESRCH),
        ("mount", Only::Namespaces, mount, libc::EPERM),
        ("open a file", Only::Landlock, open, libc::EACCES),
        ("trace the parent", Only::Landlock, trace, libc::EPERM),
        ("signal the parent", Only::Landlock, signal, libc::EPERM),
        ("speak to an abstract socket", Only::Landlock, speak, libc::EPERM),
        ("open a file", Only::Seccomp, open, libc::EPERM),
        ("signal the parent", Only::Seccomp, signal, libc::EPERM),
        ("speak to an abstract socket", Only::Seccomp, speak, libc::EPERM),
        ("make a descriptor non-blocking", Only::Seccomp, unblock, 0),
        ("ask a descriptor for more", Only::Seccomp, request, libc::EPERM),
        ("write IP headers", Only::Seccomp, write_headers, libc::EPERM),
        ("set what a flow needs", Only::Seccomp, set_needed_options, 0),
        ("refusals are counted", Only::Seccomp, counted, 0),
    ];
    let mut failed = false;
    for (what, only, attempt, wanted) in attempts {
        let verdict = match tried(only, attempt) {
            Tried::Answered(errno) if errno == wanted => "ok".to_owned(),
            Tried::Answered(errno) => {
                failed = true;
                format!("FAILED: errno {errno} instead of {wanted}")
            }
            Tried::Refused => "SKIPPED: the host does not have the layer".to_owned(),
            Tried::Killed(status) => {
                failed = true;
                format!("FAILED: wait status {status:#x}")
            }
        };
        eprintln!("{what}, {}: {verdict}", name(only));
    }
    let ends: [(&str, Only, Attempt, i32); 4] = [
        // The last resort of abort(3), as the process may not signal itself.
        ("abort", Only::Seccomp, abort, libc::SIGSEGV),
        ("access address 0", Only::Seccomp, access_null, libc::SIGSEGV),
        ("overflow the stack", Only::Seccomp, overflow_stack, libc::SIGSEGV),
        ("access address 0", Only::Namespaces, access_null, libc::SIGSEGV),
    ];
    for (what, only, attempt, signal) in ends {
        let verdict = match tried(only, attempt) {
            Tried::Killed(status) if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal => {
                "ok".to_owned()
            }
            Tried::Refused => "SKIPPED: the host does not have the layer".to_owned(),
            Tried::Answered(errno) => {
                failed = true;
                format!("FAILED: the process goes on, errno {errno}")
            }
            Tried::Killed(status) => {
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

fn name(only: Only) -> &'static str {
    match only {
        Only::Nothing => "no capability alone",
        Only::Namespaces => "namespaces alone",
        Only::Landlock => "Landlock alone",
        Only::Seccomp => "seccomp alone",
    }
}

enum Tried {
    Answered(i32),
    Refused,
    Killed(i32),
}

/// Exit status of a child whose layer the host does not have.
const REFUSED: i32 = 255;

fn tried(only: Only, attempt: Attempt) -> Tried {
    let disabled = Disabled {
        namespaces: only != Only::Namespaces,
        landlock: only != Only::Landlock,
        seccomp: only != Only::Seccomp,
        ..Disabled::default()
    };
    let status = namespaces::choices(&disabled)
        .into_iter()
        .find_map(|namespaces| child(namespaces, &disabled, attempt));
    match status {
        None => Tried::Refused,
        Some(status) if libc::WIFEXITED(status) => match libc::WEXITSTATUS(status) {
            REFUSED => Tried::Refused,
            errno => Tried::Answered(errno),
        },
        Some(status) => Tried::Killed(status),
    }
}

/// Returns the wait status of a child that enters the sandbox and makes the attempt; `None` if it cannot be cloned.
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
        // SAFETY: it ends the process; nothing of the parent's runs here.
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

/// Returns true if the layer is in force, or is switched off; Landlock's in a version that restricts signals and abstract
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
    // SAFETY: the path is a C string; a descriptor that it opens ends with the process.
    errno(unsafe { libc::open(c"/etc/passwd".as_ptr(), libc::O_RDONLY) }.into())
}

fn mount() -> i32 {
    let (kind, place) = (c"tmpfs".as_ptr(), c"/".as_ptr());
    // SAFETY: both are C strings, and the data may be null.
    errno(unsafe { libc::mount(kind, place, kind, 0, std::ptr::null()) }.into())
}

/// The network namespace is the host's own, which the process is in already: what is refused is to enter any.
fn setns() -> i32 {
    // SAFETY: it touches no memory. Descriptor 0 need not be a namespace: that would be EINVAL.
    let opened = unsafe { libc::open(c"/proc/self/ns/uts".as_ptr(), libc::O_RDONLY) };
    // SAFETY: as above.
    errno(unsafe { libc::setns(opened, libc::CLONE_NEWUTS) }.into())
}

/// Half of the limit can be had, twice of it cannot.
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
        // SAFETY: it maps memory where none is, and ends with the process.
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
    // SAFETY: it touches no memory.
    unsafe { libc::prctl(libc::PR_GET_DUMPABLE) }
}

fn trace() -> i32 {
    // SAFETY: attaching touches no memory of ours.
    errno(unsafe { libc::ptrace(libc::PTRACE_ATTACH, libc::getppid(), 0, 0) })
}

fn signal() -> i32 {
    // In a pid namespace of its own the parent has no number there; this one is as good as any.
    // SAFETY: signal 0 is no signal, but asks whether one might be sent.
    let parent = match unsafe { libc::getppid() } {
        0 => 2,
        parent => parent,
    };
    // SAFETY: as above.
    errno(unsafe { libc::kill(parent, 0) }.into())
}

fn speak() -> i32 {
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
    // SAFETY: `waiting` is a live int that the call would write.
    errno(unsafe { libc::ioctl(0, libc::FIONREAD, &raw mut waiting) }.into())
}

/// Of a UDP socket, as without privilege there is no raw one: without the filter this is ENOPROTOOPT.
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

/// Sets an option of a fresh UDP socket to 1.
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

/// Returns true if it is the number of the call with which the C library opens files.
fn is_open(call: u64) -> bool {
    i64::try_from(call) == Ok(libc::SYS_openat)
}
