//! Process 1 of the guest's PID namespace: sets the namespaces up, starts the command, forwards signals to it, reports to the
//! supervisor what concerns the command as a job of the caller's shell, reaps exited processes, and exits with the command's status; the kernel then kills all other processes in the namespace.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use pontoon_process::child::{spawn, stdio};
use pontoon_process::error::{Context as _, Error, reason};
use pontoon_process::signals::{self, Sender, Signals};
use rustix::fs::OFlags;
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, set_dumpable_behavior,
    set_parent_process_death_signal, setpgid, setrlimit, wait,
};

use crate::guest::handshake::{FromGuest, Stop, ToGuest};
use crate::guest::mounts::{ProcCover, ResolvConf};
use crate::guest::{mounts, tap, userns};

/// Configuration of the guest's first process.
#[derive(Debug)]
pub(crate) struct InitConfig {
    /// Tap of the guest, which the process creates.
    pub(crate) tap: tap::TapConfig,
    /// Content of the guest's resolv.conf; `None` keeps the host's.
    pub(crate) resolv_conf: Option<String>,
    /// Host name of the guest; `None` keeps the host's.
    pub(crate) hostname: Option<String>,
    /// Program of the command and its arguments.
    pub(crate) argv: Vec<OsString>,
    /// Descriptor limit that the command starts with.
    pub(crate) descriptors: Rlimit,
    /// True if a command that root starts keeps the capabilities of the host's user namespace.
    pub(crate) keep_capabilities: bool,
    /// True if the system calls of the command are filtered; tests disable the filter (`PONTOON_DISABLE=seccomp`).
    pub(crate) filter: bool,
    /// True if it is an error that the kernel does not support seccomp filters, or the protection of the host's cgroups.
    pub(crate) require_sandbox: bool,
}

/// Signal that the supervisor sends after a change of the host's resolv.conf. If a process of the guest sends it to process
/// 1, the only effect is that the guest's resolv.conf is mounted again.
pub(crate) const RESOLV_CONF_CHANGED: i32 = libc::SIGURG;

/// Signals by which the kernel stops a process group of a terminal.
const STOPPING: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Longest time between such a signal and the stop of the command by it.
const UNTIL_STOPPED: Duration = Duration::from_secs(1);

/// Exit status if the command is not found (POSIX sh).
const NOT_FOUND: u8 = 127;

/// Exit status if the command cannot be executed (POSIX sh).
const NOT_EXECUTABLE: u8 = 126;

/// Runs process 1 of the guest until the command exits, and returns the command's exit status. `cover` is the cover of the host's
/// `/proc` in this mount namespace.
pub(crate) fn run(plan: &InitConfig, supervisor: &OwnedFd, cover: Option<&ProcCover>) -> u8 {
    let keep: Vec<_> = cover
        .map(AsFd::as_fd)
        .into_iter()
        .chain([supervisor.as_fd()])
        .collect();
    let started = spawn::close_all_but(&keep)
        .context("cannot close descriptors")
        .and_then(|()| start(plan, supervisor.as_fd(), cover));
    let started = match started {
        Ok(started) => started,
        Err(error) => {
            let status = error.status();
            // The send fails only if the supervisor has exited.
            let _ = FromGuest::Failed(error).send(supervisor);
            return status;
        }
    };
    if let Err(error) = FromGuest::Started.send(supervisor) {
        tracing::debug!(%error, "the supervisor has exited");
    }
    if let Err(error) = stdio::leave_all_to_the_command() {
        tracing::debug!(%error, "no /dev/null");
    }
    // A supervisor that is stopped reads nothing, and must not stop this process as well.
    if let Err(error) = rustix::fs::fcntl_setfl(supervisor, OFlags::NONBLOCK) {
        tracing::debug!(%error, "messages to the supervisor may wait");
    }
    serve(&started, supervisor.as_fd())
}

/// Command that runs, and the resources of process 1 for it.
struct RunningCommand {
    command: Pid,
    signals: Signals,
    resolv_conf: Option<ResolvConf>,
}

fn start(
    plan: &InitConfig,
    supervisor: BorrowedFd<'_>,
    cover: Option<&ProcCover>,
) -> Result<RunningCommand, Error> {
    let _ = rustix::thread::set_name(c"pontoon-init");
    // The command is in the process group of this process: in that of the caller, it could signal all processes of the group
    // with kill(0, ...), which is not restricted to a PID namespace.
    setpgid(None, None).context("cannot make a process group")?;
    ToGuest::Mapped
        .expect(supervisor)
        .context("no reply from the supervisor")?;
    // PR_SET_PDEATHSIG comes after the ids are mapped, because their change resets it. If the supervisor has exited before
    // this call, the next receive fails.
    set_parent_process_death_signal(Some(Signal::KILL)).context("PR_SET_PDEATHSIG")?;
    mounts::keep_private().map_err(|error| userns::explain_use(&error))?;
    if let Some(cover) = cover {
        cover.replace().context("cannot mount /proc")?;
        spawn::close_all_but(&[supervisor]).context("cannot close descriptors")?;
    }

    let tap = tap::create(&plan.tap)?;
    tap::leave_to_namespace(&tap).context(format_args!("cannot keep {}", plan.tap.ifname))?;
    FromGuest::Tap(tap).send(supervisor).context("no supervisor")?;

    if let Some(name) = &plan.hostname {
        rustix::system::sethostname(name.as_bytes()).context("cannot set the host name")?;
    }
    open_ping_sockets();
    reuse_ports();
    let resolv_conf = mounts::resolv_conf_sys_and_proc(plan.resolv_conf.as_deref())?;
    let signals = Signals::block(&[&[libc::SIGCHLD, RESOLV_CONF_CHANGED][..], &STOPPING].concat())
        .context("signalfd")?;
    FromGuest::Prepared.send(supervisor).context("no supervisor")?;
    ToGuest::Go
        .expect(supervisor)
        .context("no reply from the supervisor")?;
    if plan.filter {
        filter(plan.require_sandbox)?;
    }
    Ok(RunningCommand {
        command: start_command(plan)?,
        signals,
        resolv_conf,
    })
}

/// Installs the seccomp filter for this process and all that it starts.
fn filter(required: bool) -> Result<(), Error> {
    let cannot = "cannot filter the command's system calls";
    match pontoon_sandbox::command::restrict() {
        Err(error) if required => Err(Error::io(cannot, &error).advise("without --require-sandbox")),
        Err(error) => {
            tracing::warn!(
                "{cannot}, so it can put input into the terminal: {}",
                reason(&error)
            );
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Permits ping sockets to all groups that are mapped into the guest's user namespace.
fn open_ping_sockets() {
    let map = fs::read_to_string("/proc/self/gid_map").unwrap_or_default();
    let range = format!("0 {}", last_mapped(&map));
    if let Err(error) = fs::write("/proc/sys/net/ipv4/ping_group_range", range) {
        tracing::debug!(%error, "ping_group_range not set");
    }
}

/// Permits the reuse of local ports in TIME_WAIT after a second (RFC 6191, `net.ipv4.tcp_tw_reuse`). Each client on the host of a
/// published port has a port in this namespace, in which there are 28,000, for a minute longer than its connection.
fn reuse_ports() {
    if let Err(error) = fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1") {
        tracing::debug!(%error, "tcp_tw_reuse not set");
    }
}

/// Returns the last group of the contiguous range of mapped groups that begins with group 0, at most the kernel's limit
/// (`ping_group_range` is signed).
pub(crate) fn last_mapped(map: &str) -> u32 {
    let mut next: u32 = 0;
    for line in map.lines() {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        if let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
            && first == next
        {
            next = first.saturating_add(count);
        }
    }
    next.saturating_sub(1).min(i32::MAX.unsigned_abs())
}

/// Starts the command with the descriptor limit of the user, default signal dispositions, and no descriptor but 0, 1, 2.
///
/// This process is not dumpable from then on: it is a copy of the supervisor and holds a socket to it, and a user of the
/// guest that is root there could trace it otherwise. The command is dumpable, because execve(2) resets the flag.
fn start_command(plan: &InitConfig) -> Result<Pid, Error> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("PR_SET_DUMPABLE")?;
    setrlimit(Resource::Nofile, plan.descriptors).context("cannot restore the descriptor limit")?;
    spawn::close_all_on_exec().context("cannot close descriptors")?;
    let (program, arguments) = plan.argv.split_first().ok_or_else(|| Error::new("no command"))?;
    // The standard library restores SIGPIPE, and does not change the signal mask.
    let mut command = Command::new(program);
    command.args(arguments);
    // SAFETY: between fork and exec the closure makes one system call, on memory of its own.
    unsafe { command.pre_exec(signals::unblock_all) };
    match command.spawn() {
        Ok(child) => i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| Error::new("no process id")),
        Err(error) => Err(cannot_run(program, &error)),
    }
}

fn cannot_run(program: &OsStr, error: &io::Error) -> Error {
    let shown = program.display();
    let path = program.as_encoded_bytes().contains(&b'/');
    match error.kind() {
        // EACCES means a directory of PATH that may not be searched, or a file that may not be executed.
        io::ErrorKind::PermissionDenied if path || in_search_path(program) => {
            Error::io(format_args!("cannot run {shown}"), error)
                .with_status(NOT_EXECUTABLE)
                .advise(format!("ls -ld {shown}"))
        }
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            let advice = if path {
                "another path"
            } else {
                "its full path, or another PATH"
            };
            Error::new(format!("cannot run {shown}: not found"))
                .with_status(NOT_FOUND)
                .advise(advice)
        }
        _ => Error::io(format_args!("cannot run {shown}"), error).with_status(NOT_EXECUTABLE),
    }
}

fn in_search_path(program: &OsStr) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn serve(started: &RunningCommand, supervisor: BorrowedFd<'_>) -> u8 {
    let command = started.command;
    let mut stop = None;
    let mut stopping: Option<Instant> = None;
    loop {
        let signal = match started.signals.take() {
            Ok(None) => {
                // All pending signals have been read, so that it is known if the terminal has sent the one that stopped the
                // command.
                if let Some(signal) = stop.take() {
                    let by_terminal = stopping.is_some_and(|then| then.elapsed() < UNTIL_STOPPED);
                    stopping = None;
                    report(&FromGuest::Stopped(Stop { signal, by_terminal }), supervisor);
                }
                started.signals.wait()
            }
            Ok(Some(signal)) => Ok(signal),
            Err(error) => Err(error),
        };
        let signal = match signal {
            Ok(signal) => signal,
            Err(error) => {
                tracing::error!(%error, "cannot wait for signals");
                return 1;
            }
        };
        if signal.number == libc::SIGCHLD {
            match reap(command) {
                Some(Change::Ended(status)) => return status,
                Some(Change::Stopped(number)) => stop = Some(number),
                None => {}
            }
        } else if signal.number == RESOLV_CONF_CHANGED {
            if let Some(Err(error)) = started.resolv_conf.as_ref().map(ResolvConf::mount_again) {
                tracing::debug!(%error, "the guest sees the host's resolv.conf");
            }
        } else if STOPPING.contains(&signal.number) {
            if signal.by == Sender::Terminal {
                stopping = Some(Instant::now());
            }
        } else if let (Sender::Terminal, Ok(number)) = (signal.by, u8::try_from(signal.number)) {
            report(&FromGuest::Signalled(number), supervisor);
        } else if let Some(number) = Signal::from_named_raw(signal.number) {
            let _ = kill_process(command, number);
        }
    }
}

fn report(message: &FromGuest, supervisor: BorrowedFd<'_>) {
    if let Err(error) = message.send(supervisor) {
        tracing::debug!(%error, "the supervisor does not read its messages");
    }
}

/// Change of the command's state.
enum Change {
    /// The command has exited, with this status.
    Ended(u8),
    /// A signal with this number has stopped the command.
    Stopped(u8),
}

/// Reaps all exited children of process 1, adopted ones included; returns the change of the command, if there is one.
fn reap(command: Pid) -> Option<Change> {
    let mut change = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        if pid != command {
            continue;
        }
        let number = |number: Option<i32>| number.and_then(|number| u8::try_from(number).ok());
        if let Some(signal) = number(status.stopping_signal()) {
            change = Some(Change::Stopped(signal));
        } else {
            let by_signal = status.terminating_signal().map(|number| number + 128);
            change = Some(Change::Ended(
                number(status.exit_status().or(by_signal)).unwrap_or(1),
            ));
        }
    }
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_group_of_the_range_from_zero_is_found() {
        assert_eq!(last_mapped("         0       1000          1\n"), 0);
        assert_eq!(last_mapped("0 1000 1\n1 100000 65536\n"), 65_536);
        assert_eq!(last_mapped("0 1000 1\n5 100000 65536\n"), 0);
        assert_eq!(last_mapped("0 0 4294967295\n"), 2_147_483_647);
        assert_eq!(last_mapped(""), 0);
    }

    #[test]
    fn exec_failures_have_status_126_or_127() {
        let cannot =
            |program: &str, number| cannot_run(program.as_ref(), &io::Error::from_raw_os_error(number));
        for number in [libc::ENOENT, libc::EACCES] {
            let error = cannot("no-such-program", number);
            assert_eq!(error.status(), 127);
            assert_eq!(
                error.to_string(),
                "cannot run no-such-program: not found (try: its full path, or another PATH)"
            );
        }
        assert_eq!(cannot("./nope", libc::ENOENT).status(), 127);
        let error = cannot("/etc", libc::EACCES);
        assert_eq!(error.status(), 126);
        assert_eq!(
            error.to_string(),
            "cannot run /etc: permission denied (try: ls -ld /etc)"
        );
        assert_eq!(cannot("/x", libc::ENOEXEC).status(), 126);
    }
}
