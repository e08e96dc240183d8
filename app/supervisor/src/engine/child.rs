//! The engine process: its start, and the code that it runs before the engine's loop.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use pontoon_process::child::{ChildProcess, ProcessConfig, exit_status, spawn, stdio};
use pontoon_process::error::{Context as _, Error};
use pontoon_sandbox::{Namespaces, Role, Sandbox};
use pontoon_sys::disabled::Disabled;
use pontoon_worker::messages::EngineChannel;
use pontoon_worker::{Attachment, EngineSetup};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit, set_parent_process_death_signal};

use super::{EngineProcess, failure_text};

/// Limit on the updates that wait for an engine that does not read: more than changes of all ports at once.
pub(super) const MAX_QUEUED: usize = 1 << 14;

/// Forks an engine into as many new namespaces as the host allows, or into those that `before` names, and waits until its loop
/// runs.
///
/// # Errors
/// The engine could not start; it has exited.
pub(super) fn start(
    setup: &mut EngineSetup,
    ports: &[Arc<OwnedFd>],
    attachment: &Attachment,
    require_sandbox: bool,
    before: &mut Option<Namespaces>,
) -> Result<EngineProcess, Error> {
    let disabled = Disabled::from_env().context("cannot read the environment")?;
    let config = ProcessConfig {
        name: "the engine",
        role: match setup.outbound.interface {
            Some(_) => Role::EngineOnInterface,
            None => Role::Engine,
        },
        require_sandbox,
        disabled: &disabled,
        max_queued: MAX_QUEUED,
    };
    let mut process = ChildProcess::spawn(&config, before, |socket, sandbox| {
        become_engine(setup, ports, attachment, sandbox, &disabled, socket)
    })?;
    if let Some(reason) = process.wait_until_ready().context("cannot wait for the engine")? {
        return Err(Error::new(failure_text(&reason)));
    }
    limit_files(&process, Some(0));
    Ok(process)
}

/// Limits the size of files that it writes to (`RLIMIT_FSIZE`), of which a capture's is the only one. The hard limit
/// stays, so that this process may raise the soft one later; the engine's own filter refuses it to the engine.
pub(super) fn limit_files(process: &EngineProcess, most: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = Rlimit {
        current: most.into_iter().chain(maximum).min(),
        maximum,
    };
    if let Err(error) = prlimit(Some(process.pid()), Resource::Fsize, limit) {
        tracing::debug!(%error, "cannot limit the file size");
    }
}

/// The body of the engine process; returns its exit status. In a PID namespace of its own it is process 1, which only SIGKILL
/// and its own faults can kill.
fn become_engine(
    setup: &mut EngineSetup,
    ports: &[Arc<OwnedFd>],
    attachment: &Attachment,
    sandbox: Sandbox,
    disabled: &Disabled,
    socket: &OwnedFd,
) -> u8 {
    let _ = rustix::thread::set_name(c"pontoon-engine");
    // A capture that meets its limit ends with an error instead.
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    match prepare(setup, ports, attachment, socket) {
        Ok(EngineResources {
            setup,
            attachment,
            supervisor,
            reports,
        }) => {
            let result = pontoon_worker::run(setup, attachment, sandbox, disabled, supervisor);
            exit_status(result, &reports)
        }
        Err(error) => {
            tracing::error!(%error, "engine");
            1
        }
    }
}

/// Values that the engine process keeps from the supervisor's.
pub(super) struct EngineResources {
    pub(super) setup: EngineSetup,
    attachment: Attachment,
    /// Its end of the channel.
    supervisor: EngineChannel,
    /// A copy of `supervisor`, for the error before the exit.
    reports: EngineChannel,
}

/// Closes all descriptors that belong to the supervisor; returns the values that the engine keeps.
pub(super) fn prepare(
    setup: &mut EngineSetup,
    ports: &[Arc<OwnedFd>],
    attachment: &Attachment,
    socket: &OwnedFd,
) -> io::Result<EngineResources> {
    // The kernel kills this process when the supervisor exits. If it has exited already, its end of the channel is closed.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // There can be nearly as many published ports as descriptors: they are not copied, and before the rest is, the
    // supervisor's own make room.
    let mut setup = setup.take();
    // SAFETY: the values in `ports` are the parent's. This child neither uses nor drops them, as it exits without returning
    // to the functions that own them.
    let take_over = |port| unsafe { spawn::take_over(port) };
    setup.published = ports.iter().map(take_over).collect();
    let originals = attachment.descriptors().into_iter().chain([socket.as_fd()]);
    let keep: Vec<_> = setup.descriptors().chain(originals).collect();
    spawn::close_all_but(&keep)?;
    let own = EngineResources {
        setup,
        attachment: attachment.try_clone()?,
        supervisor: EngineChannel::new(socket.try_clone()?, 0)?,
        reports: EngineChannel::new(socket.try_clone()?, 0)?,
    };
    let copies = own.attachment.descriptors().into_iter();
    let copies = copies.chain([own.supervisor.as_fd(), own.reports.as_fd()]);
    let keep: Vec<_> = own.setup.descriptors().chain(copies).collect();
    spawn::close_all_but(&keep)?;
    stdio::leave_to_the_command()?;
    Ok(own)
}
