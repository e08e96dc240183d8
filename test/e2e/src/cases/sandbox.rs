//! Cases about the sandbox of the engine.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::{expect, talk, tcp_server};
use crate::case::{Caller, Case, Context, Family};
use crate::counters::{self, Counters};
use crate::network::Network;
use crate::process::{Process, Program, QuietMachine};
use crate::run::RunningProgram;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("sandbox.status", 20, status),
        Case::new("sandbox.descriptors", 20, descriptors).caller(Caller::Root("the engine is not dumpable")),
        Case::new("sandbox.traffic-makes-no-refused-call", 60, nothing_needed),
        Case::new("sandbox.refused-layers-are-logged", 60, refusals),
        Case::new("sandbox.start-time", 60, start).alone(),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

/// Starts a guest without traffic, and waits until its engine sleeps.
pub(super) fn idle(
    network: &Network<'_>,
    context: &Context,
    talk: &Path,
) -> Result<(RunningProgram, Process)> {
    let run = network.run().options(["--io", "event", counters::LOGGED]);
    let mut running = run.talk_to(talk).command(["sh"]).spawn()?;
    expect(&running.ask("echo ready")?, "ready")?;
    Ok((running, context.program.engine()?))
}

fn status(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let (_running, engine) = idle(&network, context, &talk()?)?;
    given_up(engine.id())?;
    let own = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
    let (theirs, ours) = (own(&engine.id().to_string())?, own("self")?);
    ensure!(theirs == ours, "net: {} and {}", theirs.display(), ours.display());
    limited(engine.id())
}

/// Checks the limits on the engine's memory and threads. The kernel does not count threads of root.
pub(super) fn limited(pid: u32) -> Result<()> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    for name in ["Max core file size", "Max data size", "Max processes"] {
        let line = limits.lines().find(|line| line.starts_with(name));
        let line = line.with_context(|| format!("no {name:?} in\n{limits}"))?;
        eprintln!("{line}");
        ensure!(!line.contains("unlimited"), "{line}");
    }
    Ok(())
}

/// Checks that the engine has no capability and no means to gain one, a seccomp filter, its own namespaces except the
/// network namespace, and an empty root directory.
pub(super) fn given_up(pid: u32) -> Result<()> {
    let file = |name: &str| format!("/proc/{pid}/{name}");
    let status = std::fs::read_to_string(file("status"))?;
    for line in [
        "CapInh:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "CapAmb:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        eprintln!("{line}");
        ensure!(
            status.lines().any(|have| have == line),
            "no {line:?} in\n{status}"
        );
    }
    for name in ["user", "mnt", "pid", "ipc", "uts", "cgroup"] {
        let theirs = std::fs::read_link(file(&format!("ns/{name}")))?;
        let ours = std::fs::read_link(format!("/proc/self/ns/{name}"))?;
        eprintln!("its own {}, ours {}", theirs.display(), ours.display());
        ensure!(theirs != ours, "{name}: {} of both", theirs.display());
    }
    let mounts = std::fs::read_to_string(file("mountinfo"))?;
    eprint!("{mounts}");
    ensure!(
        mounts.lines().count() == 1,
        "more than the root is mounted:\n{mounts}"
    );
    let entries = std::fs::read_dir(file("root"))?.count();
    ensure!(entries == 0, "the engine's root directory has {entries} entries");
    // The engine has no environment variable of the user. Only root may read this file.
    match std::fs::read(file("environ")) {
        Ok(environment) => ensure!(
            environment.iter().all(|byte| *byte == 0),
            "the engine has environment variables"
        ),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
        Err(error) => return Err(error.into()),
    }
    // The engine is not dumpable, so its files in /proc belong to root of the user namespace of its memory.
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(file("environ"))?);
    let runner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(file("."))?);
    eprintln!("owner of its files in /proc: {owner}, of its directory: {runner}");
    Ok(())
}

/// Checks the open descriptors of the engine: its link, the channel to the supervisor, the published port, and epoll
/// with its timers. The control socket, the file with the process id and descriptors of the caller belong to the
/// supervisor.
fn descriptors(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    super::tmpfs(Path::new("/run"))?;
    let options = [
        "--control",
        "/run/control",
        "--pid-file",
        "/run/pid",
        "-p",
        "8080:80",
    ];
    let mut running = network.run().options(options).command(["sh"]).spawn()?;
    expect(&running.ask("echo ready")?, "ready")?;
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let control = sockets.lines().find(|line| line.ends_with(" /run/control"));
    let inode = control
        .and_then(|line| line.split_whitespace().nth(6))
        .context("the program has no control socket")?;
    let control = format!("socket:[{inode}]");
    // Devices have the path that they have below /dev, which is not mounted in the engine's root.
    let known = ["/net/tun", "/null", "pipe:", "socket:", "anon_inode:"];
    for entry in std::fs::read_dir(format!("/proc/{}/fd", context.program.engine()?.id()))? {
        let path = entry?.path();
        let open = std::fs::read_link(&path)?.display().to_string();
        eprintln!("{}: {open}", path.display());
        let own = known
            .iter()
            .any(|known| open.trim_start_matches("/dev").starts_with(known));
        ensure!(own && open != control, "{}: {open}", path.display());
    }
    Ok(())
}

/// Tests that no system call of a running engine is refused by its filter.
fn nothing_needed(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V6)?;
    for workers in ["1", "4"] {
        let talk = talk()?;
        let line = format!(
            "$E2E guest tcp {server} connects 50 && $E2E guest tcp {server} put 0 3 16777216 && \
             $E2E guest tcp {server} fetch 0 4 16777216"
        );
        let run = network.run().options([counters::LOGGED, "--workers", workers]);
        run.talk_to(&talk).shell(&line).text()?;
        Counters::read(&talk)?.expect("sandbox_refused", 0)?;
    }
    Ok(())
}

/// Tests that a layer of the sandbox that the host refuses causes a warning, or, with `--sandbox required`, an error.
fn refusals(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let required = network.run().options(["--require-sandbox"]).command(["true"]);
    let output = required.output()?;
    ensure!(
        output.status.success(),
        "the whole sandbox is not enough: {}",
        output.status
    );
    for layer in ["namespaces", "landlock", "seccomp"] {
        let mut program = context.program.clone();
        program.environment.push(("PONTOON_DISABLE", layer));
        let with = |options: &[&str]| -> Result<(Option<i32>, String)> {
            let mut command = program.command()?;
            let output = command.arg("run").args(options).args(["--", "true"]).output()?;
            Ok((output.status.code(), String::from_utf8(output.stderr)?))
        };
        let (status, stderr) = with(&[])?;
        ensure!(status == Some(0), "without {layer}: {status:?}\n{stderr}");
        let (status, stderr) = with(&["--require-sandbox"])?;
        ensure!(status == Some(1), "without {layer}: {status:?} instead of 1");
        let errors: Vec<&str> = stderr
            .lines()
            .filter(|line| line.starts_with("error: "))
            .collect();
        let [line] = errors.as_slice() else {
            bail!("the message is not one line:\n{stderr}")
        };
        ensure!(line.contains("sandbox") && line.contains(layer), "{line}");
    }
    Ok(())
}

/// Limit on the time that the sandbox adds to the start of a command.
const START_COST: Duration = Duration::from_millis(10);

/// Measures the start of a command that does nothing, with the sandbox and without, in turn.
fn start(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let mut open = context.program.clone();
    open.environment
        .push(("PONTOON_DISABLE", "namespaces,landlock,seccomp"));
    let took = |program: &Program| -> Result<Duration> {
        let start = Instant::now();
        let status = program.command()?.args(["run", "--", "true"]).status()?;
        ensure!(status.success(), "{status}");
        Ok(start.elapsed())
    };
    let machine = QuietMachine::begin()?;
    // The first start fills the caches and is not measured.
    took(&open)?;
    let pairs = (0..25).map(|_| Ok([took(&open)?, took(&context.program)?]));
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    let [without, with] = [0, 1].map(|which| {
        let mut times: Vec<Duration> = pairs.iter().map(|pair| pair[which]).collect();
        times.sort_unstable();
        times[times.len() / 2]
    });
    eprintln!("a command that does nothing: {without:?}, with the sandbox {with:?}");
    machine.judge(
        with <= without + START_COST,
        &format!("{without:?}, then {with:?}"),
    )
}
