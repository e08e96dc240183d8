//! Cases about the log: a reader that stalls, or a terminal that is stopped, must not delay the program.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::ip;
use rustix::process::Signal;

use super::{expect, tcp_server, tmpfs};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::process::{self, Stopwatch};
use crate::run::RunningProgram;
use crate::sys;

const SOCKET: &str = "/run/control";

/// Shell script of a guest that executes the lines of its standard input, and exits with 7 on SIGTERM.
const GUEST: &str = "trap 'exit 7' TERM; echo listening; while read -r line; do eval \"$line\"; done";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("log.reader-stalls", 60, reader_stalls),
        Case::new("log.terminal-is-stopped", 60, terminal_is_stopped),
        Case::new("log.end-with-a-stopped-terminal", 30, end_with_a_stopped_terminal),
        Case::new("log.start-with-a-full-pipe", 30, start_with_a_full_pipe),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

/// A running guest whose supervisor logs to a pipe or terminal of the test.
struct LogScene<'a> {
    context: &'a Context,
    guest: RunningProgram,
    server: String,
    _network: Network<'a>,
}

impl<'a> LogScene<'a> {
    /// Starts a guest whose supervisor logs to `log`, with option `-v`.
    fn new(context: &'a Context, log: OwnedFd) -> Result<Self> {
        let network = Network::new(context)?;
        tmpfs(Path::new("/run"))?;
        let server = tcp_server(&network, Family::V4)?.to_string();
        let run = network.run().options(["-v", "--control", SOCKET]).log_to(log);
        let guest = run.shell(GUEST).spawn()?.listening()?;
        Ok(Self {
            context,
            guest,
            server,
            _network: network,
        })
    }

    /// Checks that the control socket, connections of the guest, and signals are processed without delay.
    fn serves(&mut self) -> Result<()> {
        let flows = Stopwatch::start();
        let mut command = self.context.program.command()?;
        let command = command.args(["ctl", "--control", SOCKET, "flows"]);
        let mut ctl = command.stdout(std::process::Stdio::null()).spawn()?;
        let ended = process::wait_until("the control socket answers", Duration::from_secs(5), || {
            Ok(ctl.try_wait()?.is_some())
        });
        if ended.is_err() {
            ctl.kill()?;
            ctl.wait()?;
        }
        ended?;
        flows.within(Duration::from_secs(2), Duration::from_secs(5))?;
        let line = format!(
            "$E2E guest tcp {} peer >/dev/null 2>&1 && echo reached || echo refused",
            self.server
        );
        expect(&self.guest.ask(&line)?, "reached")
    }

    /// Checks that the program exits on SIGTERM.
    fn ends(mut self) -> Result<()> {
        self.guest.signal(Signal::TERM)?;
        let mut status = None;
        process::wait_until("the program exits", Duration::from_secs(5), || {
            status = self.guest.ended()?;
            Ok(status.is_some())
        })?;
        let code = status.and_then(|status| status.code());
        ensure!(code == Some(7), "status {code:?}");
        Ok(())
    }
}

/// Makes the supervisor log `lines` lines, by changes of the host's addresses.
fn provoke(lines: usize) -> Result<()> {
    for _ in 0..lines.div_ceil(2) {
        ip("address add 198.51.100.7/32 dev lo")?;
        ip("address del 198.51.100.7/32 dev lo")?;
    }
    Ok(())
}

/// Tests that lines beyond the queue's limit are dropped, and that their number is logged when the log is read again.
fn reader_stalls(context: &Context) -> Result<()> {
    let (read, write) = rustix::pipe::pipe()?;
    rustix::pipe::fcntl_setpipe_size(&write, 4096)?;
    let mut scene = LogScene::new(context, write)?;
    provoke(1500)?;
    scene.serves()?;

    let reader = thread::spawn(move || -> Result<String> {
        let mut text = String::new();
        File::from(read).read_to_string(&mut text)?;
        Ok(text)
    });
    scene.serves()?;
    scene.ends()?;
    let text = process::join(reader)?;
    let dropped: Vec<_> = text
        .lines()
        .filter(|line| line.contains("log lines were dropped"))
        .collect();
    ensure!(
        dropped.len() == 1 && dropped[0].starts_with("warning: "),
        "{dropped:?}"
    );
    let count: usize = dropped[0]
        .split_whitespace()
        .nth(1)
        .context("the line about dropped lines has no number")?
        .parse()?;
    let changes = text
        .lines()
        .filter(|line| line.starts_with("debug: the host's addresses changed"))
        .count();
    eprintln!("{changes} lines of changes, {count} dropped");
    ensure!(changes > 0 && count > 0, "{changes} lines, {count} dropped");
    Ok(())
}

/// Tests a terminal whose output is stopped, as by `^S` (tcflow(3)), and started again.
fn terminal_is_stopped(context: &Context) -> Result<()> {
    let (master, slave) = sys::terminal()?;
    let mut scene = LogScene::new(context, slave.as_fd().try_clone_to_owned()?)?;
    sys::stop_output(&slave, true)?;
    provoke(10)?;
    // The supervisor may read several changes at once and log them in one line, but the last change always has a
    // line.
    ip("address add 198.51.100.8/32 dev lo")?;
    scene.serves()?;
    sys::stop_output(&slave, false)?;
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    let until = Instant::now() + Duration::from_secs(10);
    // The lines that were queued meanwhile are written in order.
    while !String::from_utf8_lossy(&text).contains("198.51.100.8/32") {
        ensure!(Instant::now() < until, "{}", String::from_utf8_lossy(&text));
        let len = rustix::io::read(&master, &mut buffer)?;
        text.extend_from_slice(&buffer[..len]);
    }
    scene.serves()?;
    scene.ends()
}

/// Tests that a log that is never read delays the exit by one second.
fn end_with_a_stopped_terminal(context: &Context) -> Result<()> {
    let (_master, slave) = sys::terminal()?;
    let scene = LogScene::new(context, slave.as_fd().try_clone_to_owned()?)?;
    sys::stop_output(&slave, true)?;
    provoke(2)?;
    scene.ends()
}

/// Tests that a full pipe does not delay the start.
fn start_with_a_full_pipe(context: &Context) -> Result<()> {
    let (_read, write) = rustix::pipe::pipe()?;
    rustix::pipe::fcntl_setpipe_size(&write, 4096)?;
    rustix::io::write(&write, &[b'x'; 4096])?;
    let mut scene = LogScene::new(context, write)?;
    scene.serves()?;
    scene.ends()
}
