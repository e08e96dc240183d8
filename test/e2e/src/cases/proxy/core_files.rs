//! Core files: no process that has the credentials of a proxy in its memory leaves one.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use super::credentials::{has_no_secret, squid};
use crate::case::{Case, Context, Family};
use crate::cases::{OBEDIENT, expect};
use crate::network::Network;
use crate::process::{self, Process};

/// Working directory of the processes, in which the kernel creates core files.
const CORES: &str = "/mnt/cores";

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("proxy.core-files", 60, core_files).alone()]
}

/// Tests that the processes that have the credentials are killed by SIGABRT without a core file; and that the kernel writes one
/// of the supervisor if there are no credentials, so that the test would find it.
fn core_files(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let (proxy, server) = squid(&network)?;
    std::fs::create_dir(CORES)?;
    std::fs::set_permissions(CORES, PermissionsExt::from_mode(0o777))?;
    std::env::set_current_dir(CORES)?;
    let maximum = getrlimit(Resource::Core).maximum;
    setrlimit(
        Resource::Core,
        Rlimit {
            current: maximum,
            maximum,
        },
    )?;
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    let are_written = maximum.is_none_or(|bytes| bytes > 1) && !pattern.starts_with(['|', '/', '\n']);
    let curl = format!(
        "curl -sS --max-time 10 -o /dev/null -w '%{{http_code}}\\n' http://{}/bytes/1/10 || true",
        server.ip()
    );
    for (options, status) in [
        (vec![], "000"),
        (vec!["--proxy-credentials", "/mnt/right"], "200"),
    ] {
        let run = network.run().options(proxy.option(Family::V4)).options(&options);
        // The socket helper is for clients of published ports.
        let run = run.options(["--publish", "8080:80"]);
        let mut guest = run.shell(OBEDIENT).spawn()?.listening()?;
        expect(&guest.ask(&curl)?, status)?;
        let (engine, supervisor) = (context.program.engine()?, context.program.supervisor()?);
        let helper = context.program.process("pontoon-sockets")?;
        for process in [helper, engine, supervisor] {
            abort(process)?;
            let left = cores()?;
            let expected = are_written && options.is_empty() && process == supervisor;
            ensure!(
                left.is_empty() != expected,
                "core files after the end of process {} ({options:?}): {left:?}",
                process.id()
            );
            for (name, content) in &left {
                has_no_secret(name, content)?;
                std::fs::remove_file(Path::new(CORES).join(name))?;
            }
        }
    }
    Ok(())
}

/// Sends SIGABRT to a process, and waits for its end. A core file is complete by then. A process that ignores the signal, as the
/// first one of a PID namespace does (pid_namespaces(7)), is killed.
fn abort(process: Process) -> Result<()> {
    process.signal(Signal::ABORT)?;
    let what = format!("process {} has ended", process.id());
    let has_ended = || Ok(!process::running().contains(&process));
    if process::wait_until(&what, Duration::from_secs(2), has_ended).is_ok() {
        return Ok(());
    }
    process.signal(Signal::KILL)?;
    process::wait_until(&what, Duration::from_secs(10), has_ended)?;
    Ok(())
}

/// Returns the names and contents of the core files.
fn cores() -> Result<Vec<(String, Vec<u8>)>> {
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        Ok((name, std::fs::read(entry.path())?))
    };
    std::fs::read_dir(CORES)?.map(read).collect()
}
