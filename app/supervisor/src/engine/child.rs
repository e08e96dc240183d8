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
use crate::doctor;

/// Limit on the updates that are queued for an engine that does not read its channel: more than a change of all ports at
/// once needs.
pub(super) const MAX_QUEUED: usize = 1 << 14;

/// Forks an engine into as many new namespaces as the host allows, or into those that `before` names, and waits until its
/// loop runs.
///
/// # Errors
/// The engine could not be started, and has exited.
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
    // Only the engine has the channels, so that the helper exits with it.
    setup.socket_helper = None;
    if let Some(reason) = process.wait_until_ready().context("cannot wait for the engine")? {
        let refused = require_sandbox && before.is_some_and(lacks_user_namespace) && !disabled.namespaces;
        return Err(match refused.then(doctor::refused_user_namespace).flatten() {
            Some(error) => error,
            None => Error::new(failure_text(&reason)),
        });
    }
    limit_files(&process, Some(0));
    Ok(process)
}

fn lacks_user_namespace(namespaces: Namespaces) -> bool {
    namespaces.flags() & libc::CLONE_NEWUSER == 0
}

/// Limits the size of files that the engine writes (`RLIMIT_FSIZE`), of which the file of a capture is the only one. The
/// hard limit is unchanged, so that the supervisor may raise the soft limit later; the seccomp filter denies setrlimit(2)
/// to the engine.
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

/// Main function of the engine process; returns its exit status. In a PID namespace of its own the engine is process 1,
/// which only SIGKILL from an ancestor namespace and its own faults can kill.
fn become_engine(
    setup: &mut EngineSetup,
    ports: &[Arc<OwnedFd>],
    attachment: &Attachment,
    sandbox: Sandbox,
    disabled: &Disabled,
    socket: &OwnedFd,
) -> u8 {
    let _ = rustix::thread::set_name(c"pontoon-engine");
    // A write beyond the limit fails with EFBIG instead, which ends the capture.
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

/// Values of the supervisor that the engine process keeps after the fork.
pub(super) struct EngineResources {
    pub(super) setup: EngineSetup,
    attachment: Attachment,
    /// Engine's end of the channel to the supervisor.
    supervisor: EngineChannel,
    /// Copy of `supervisor`, over which the error before the engine's exit is sent.
    reports: EngineChannel,
}

/// Closes all descriptors that the engine process has inherited and does not use; returns the values that it keeps.
pub(super) fn prepare(
    setup: &mut EngineSetup,
    ports: &[Arc<OwnedFd>],
    attachment: &Attachment,
    socket: &OwnedFd,
) -> io::Result<EngineResources> {
    // The kernel kills this process when the supervisor exits. If the supervisor has exited already, its end of the channel
    // is closed.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // There can be nearly as many published ports as the descriptor limit allows: their descriptors are not copied, and
    // those that only the supervisor uses are closed before the other descriptors are copied.
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
