//! Cases about the start and the end of the program.

mod hangs;
pub(super) mod jobs;

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use super::{expect, icmp, talk, tcp_server, wanted};
use crate::case::{Caller, Case, Context, Family, Outcome};
use crate::guest::tcp;
use crate::network::Network;
use crate::process::{self, Process, Stopwatch};
use crate::run::RunningProgram;
use crate::sys;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("lifecycle.ip-addr", 20, ip_addr).on_machine(),
        Case::new("lifecycle.sysfs-shows-the-namespace", 20, sysfs).on_machine(),
        Case::may_skip("lifecycle.whole-id-range", 20, id_range)
            .on_machine()
            .caller(Caller::User("root needs no user namespace")),
        Case::new("lifecycle.exit-status", 20, exit_status),
        Case::new("lifecycle.signals-pass-through", 20, signals),
        Case::new("lifecycle.interrupted-script", 20, jobs::interrupted_script),
        Case::new("lifecycle.job-control", 20, jobs::job_control),
        Case::new("lifecycle.background-job", 20, jobs::background_job),
        Case::new("lifecycle.orphans-end-with-the-command", 20, orphans),
        Case::new("lifecycle.supervisor-killed", 20, supervisor_killed),
        Case::new("lifecycle.init-killed", 20, init_killed),
        Case::new(
            "lifecycle.engine-killed",
            30 + 6 * u64::from(kills()),
            engine_killed,
        ),
        Case::new("lifecycle.engine-killed-three-times", 20, engine_killed_often),
    ]
    .into_iter()
    .chain(Case::both(
        "lifecycle.engine-killed-idle-guest",
        20,
        engine_killed_idle,
    ))
    .chain([
        Case::new("lifecycle.attach-by-pid", 30, |context| attach(context, false)),
        Case::new("lifecycle.attach-by-path", 30, |context| attach(context, true)),
    ])
    .chain(hangs::cases())
    .map(Case::pontoon_only)
    .collect()
}

fn ip_addr(context: &Context) -> Result<()> {
    let mut command = context.program.command()?;
    let text = process::output(command.args(["run", "--", "ip", "addr"]))?;
    ensure!(
        text.contains("state UP") || text.contains(",UP"),
        "no link is up:\n{text}"
    );
    ensure!(
        text.lines()
            .filter(|line| line.trim_start().starts_with("inet "))
            .count()
            >= 2,
        "no address:\n{text}"
    );
    Ok(())
}

/// Tests that `/sys/class/net` shows the interfaces of the command's network namespace, and the rest of `/sys` is the
/// host's.
fn sysfs(context: &Context) -> Result<()> {
    let script = "for name in /sys/class/net/*; do test -e $name/address && echo ${name##*/}; done | sort; echo; \
                  ip -o link | cut -d: -f2 | tr -d ' ' | sort; echo; ls /sys/devices/virtual/net | sort; echo; \
                  test -e /sys/devices/system/cpu/online && echo cpus";
    let mut command = context.program.command()?;
    let text = process::output(command.args(["run", "--", "sh", "-c", script]))?;
    let lists: Vec<&str> = text.trim_end().split("\n\n").collect();
    let [by_name, by_netlink, by_device, rest] = lists[..] else {
        bail!("four lists are expected:\n{text}");
    };
    ensure!(
        by_netlink.lines().count() >= 2 && by_name == by_netlink && by_device == by_netlink,
        "/sys and netlink differ:\n{text}"
    );
    ensure!(rest == "cpus", "the rest of /sys is missing:\n{text}");
    // A container inside the guest mounts its own sysfs. The kernel permits that only if an existing sysfs is fully
    // visible.
    for options in ["ro,nosuid,nodev,noexec", "nosuid,nodev,noexec"] {
        let inner = format!("mount -t sysfs -o {options} sysfs /mnt && ls /mnt/class/net");
        let mut command = context.program.command()?;
        command.args(["run", "--", "unshare", "-Urnm", "sh", "-c", &inner]);
        expect(&process::output(&mut command)?, "lo")?;
    }
    Ok(())
}

/// Tests that the guest has more users than root if newuidmap is installed and /etc/subuid has a line for the user.
fn id_range(context: &Context) -> Result<Outcome> {
    let user = process::output(Command::new("id").arg("-un"))?;
    let ranges = std::fs::read_to_string("/etc/subuid").unwrap_or_default();
    if !ranges
        .lines()
        .any(|line| line.starts_with(&format!("{}:", user.trim_end())))
    {
        return Ok(Outcome::Skipped(format!(
            "/etc/subuid has no range for {}",
            user.trim_end()
        )));
    }
    let mut command = context.program.command()?;
    let text = process::output(command.args(["run", "--", "cat", "/proc/self/uid_map"]))?;
    let count: u64 = text
        .split_whitespace()
        .skip(2)
        .step_by(3)
        .filter_map(|count| count.parse::<u64>().ok())
        .sum();
    ensure!(count > 65_536, "{count} users inside:\n{text}");
    Ok(Outcome::Passed)
}

fn exit_status(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    for (line, wanted) in [
        ("exit 37", 37),
        ("kill -TERM $$", 128 + 15),
        ("kill -KILL $$", 128 + 9),
        ("true", 0),
    ] {
        let status = network.run().shell(line).output()?.status;
        ensure!(
            status.code() == Some(wanted),
            "`{line}`: {status} instead of {wanted}"
        );
    }
    let status = network.run().command(["/no/such/program"]).output()?.status;
    ensure!(
        status.code() == Some(127),
        "a missing program: {status} instead of 127"
    );
    Ok(())
}

fn signals(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    for (name, signal) in [("TERM", Signal::TERM), ("INT", Signal::INT), ("HUP", Signal::HUP)] {
        let line =
            format!("trap 'echo got {name}; exit 5' {name}; echo listening; while :; do sleep 0.05; done");
        let mut running = network.run().shell(&line).spawn()?.listening()?;
        running.signal(signal)?;
        expect(&running.line()?, &format!("got {name}"))?;
        let status = ended(&mut running, Duration::from_secs(5))?;
        ensure!(status == Some(5), "after SIG{name}: {status:?} instead of 5");
    }
    nothing_left()
}

fn orphans(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    network.run().shell("(setsid sleep 1000 &) ; exit 0").text()?;
    nothing_left()
}

/// Starts a guest with an orphaned process, whose shell executes the lines of its standard input.
fn with_orphan<'a>(network: &'a Network<'_>, talk: &Path) -> Result<RunningProgram> {
    let line = "(setsid sleep 1000 >/dev/null 2>&1 &) ; echo listening; exec sh";
    let run: crate::run::PontoonRun<'a> = network.run().shell(line).talk_to(talk);
    run.spawn()?.listening()
}

fn supervisor_killed(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let _running = {
        let running = with_orphan(&network, &talk()?)?;
        running.signal(Signal::KILL)?;
        running
    };
    nothing_left()
}

fn init_killed(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut running = with_orphan(&network, &talk()?)?;
    init(context, &running)?.signal(Signal::KILL)?;
    let status = ended(&mut running, Duration::from_secs(2))?;
    ensure!(
        status != Some(0),
        "the exit status is 0 although the guest's init was killed"
    );
    nothing_left()
}

/// Returns how many times the engine is killed: `PONTOON_KILLS`, or 2.
fn kills() -> u32 {
    wanted("PONTOON_KILLS", 2)
}

/// Interval between two kills. It is so long that three exits are never within ten seconds.
const BETWEEN_KILLS: Duration = Duration::from_millis(5_100);

/// Longest time from the exit of the engine until its successor serves a client, on a machine with idle CPUs.
const REPLACED: Duration = Duration::from_millis(200);

/// Longest time from the exit of the engine until its successor serves a client, on a loaded machine.
const REPLACED_UNDER_LOAD: Duration = Duration::from_secs(2);

/// Tests that after each kill another engine serves new flows and the clients of published ports, none of which is
/// refused meanwhile. The flows of the killed engine end. The guest sends bulk data during the whole test.
fn engine_killed(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let inside = SocketAddr::new(Family::V4.unspecified(), 80);
    let published = SocketAddr::new(network.host_address(Family::V4), 8080);
    let connect = format!("{} guest tcp {server} connects 1", crate::run::own_path());
    let line = format!(
        "$E2E guest tcp {server} survive 1000000 1048576 >&2 & $E2E guest serve tcp:{inside} & exec sh"
    );
    let run = network.run().options(["--publish", "8080:80"]);
    let mut running = run.shell(&line).spawn()?.listening()?;
    expect(&running.ask(&connect)?, "ok")?;
    let mut slowest = [Duration::ZERO; 2];
    for _ in 0..kills() {
        let mut held = network
            .server()
            .enter(|| tcp::request(published, "hold engine-killed"))?;
        held.read_exact(&mut [0; 5])?;
        let engine = context.program.engine()?;
        let killed = Instant::now();
        let restart = Stopwatch::start();
        engine.signal(Signal::KILL)?;
        network
            .server()
            .enter(|| tcp::command(published, &["connects", "1"]))?;
        let published_took = restart.within(REPLACED, REPLACED_UNDER_LOAD)?;
        slowest[0] = slowest[0].max(published_took);
        let connection = Stopwatch::start();
        expect(&running.ask(&connect)?, "ok")?;
        slowest[1] = slowest[1].max(connection.within(REPLACED, REPLACED_UNDER_LOAD)?);
        held.set_read_timeout(Some(Duration::from_secs(2)))?;
        let end = sys::uninterrupted(|| held.read(&mut [0]));
        ensure!(
            matches!(&end, Ok(0)) || matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset),
            "the flow that it had: {end:?}"
        );
        ensure!(context.program.engine()? != engine, "the engine still runs");
        // Waits so long that the third exit is not within ten seconds of the first, which would end the program.
        std::thread::sleep(BETWEEN_KILLS.saturating_sub(killed.elapsed()));
    }
    eprintln!(
        "{} restarts: a published port accepted within {:?}, a new flow was established and closed within {:?}",
        kills(),
        slowest[0],
        slowest[1]
    );
    drop(running);
    nothing_left()
}

/// Tests that an idle connection of the guest is reset when its engine is killed.
fn engine_killed_idle(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, family)?.to_string();
    let mut running = network.run().guest(["tcp", &server, "waits"]).spawn()?;
    expect(&running.line()?, "waiting")?;
    context.program.engine()?.signal(Signal::KILL)?;
    let killed = Instant::now();
    expect(&running.line()?, "reset")?;
    eprintln!("reset after {:?}", killed.elapsed());
    running.finish()?;
    Ok(())
}

/// Tests that the third exit of the engine within ten seconds ends the program with one line that has the reason and
/// a status other than 0, and that no process is left.
fn engine_killed_often(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    // Ping sockets are permitted, so that no warning about them is logged.
    icmp::open_ping(context)?;
    let talk = talk()?;
    let server = tcp_server(&network, Family::V4)?;
    let connect = format!("{} guest tcp {server} connects 1", crate::run::own_path());
    let mut running = with_orphan(&network, &talk)?;
    for _ in 0..3 {
        let mut engine = None;
        process::wait_until("there is an engine", Duration::from_secs(1), || {
            let confined = |engine: &Process| engine.number("status", "Seccomp").is_ok_and(|mode| mode == 2);
            engine = context.program.engine().ok().filter(confined);
            Ok(engine.is_some())
        })?;
        let engine = engine.context("the program has no engine process")?;
        // An engine that is killed before its loop runs counts as a failed start instead of a crash, so its readiness
        // is awaited.
        expect(&running.ask(&connect)?, "ok")?;
        engine.signal(Signal::KILL)?;
        process::wait_until("the process has exited", Duration::from_secs(1), || {
            Ok(!process::running().contains(&engine))
        })?;
    }
    let status = ended(&mut running, Duration::from_secs(1))?;
    ensure!(
        status != Some(0),
        "the exit status is 0 although the engine was killed"
    );
    let text = std::fs::read_to_string(&talk)?;
    let (errors, warnings): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("error: "));
    ensure!(
        errors.len() == 1 && errors[0].contains("signal 9"),
        "not one line:\n{text}"
    );
    ensure!(
        warnings.len() == 2 && warnings.iter().all(|line| line.contains("restarting it")),
        "not a line for each that was replaced:\n{text}"
    );
    nothing_left()
}

/// Returns the guest's init process: the process of the program that is the command's parent.
fn init(context: &Context, running: &RunningProgram) -> Result<Process> {
    let ours = context.program.processes();
    let parents: Vec<u32> = process::running()
        .into_iter()
        .filter(|process| !ours.contains(process))
        .filter_map(Process::parent)
        .collect();
    let mut others = ours.into_iter().filter(|process| process.id() != running.id());
    others
        .find(|process| parents.contains(&process.id()))
        .context("the guest has no init process")
}

/// Waits at most `limit` until the process has exited. Returns its exit status, or `None` if a signal has ended it.
fn ended(running: &mut RunningProgram, limit: Duration) -> Result<Option<i32>> {
    let mut status = None;
    process::wait_until("the program exits", limit, || {
        status = running.ended()?;
        Ok(status.is_some())
    })?;
    Ok(status.and_then(|status| status.code()))
}

/// Checks that this process is the only one in the PID namespace. All other resources of the program are in
/// namespaces that end with their last process.
pub(super) fn nothing_left() -> Result<()> {
    let gone = process::wait_until("no process is left", Duration::from_secs(2), || {
        Ok(process::running().is_empty())
    });
    gone.map(|_| ())
        .with_context(|| format!("left: {:?}", process::running()))
}

/// Tests that the program joins an existing network namespace, and exits when the namespace is removed.
fn attach(context: &Context, by_path: bool) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?.to_string();
    let mut holder = if context.program.drop_privileges {
        let mut holder = Command::new("unshare");
        holder.args(["--user", "--map-user=1000", "--map-group=1000", "--"]);
        holder
    } else {
        Command::new("env")
    };
    // The namespace is owned by the user that has started the program, in the same user namespace.
    let binary = context
        .program
        .binary
        .as_deref()
        .context("there is no program under test")?;
    let what = if by_path {
        "/proc/$holder/ns/net"
    } else {
        "$holder"
    };
    let user = if context.program.drop_privileges {
        "--user --map-root-user"
    } else {
        ""
    };
    let enter = if context.program.drop_privileges {
        "--user --preserve-credentials"
    } else {
        ""
    };
    let line = format!(
        "unshare {user} --net sleep 1000 & holder=$!; sleep 0.3; \
         {binary} run {options} --ready-fd 3 --attach {what} 3>/dev/null & ours=$!; \
         i=0; until nsenter {enter} --net --target $holder {e2e} guest tcp {server} peer; do \
             i=$((i + 1)); [ $i -lt 50 ] || exit 1; sleep 0.1; done; \
         kill $holder; wait $ours",
        options = context.program.options.join(" "),
        e2e = crate::run::own_path()
    );
    let child = holder.args(["sh", "-c", &line]).stdout(Stdio::piped()).spawn()?;
    let output = child.wait_with_output()?;
    let text = process::checked("attach", output.status, &output.stdout, &[])?;
    ensure!(
        text.contains("198.51.100.1"),
        "the server did not see the host:\n{text}"
    );
    nothing_left()
}
