//! Operations that the AppArmor profile forbids: `pontoon-e2e probe NAME` executes one as root, and prints `permitted`,
//! or `refused` if the kernel has returned EACCES or EPERM.
//!
//! Each is permitted without the profile, or fails with another error.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::guest::print_line;

/// Name of the probing thread, by which the kernel's log names it.
pub(crate) const THREAD: &std::ffi::CStr = c"pontoon-probe";

/// File that only root may read, in a directory that the profile excludes.
pub(crate) const KEY: &str = "/root/.ssh/pontoon-probe";

/// A forbidden operation.
pub(crate) struct Probe {
    pub(crate) name: &'static str,
    execute: fn() -> io::Result<()>,
}

/// All forbidden operations.
pub(crate) const PROBES: &[Probe] = &[
    Probe {
        name: "read-passwords",
        execute: || File::open("/etc/shadow").map(drop),
    },
    Probe {
        name: "read-key",
        execute: || File::open(KEY).map(drop),
    },
    Probe {
        name: "write-configuration",
        execute: || File::options().append(true).open("/etc/passwd").map(drop),
    },
    Probe {
        name: "write-program",
        execute: || File::create("/usr/bin/pontoon-probe").map(drop),
    },
    Probe {
        name: "write-sysctl",
        execute: || {
            let path = "/proc/sys/kernel/core_pattern";
            fs::write(path, fs::read(path)?)
        },
    },
    Probe {
        name: "read-memory-of-a-process",
        execute: || {
            let parent = std::os::unix::process::parent_id();
            File::open(format!("/proc/{parent}/mem")).map(drop)
        },
    },
    Probe {
        name: "trace-a-process",
        execute: trace,
    },
    Probe {
        name: "mount-a-directory",
        execute: || Ok(rustix::mount::mount_bind("/tmp", "/mnt")?),
    },
    Probe {
        name: "mount-a-file-system",
        execute: || {
            let flags = rustix::mount::MountFlags::empty();
            Ok(rustix::mount::mount("none", "/mnt", "tmpfs", flags, None)?)
        },
    },
    Probe {
        name: "open-memory-device",
        execute: || File::open("/dev/mem").map(drop),
    },
    Probe {
        name: "make-device-node",
        execute: device_node,
    },
    Probe {
        name: "load-module",
        execute: load_module,
    },
    Probe {
        name: "set-clock",
        execute: set_clock,
    },
    Probe {
        name: "socket-of-another-family",
        execute: || {
            let family = rustix::net::AddressFamily::from_raw(libc::AF_ALG as u16);
            Ok(rustix::net::socket(family, rustix::net::SocketType::SEQPACKET, None).map(drop)?)
        },
    },
    Probe {
        name: "change-profile",
        execute: || fs::write("/proc/self/attr/current", "changeprofile unconfined"),
    },
    Probe {
        name: "execute-with-no-new-privileges",
        execute: || {
            rustix::thread::set_no_new_privs(true)?;
            Command::new("/bin/true").status().map(drop)
        },
    },
];

/// Executes the operation `name`, and prints the result.
pub(crate) fn run(name: &str) -> Result<()> {
    let probe = PROBES.iter().find(|probe| probe.name == name);
    let probe = probe.with_context(|| format!("no operation {name}"))?;
    rustix::thread::set_name(THREAD)?;
    let result = (probe.execute)();
    eprintln!("{name}: {result:?}");
    let refused = result.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    print_line(if refused { "refused" } else { "permitted" })
}

/// Returns the command that executes the operation `name` by the copy `program` of this program.
pub(crate) fn command(program: &str, name: &str) -> Command {
    let mut command = Command::new(program);
    command.arg0("pontoon-e2e").args(["probe", name]);
    command
}

/// Becomes the tracer of the parent process, and ends that by its exit.
fn trace() -> io::Result<()> {
    let parent = std::os::unix::process::parent_id().cast_signed();
    // SAFETY: PTRACE_SEIZE accesses no memory of this process.
    succeed(unsafe { libc::ptrace(libc::PTRACE_SEIZE, parent, 0, 0) })
}

fn device_node() -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let path = format!("/tmp/pontoon-probe.{}", std::process::id());
    mknodat(
        CWD,
        &path,
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o600),
        makedev(1, 3),
    )?;
    fs::remove_file(path)
}

/// Loads a module without contents, which the kernel refuses for its format unless it refuses the operation.
fn load_module() -> io::Result<()> {
    // SAFETY: the length is zero, so the kernel does not read the image; the parameters are a string.
    succeed(unsafe { libc::syscall(libc::SYS_init_module, c"".as_ptr(), 0_usize, c"".as_ptr()) })
}

/// Sets the clock to its present time.
fn set_clock() -> io::Result<()> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointers are to a value that lives longer than the calls.
    unsafe {
        succeed(libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now).into())?;
        succeed(libc::clock_settime(libc::CLOCK_REALTIME, &raw const now).into())
    }
}

fn succeed(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
