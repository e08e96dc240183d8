//! The namespaces in which the harness runs all measurements.
//!
//! A child is process 1 of a PID namespace, with its own network and mount namespaces (and, for an unprivileged user,
//! a user namespace that maps this user to itself), so a run changes no setting of the machine. When that child
//! exits, the kernel kills all processes inside, and when the harness exits for any reason, the kernel kills the
//! child.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{
    Pid, Signal, WaitOptions, getegid, geteuid, kill_process, set_parent_process_death_signal, waitpid,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Base of the exit status of a run that a signal has ended: the number of the signal is added, as shells do.
const SIGNALLED: u8 = 128;

/// The namespaces, as used by the process inside, with a directory for programs that every user may execute.
#[derive(Clone, Debug)]
pub(crate) struct SandboxNs {
    pub(crate) programs: PathBuf,
}

/// Runs `inside` in a child process in new namespaces, and returns its exit status.
///
/// # Errors
/// This user may not create namespaces, or the process has more than one thread.
pub(crate) fn run_in_sandbox_ns(inside: impl FnOnce(&SandboxNs) -> u8) -> Result<u8> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    ensure!(threads == 1, "cannot fork: the harness has {threads} threads");
    unshare()?;
    let directory = EmptyDirectory::new()?;
    let signals = BlockedSignals::new()?;
    // SAFETY: there is one thread, so the child's copy of memory holds no lock that would never be released.
    match unsafe { libc::fork() } {
        0 => {
            let status = match set_up(&directory.0, &signals) {
                Ok(sandbox_ns) => inside(&sandbox_ns),
                Err(error) => {
                    eprintln!("error: cannot set up the harness's namespaces: {error:#}");
                    1
                }
            };
            // The child must not return into the caller's stack frames, whose values belong to the parent.
            std::process::exit(status.into())
        }
        pid => {
            let child = Pid::from_raw(pid).context("cannot fork")?;
            Ok(wait_for_child(child, &signals))
        }
    }
}

fn unshare() -> Result<()> {
    let mut flags = UnshareFlags::NEWNET | UnshareFlags::NEWPID;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    if user != 0 {
        flags |= UnshareFlags::NEWUSER;
    }
    // SAFETY: there is one thread, and no descriptor that was opened before refers to a namespace.
    unsafe { unshare_unsafe(flags) }.map_err(|error| match error {
        rustix::io::Errno::PERM | rustix::io::Errno::NOSPC | rustix::io::Errno::INVAL => anyhow::anyhow!(
            "cannot make namespaces: {error} (try: as root, or allow user namespaces: \
             sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0)"
        ),
        _ => anyhow::anyhow!("cannot make namespaces: {error}"),
    })?;
    if user != 0 {
        std::fs::write("/proc/self/setgroups", "deny").context("cannot write /proc/self/setgroups")?;
        std::fs::write("/proc/self/uid_map", format!("{user} {user} 1")).context("cannot write uid_map")?;
        std::fs::write("/proc/self/gid_map", format!("{group} {group} 1")).context("cannot write gid_map")?;
    }
    Ok(())
}

/// Sets up the namespaces from inside: mounts /proc and a tmpfs for programs.
fn set_up(directory: &Path, signals: &BlockedSignals) -> Result<SandboxNs> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    signals.release()?;
    // SAFETY: there is one thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.context("cannot make a mount namespace")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("cannot make / private")?;
    let flags = MountFlags::NOSUID;
    mount("proc", "/proc", "proc", flags | MountFlags::NOEXEC, None).context("cannot mount /proc")?;
    mount("tmpfs", directory, "tmpfs", flags, Some(c"mode=0755,size=1g"))
        .with_context(|| format!("cannot mount a tmpfs on {}", directory.display()))?;
    make_tun_accessible(directory)?;
    Ok(SandboxNs {
        programs: directory.to_owned(),
    })
}

/// Mounts a device with mode 0666 on /dev/net/tun where users may not open the machine's device (no udev), as stacks
/// run unprivileged.
fn make_tun_accessible(directory: &Path) -> Result<()> {
    const TUN: &str = "/dev/net/tun";
    let closed = std::fs::metadata(TUN).is_ok_and(|tun| tun.permissions().mode() & 0o006 != 0o006);
    if !closed || !geteuid().is_root() {
        return Ok(());
    }
    let ours = directory.join("tun");
    // Major 10, minor 200: Linux, Documentation/networking/tuntap.rst.
    mknodat(
        CWD,
        &ours,
        FileType::CharacterDevice,
        Mode::RUSR | Mode::WUSR,
        makedev(10, 200),
    )?;
    std::fs::set_permissions(&ours, PermissionsExt::from_mode(0o666))?;
    mount_bind(&ours, TUN).context("cannot mount on /dev/net/tun")
}

impl SandboxNs {
    /// Copies `program` once to a path where every user may execute it, with the file name `name`.
    ///
    /// # Errors
    /// The program cannot be read, or there is no memory.
    pub(crate) fn install_program(&self, program: &Path, name: &str) -> Result<PathBuf> {
        let to = self.programs.join(name);
        if to.exists() {
            return Ok(to);
        }
        std::fs::copy(program, &to)
            .with_context(|| format!("cannot copy {} to {}", program.display(), to.display()))?;
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o755))?;
        Ok(to)
    }

    /// Returns a path at which every user may create a file named `name`. An existing file is removed.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn world_writable_path(&self, name: &str) -> Result<PathBuf> {
        let directory = self.programs.join("open");
        if !directory.exists() {
            std::fs::create_dir(&directory)?;
            std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o1777))?;
        }
        let path = directory.join(name);
        let _ = std::fs::remove_file(&path);
        Ok(path)
    }

    /// Replaces `/etc/resolv.conf` by `text`.
    ///
    /// # Errors
    /// There is no such file.
    pub(crate) fn replace_resolv_conf(&self, text: &str) -> Result<()> {
        let ours = self.programs.join("resolv.conf");
        std::fs::write(&ours, text)?;
        let target = std::fs::canonicalize("/etc/resolv.conf").context("there is no /etc/resolv.conf")?;
        mount_bind(&ours, &target).with_context(|| format!("cannot mount on {}", target.display()))
    }
}

/// Waits until the child, process 1 of the namespace, exits. On a terminating signal it kills the child, and so all
/// processes inside.
fn wait_for_child(child: Pid, signals: &BlockedSignals) -> u8 {
    let mut killed = None;
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => {
                let by_signal = status
                    .terminating_signal()
                    .map(|number| number + i32::from(SIGNALLED));
                let status = killed.or(status.exit_status()).or(by_signal);
                return status.and_then(|status| u8::try_from(status).ok()).unwrap_or(1);
            }
            Ok(None) => {}
            Err(_) => return 1,
        }
        match signals.wait() {
            Some(libc::SIGCHLD) | None => {}
            Some(number) => {
                killed = Some(number + i32::from(SIGNALLED));
                // The process id cannot have been reused: the child was not waited for.
                let _ = kill_process(child, Signal::KILL);
            }
        }
    }
}

/// An empty directory, removed on drop. A tmpfs is mounted on it inside the namespaces.
struct EmptyDirectory(PathBuf);

impl EmptyDirectory {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("pontoon-bench.{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for EmptyDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The terminating signals and SIGCHLD, blocked so that sigwaitinfo(2) returns them.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Result<Self> {
        // SAFETY: `sigset_t` is plain C data, initialised by `sigemptyset` before it is read; no pointer is kept.
        // SIG_DFL is a valid disposition.
        let set = unsafe {
            // With SIGCHLD ignored, as inherited from a parent, the kernel would discard the exit status of children.
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [
                libc::SIGINT,
                libc::SIGTERM,
                libc::SIGHUP,
                libc::SIGQUIT,
                libc::SIGCHLD,
            ] {
                libc::sigaddset(&raw mut set, signal);
            }
            set
        };
        let blocked = Self(set);
        blocked.mask(libc::SIG_BLOCK)?;
        Ok(blocked)
    }

    fn release(&self) -> Result<()> {
        self.mask(libc::SIG_UNBLOCK)
    }

    fn mask(&self, how: libc::c_int) -> Result<()> {
        // SAFETY: the set is initialised, and the old mask is not requested.
        if unsafe { libc::sigprocmask(how, &raw const self.0, std::ptr::null_mut()) } < 0 {
            bail!("cannot change the signal mask: {}", io::Error::last_os_error());
        }
        Ok(())
    }

    /// Waits for the next of the blocked signals, and returns its number.
    fn wait(&self) -> Option<i32> {
        // SAFETY: the set is initialised; only the number is requested.
        let number = unsafe { libc::sigwaitinfo(&raw const self.0, std::ptr::null_mut()) };
        (number > 0).then_some(number)
    }
}
