//! Cases about clients on the host of published ports, whose connections do not use the guest's interface.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::io::Errno;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size, pipe};
use rustix::process::Signal;

use super::{expect, talk};
use crate::case::{Caller, Case, Context, Family};
use crate::counters::{self, Counters};
use crate::guest::tcp;
use crate::network::Network;
use crate::process::{self, Process, Stopwatch};
use crate::run::{PontoonRun, RunningProgram};

/// Size of a page of a pipe.
const PAGE: usize = 4096;

/// Name of the process that opens sockets in the guest's network namespace.
const HELPER: &str = "pontoon-sockets";

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        Case::both("local-clients.joined", 60, joined),
        Case::both("local-clients.over-the-link", 60, over_the_link),
        Case::both("local-clients.loopback-service-is-private", 30, private),
        Case::both("local-clients.pauses", 60, pauses),
        Case::both("local-clients.refused", 30, refused),
    ]
    .into_iter()
    .flatten()
    .collect();
    cases.extend([
        Case::new("local-clients.many", 120, many),
        Case::new("local-clients.helper-killed", 60, helper_killed),
        Case::new("local-clients.helper-stopped", 60, helper_stopped),
        Case::new(
            "local-clients.not-connected-to-itself",
            30,
            not_connected_to_itself,
        ),
        Case::new("local-clients.engine-killed", 60, engine_killed),
        Case::new("local-clients.helper-is-out-of-reach", 30, out_of_reach),
        Case::new(
            "local-clients.helper-is-out-of-reach-of-attached",
            30,
            out_of_reach_of_attached,
        ),
        Case::new("local-clients.flows-and-events", 30, flows),
        Case::new("local-clients.killed-under-load", 60, killed_under_load).alone(),
        Case::new("local-clients.pipe-pages-used-up", 60, pipe_pages_used_up)
            .caller(Caller::User("the pipes of root have no limit"))
            .alone(),
    ]);
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// Returns a `pontoon run` with a server at port 80 of `address`, which ends with a line on standard input.
fn server<'a>(network: &'a Network<'_>, address: IpAddr, publish: &str) -> PontoonRun<'a> {
    let inside = SocketAddr::new(address, 80);
    network
        .run()
        .options(["--publish", publish])
        .shell(&format!("$E2E guest serve tcp:{inside} & read end; kill $!"))
}

/// Starts a guest with a server at the published port 8080. Returns the guest, and the file to which it logs its counters.
fn logged_server(network: &Network<'_>) -> Result<(RunningProgram, PathBuf)> {
    let talk = talk()?;
    let run = server(network, Family::V4.unspecified(), "8080:80");
    let run = run.options([counters::LOGGED]).talk_to(&talk);
    Ok((run.spawn()?.listening()?, talk))
}

fn end(mut guest: RunningProgram) -> Result<()> {
    guest.send_line("end")?;
    guest.finish().map(|_| ())
}

/// Runs the client commands of published ports with a client on the loopback address of the host. Returns their number.
fn all_commands(family: Family) -> Result<u64> {
    let here = SocketAddr::new(family.loopback(), 8080);
    let commands: [(&[&str], &str); 8] = [
        (&["put", "0", "21", "67108864"], "ok"),
        (&["fetch", "0", "22", "67108864"], "ok"),
        (&["half-ours", "24", "8388608"], "ok"),
        (&["reset-theirs"], "ok"),
        (&["urgent"], "abcdef"),
        (&["connects", "100"], "ok"),
        (&["half-theirs", "25", "8388608"], "ok"),
        (&["reset-ours"], "reset"),
    ];
    for (words, result) in commands {
        let answer = tcp::command(here, words).with_context(|| words.join(" "))?;
        if words != ["urgent"] {
            expect(&answer, result)?;
        }
    }
    // `half-theirs` and `reset-ours` ask for the report by a second connection.
    Ok(5 + 100 + 4)
}

/// Tests data, ends and resets of joined connections, and the address that the service sees.
fn joined(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let talk = talk()?;
    let run = server(&network, family.unspecified(), "8080:80");
    let run = run.options(["--address", "10.77.0.15/24", "--address", "fd77::15/64"]);
    let guest = run
        .options([counters::LOGGED])
        .talk_to(&talk)
        .spawn()?
        .listening()?;
    let here = SocketAddr::new(family.loopback(), 8080);
    let own = family.pick([10, 77, 0, 15].into(), "fd77::15".parse()?);
    expect(&tcp::command(here, &["peer"])?, &own.to_string())?;
    let count = all_commands(family)?;
    end(guest)?;
    let counters = Counters::read(&talk)?;
    counters.expect("tcp_joined", count + 1)?;
    counters.expect("tcp_accepted", count + 1)?;
    counters.expect("sandbox_refused", 0)
}

/// Tests the same by `via=link` and by `--no-splice`.
fn over_the_link(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let talk = talk()?;
    for (publish, option) in [("8080:80,via=link", "-v"), ("8080:80", "--no-splice")] {
        let run = server(&network, family.unspecified(), publish);
        let run = run.options([option, counters::LOGGED]).talk_to(&talk);
        let guest = run.spawn()?.listening()?;
        let count = all_commands(family)?;
        end(guest)?;
        let counters = Counters::read(&talk)?;
        counters.expect("tcp_joined", 0)?;
        counters.expect("tcp_accepted", count)?;
    }
    Ok(())
}

/// Tests that a service at the guest's loopback address is not reached, unless the option names it.
fn private(context: &Context, family: Family) -> Result<()> {
    let here = SocketAddr::new(family.loopback(), 8080);
    let network = Network::new(context)?;
    {
        let guest = server(&network, family.loopback(), "8080:80")
            .spawn()?
            .listening()?;
        // A client over the link is accepted before the guest refuses it.
        let mut stream = TcpStream::connect(here)?;
        let end_of_stream = stream.read(&mut [0]);
        ensure!(
            matches!(&end_of_stream, Err(error) if error.kind() == ErrorKind::ConnectionReset),
            "{end_of_stream:?} instead of a reset"
        );
        end(guest)?;
    }
    let guest = server(&network, family.loopback(), "8080:80,via=guest-loopback")
        .spawn()?
        .listening()?;
    expect(&tcp::command(here, &["peer"])?, &family.loopback().to_string())?;
    end(guest)
}

/// Tests that data waits while the receiver does not read, and that nothing is lost.
fn pauses(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let guest = server(&network, family.unspecified(), "8080:80")
        .spawn()?
        .listening()?;
    let here = SocketAddr::new(family.loopback(), 8080);
    std::thread::scope(|scope| -> Result<()> {
        let put = scope.spawn(|| tcp::command(here, &["put", "5", "31", "67108864"]));
        let fetch = scope.spawn(|| tcp::command(here, &["fetch", "5", "32", "67108864"]));
        // A receiver that does not read delays no other connection.
        let started = Instant::now();
        expect(&tcp::command(here, &["connects", "100"])?, "ok")?;
        ensure!(
            started.elapsed() < Duration::from_secs(4),
            "other connections waited"
        );
        for client in [put, fetch] {
            let answer = client
                .join()
                .map_err(|_| anyhow::anyhow!("the client panicked"))??;
            expect(&answer, "ok")?;
        }
        Ok(())
    })?;
    end(guest)
}

/// Tests that a client of a port at which nothing listens is reset by the guest over the link.
fn refused(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let mut run = network.run().options(["--publish", "8080:81"]);
    run = run.shell("echo listening; read end");
    let guest = run.spawn()?.listening()?;
    let started = Instant::now();
    let here = SocketAddr::new(family.loopback(), 8080);
    let mut stream = TcpStream::connect(here)?;
    let end_of_stream = stream.read(&mut [0]);
    ensure!(end_of_stream.is_err(), "{end_of_stream:?} instead of a reset");
    ensure!(started.elapsed() < Duration::from_secs(3), "the reset was late");
    end(guest)
}

/// Tests many connections, open at the same time and short ones.
fn many(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let (guest, talk) = logged_server(&network)?;
    let here = SocketAddr::new(Family::V4.loopback(), 8080);
    expect(&tcp::command(here, &["crowd", "1500"])?, "1500 0")?;
    // More connections than the guest has ports, within a minute.
    expect(&tcp::command(here, &["connects", "30000"])?, "ok")?;
    end(guest)?;
    let counters = Counters::read(&talk)?;
    counters.expect("tcp_accepted", 31_500)?;
    counters.expect("tcp_joined", 31_500)
}

/// Returns the name of a process; an empty text if it has exited.
fn name(process: Process) -> String {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", process.id()));
    name.unwrap_or_default().trim_end().to_owned()
}

fn helper() -> Result<Process> {
    let mut processes = process::running().into_iter();
    let helper = processes.find(|process| name(*process) == HELPER);
    helper.context("there is no helper process")
}

/// Tests that connections work while there is no helper, and that another one is started.
fn helper_killed(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let (guest, talk) = logged_server(&network)?;
    let here = SocketAddr::new(Family::V4.loopback(), 8080);
    expect(&tcp::command(here, &["connects", "10"])?, "ok")?;
    let mut open = tcp::request(here, "echo")?;
    let before = helper()?;
    before.signal(Signal::KILL)?;
    let killed = Instant::now();
    expect(&tcp::command(here, &["connects", "200"])?, "ok")?;
    process::wait_until("another helper runs", Duration::from_secs(2), || {
        Ok(helper().is_ok_and(|other| other != before))
    })?;
    eprintln!("another helper after {:?}", killed.elapsed());
    expect(&tcp::command(here, &["connects", "100"])?, "ok")?;
    // An open connection does not depend on the helper.
    open.write_all(b"x")?;
    open.read_exact(&mut [0])?;
    drop(open);
    end(guest)?;
    let counters = Counters::read(&talk)?;
    counters.expect("tcp_accepted", 311)?;
    let joined = counters.count("tcp_joined");
    ensure!(joined > 150, "only {joined} connections were joined");
    Ok(())
}

/// Tests that clients do not each wait for a helper that does not answer.
fn helper_stopped(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let (guest, talk) = logged_server(&network)?;
    let here = SocketAddr::new(Family::V4.loopback(), 8080);
    expect(&tcp::command(here, &["connects", "10"])?, "ok")?;
    let helper = helper()?;
    helper.signal(Signal::STOP)?;
    let stopped = Instant::now();
    // More than there are sockets in reserve. One client waits for 3 s.
    expect(&tcp::command(here, &["connects", "300"])?, "ok")?;
    let took = stopped.elapsed();
    helper.signal(Signal::CONT)?;
    ensure!(took < Duration::from_secs(10), "300 connections took {took:?}");
    std::thread::sleep(Duration::from_millis(200));
    expect(&tcp::command(here, &["connects", "100"])?, "ok")?;
    end(guest)?;
    let counters = Counters::read(&talk)?;
    counters.expect("tcp_accepted", 410)?;
    let joined = counters.count("tcp_joined");
    ensure!(joined > 100, "only {joined} connections were joined");
    Ok(())
}

/// Tests that a client of a port at which nothing listens is reset, even if the kernel chooses that port for the socket that is
/// connected to it.
fn not_connected_to_itself(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let run = network.run().options(["--publish", "8080:40000"]);
    let range = "/proc/sys/net/ipv4/ip_local_port_range";
    let guest = run
        .shell(&format!(
            "echo 40000 40000 > {range} && echo listening && read end"
        ))
        .spawn()?
        .listening()?;
    let here = SocketAddr::new(Family::V4.loopback(), 8080);
    for _ in 0..3 {
        let mut client = TcpStream::connect(here)?;
        client.set_read_timeout(Some(Duration::from_secs(10)))?;
        let written = client.write_all(b"x");
        let received = written.and_then(|()| client.read(&mut [0]));
        match received {
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
            other => bail!("the client was not reset: {other:?}"),
        }
    }
    end(guest)
}

/// Tests that a killed engine ends its connections, and that the next one has a helper of its own.
fn engine_killed(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let (guest, talk) = logged_server(&network)?;
    let here = SocketAddr::new(Family::V4.loopback(), 8080);
    let mut open = tcp::request(here, "echo")?;
    open.write_all(b"x")?;
    open.read_exact(&mut [0])?;
    let before = helper()?;
    context.program.kill_engine()?;
    let killed = Instant::now();
    expect(&tcp::command(here, &["connects", "1"])?, "ok")?;
    eprintln!("the next connection after {:?}", killed.elapsed());
    let end_of_stream = open.read(&mut [0]);
    ensure!(!matches!(end_of_stream, Ok(1..)), "{end_of_stream:?}");
    ensure!(helper()? != before, "the helper of the old engine still runs");
    expect(&tcp::command(here, &["connects", "100"])?, "ok")?;
    end(guest)?;
    let log = std::fs::read_to_string(&talk)?;
    ensure!(log.contains("debug: tcp_joined 101\n"), "{log}");
    ensure!(helper().is_err(), "the helper is left");
    Ok(())
}

/// Tests that a client is served within 200 ms after the helper or the engine was killed under load, and that nothing is left
/// after the supervisor was.
fn killed_under_load(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let (mut guest, _) = logged_server(&network)?;
    let here = SocketAddr::new(Family::V4.loopback(), 8080);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        for words in [
            &["connects", "20"][..],
            &["connects", "20"],
            &["put", "0", "7", "8388608"],
        ] {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // Clients of a process that is killed fail.
                    let _ = tcp::command(here, words);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let result = kill_each(context, here);
        is_over.store(true, Ordering::Relaxed);
        result
    })?;
    ensure!(guest.ended()?.is_some(), "the program still runs");
    Ok(())
}

fn kill_each(context: &Context, here: SocketAddr) -> Result<()> {
    // The load has begun by then.
    std::thread::sleep(Duration::from_millis(300));
    let (helper_before, engine) = (helper()?, context.program.engine()?);
    for killed in [helper_before, engine] {
        killed.signal(Signal::KILL)?;
        let stopwatch = Stopwatch::start();
        let is_served = || Ok(tcp::command(here, &["connects", "1"]).is_ok_and(|answer| answer == "ok"));
        process::wait_until("a client is served", Duration::from_secs(5), is_served)?;
        let took = stopwatch.within(Duration::from_millis(200), Duration::from_secs(5))?;
        eprintln!("a client is served {took:?} after {killed:?} was killed");
        process::wait_until("another helper runs", Duration::from_secs(5), || {
            Ok(helper().is_ok_and(|other| other != helper_before))
        })?;
    }
    context.program.supervisor()?.signal(Signal::KILL)?;
    process::wait_until("all processes end", Duration::from_secs(5), || {
        let names = process::running().into_iter().map(name);
        Ok(names
            .into_iter()
            .all(|name| !name.starts_with("pontoon-") || name == "pontoon-e2e"))
    })?;
    let refused = TcpStream::connect(here);
    ensure!(refused.is_err(), "the port is still open");
    Ok(())
}

/// Tests that data is moved in both directions if another program of the same user holds all pages that its pipes may have.
fn pipe_pages_used_up(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let guest = server(&network, Family::V4.unspecified(), "8080:80")
        .spawn()?
        .listening()?;
    let mut held = Vec::new();
    let mut size = 1 << 20;
    while size > 2 * PAGE {
        let (read, write) = pipe()?;
        match fcntl_setpipe_size(&write, size) {
            Ok(_) => held.push((read, write)),
            Err(Errno::PERM) => size /= 2,
            Err(error) => return Err(error.into()),
        }
    }
    let (_read, write) = pipe()?;
    let pages = fcntl_getpipe_size(&write)? / PAGE;
    ensure!(pages <= 2, "a pipe still has {pages} pages");
    let here = SocketAddr::new(Family::V4.loopback(), 8080);
    for words in [["put", "0", "31", "67108864"], ["fetch", "0", "32", "67108864"]] {
        expect(&tcp::command(here, &words)?, "ok")?;
    }
    drop(held);
    end(guest)
}

/// Tests that root inside can neither see, signal nor trace the helper, and that it has no capability.
fn out_of_reach(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let run = network.run().options(["--publish", "8080:80"]);
    // In the PID namespace of the guest there are only its own processes; the host's /proc is covered.
    let line = format!("for dir in /proc/[0-9]*; do cat $dir/comm; done | grep -c {HELPER}; read end");
    let mut guest = run.shell(&line).spawn()?;
    expect(&guest.line()?, "0")?;
    has_no_privileges(&helper()?)?;
    // A process of the guest that sees the host's processes, as with `--attach`.
    is_untraceable(&helper()?, guest_init(&guest)?)?;
    end(guest)
}

/// Tests that root of an attached namespace cannot trace the helper, although it sees the host's processes.
fn out_of_reach_of_attached(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let binary = context
        .program
        .binary
        .as_deref()
        .context("there is no program under test")?;
    let line = format!(
        "unshare --user --map-root-user --net sleep 1000 & holder=$!; sleep 0.3; \
         {binary} run {options} -p 8080:80 --ready-fd 3 --attach $holder 3>/dev/null & ours=$!; \
         echo $holder; read end; kill $holder; wait $ours",
        options = context.program.options.join(" "),
    );
    // Program and namespace have the same user.
    let mut shell = match context.program.drop_privileges {
        true => {
            let mut shell = Command::new("unshare");
            shell.args(["--user", "--map-user=1000", "--map-group=1000", "--", "sh"]);
            shell
        }
        false => Command::new("sh"),
    };
    let shell = shell.args(["-c", &line]).stdin(Stdio::piped());
    let mut shell = RunningProgram::of(shell.stdout(Stdio::piped()).spawn()?)?;
    let holder = shell.line()?.parse()?;
    let has_helper = || Ok(helper().is_ok_and(|helper| has_no_privileges(&helper).is_ok()));
    process::wait_until("a helper runs", Duration::from_secs(5), has_helper)?;
    is_untraceable(&helper()?, holder)?;
    end(shell)
}

/// Checks that the helper has no capability, and a filter of system calls.
fn has_no_privileges(helper: &Process) -> Result<()> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", helper.id()))?;
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        let value = status.lines().find_map(|line| line.strip_prefix(set));
        let value = value.context("no such line")?.trim_start_matches(':').trim();
        ensure!(value.bytes().all(|digit| digit == b'0'), "{set} is {value}");
    }
    ensure!(status.contains("Seccomp:\t2"), "the helper has no filter");
    Ok(())
}

/// Checks that root in the user and network namespaces of the process `inside` cannot read descriptors and memory of the helper,
/// nor trace it.
fn is_untraceable(helper: &Process, inside: u32) -> Result<()> {
    let helper = helper.id();
    let attach = format!("import ctypes; print(ctypes.CDLL(None).ptrace(16, {helper}, 0, 0))");
    let line = format!(
        "id -u; readlink /proc/{helper}/fd/0 /proc/{helper}/cwd; head -c1 /proc/{helper}/mem; python3 -c '{attach}'"
    );
    let mut command = Command::new("nsenter");
    command.args(["--user", "--preserve-credentials", "--net"]);
    let inside = command
        .args([&format!("--target={inside}"), "sh", "-c", &line])
        .output()?;
    eprint!("{}", String::from_utf8_lossy(&inside.stderr));
    expect(String::from_utf8_lossy(&inside.stdout).trim_end(), "0\n-1")
}

/// Returns the first process of the guest.
fn guest_init(guest: &RunningProgram) -> Result<u32> {
    let is_init = |process: &Process| {
        process.parent() == Some(guest.id())
            && std::fs::read_to_string(format!("/proc/{}/comm", process.id()))
                .is_ok_and(|name| name.trim_end() == "pontoon-init")
    };
    let init = process::running().into_iter().find(is_init);
    Ok(init.context("the guest has no first process")?.id())
}

/// Tests that a joined connection is listed, ended by its id, and reported in the audit file.
fn flows(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let directory = talk()?;
    let (socket, audit) = (
        directory.with_extension("control"),
        directory.with_extension("audit"),
    );
    let run = server(&network, Family::V4.unspecified(), "8080:80");
    let run = run.options(["--control", &socket.display().to_string()]);
    let run = run.options(["--audit", &audit.display().to_string()]);
    let guest = run.spawn()?.listening()?;
    let here = SocketAddr::new(Family::V4.loopback(), 8080);
    let mut open = tcp::request(here, "echo")?;
    open.write_all(b"xyz")?;
    open.read_exact(&mut [0; 3])?;
    let client = open.local_addr()?.to_string();
    let ctl = |words: &[&str]| -> Result<String> {
        let mut command = context.program.command()?;
        command.arg("ctl").arg("--control").arg(&socket).args(words);
        Ok(String::from_utf8(command.output()?.stdout)?)
    };
    let listed = ctl(&["flows"])?;
    let line = listed.lines().find(|line| line.contains(&client));
    let line = line.with_context(|| format!("{client} is not in {listed}"))?;
    let id = line.split_whitespace().last().context("an empty line")?;
    eprintln!("{line}");
    ctl(&["flows", "kill", id])?;
    let end_of_stream = open.read(&mut [0]);
    ensure!(
        matches!(&end_of_stream, Err(error) if error.kind() == ErrorKind::ConnectionReset),
        "{end_of_stream:?} instead of a reset"
    );
    end(guest)?;
    let records = std::fs::read_to_string(&audit)?;
    let of_client = records.lines().filter(|line| line.contains(&client));
    let of_client: Vec<&str> = of_client.collect();
    ensure!(of_client.len() == 2, "{of_client:?}");
    ensure!(of_client[1].contains("killed"), "{}", of_client[1]);
    Ok(())
}
