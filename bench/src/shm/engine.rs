//! A measurement through the engine: source on the host, published UDP port, `pontoon vm`, link, guest.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pontoon_guest::{Attached, Options, Pacing, attach};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use super::memory::SharedCounter;
use super::process::GuestProcess;
use super::source::{DatagramSource, SourceResult};
use super::unikernel::{self, PacketLink, RingLink};
use super::{FrameLink, GuestTask, Harness, SendMode, ShmCase, ShmSample};
use crate::run::processes::{ProcessUsage, Processes};
use crate::stack::unprivileged;

/// Number of the published UDP port, the same on the host and the guest.
pub(super) const PORT: u16 = 5000;

/// Time limit for the engine to start, and to exit.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Time that the guest waits for a frame before it reads the clock.
const TURN: Duration = Duration::from_millis(20);

pub(super) fn measure(
    harness: &Harness<'_>,
    case: ShmCase,
    pacing: Pacing,
    send_mode: SendMode,
) -> Result<ShmSample> {
    let received = SharedCounter::new()?;
    let (task, duration) = (case.task, harness.duration);
    match case.link {
        FrameLink::Memory(waits) => {
            let socket = harness.socket()?;
            let mut command = command(harness, pacing)?;
            command
                .args(["--protocol", "vhost-user", "--socket"])
                .arg(&socket);
            let mut engine = EngineProcess::start(&mut command)?;
            let socket = engine.until(|| UnixStream::connect(&socket).ok())?;
            let options = Options {
                pacing: waits,
                ..Options::default()
            };
            let net: Attached = attach(socket, options)?;
            let mut net = RingLink(net);
            let guest = GuestProcess::new(|| unikernel::work(&mut net, task, duration, &received))?;
            engine.measure(guest, task, send_mode, &received)
        }
        FrameLink::Packet | FrameLink::Tap(_) => {
            let flags = SocketFlags::CLOEXEC;
            let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            let mut command = command(harness, pacing)?;
            command.args(["--protocol", "packet", "--fd", &theirs.as_raw_fd().to_string()]);
            // This process has one thread, so no other program that it starts inherits the descriptor.
            fcntl_setfd(&theirs, FdFlags::empty())?;
            let engine = EngineProcess::start(&mut command)?;
            drop(theirs);
            for way in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
                sockopt::set_socket_timeout(&ours, way, Some(TURN))?;
            }
            // The harness keeps its copy of the socket open: at the end of the stream the engine would exit before
            // its CPU time is read.
            let mut net = PacketLink(ours);
            let guest = GuestProcess::new(|| unikernel::work(&mut net, task, duration, &received))?;
            engine.measure(guest, task, send_mode, &received)
        }
    }
}

fn command(harness: &Harness<'_>, pacing: Pacing) -> Result<Command> {
    let io = match pacing {
        Pacing::Event => "event",
        Pacing::Hybrid => "hybrid",
        Pacing::Poll => "poll",
    };
    let mut command = unprivileged(harness.pontoon()?);
    command
        .args([
            "vm",
            "--quiet",
            "--one-off",
            "--no-ipv6",
            "--dns",
            "none",
            "--io",
            io,
        ])
        .args(["--publish", &format!("127.0.0.1:{PORT}:{PORT}/udp")]);
    Ok(command)
}

/// A running `pontoon vm`, whose engine is the device. It is killed on drop.
struct EngineProcess(Child);

impl EngineProcess {
    fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Self(child.context("cannot run pontoon vm")?))
    }

    /// Polls `done` until it returns a value.
    fn until<T>(&mut self, mut done: impl FnMut() -> Option<T>) -> Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(result) = done() {
                return Ok(result);
            }
            if let Some(status) = self.0.try_wait()? {
                bail!("pontoon vm has ended: {status}");
            }
            ensure!(begin.elapsed() < TIMEOUT, "pontoon vm does not start in time");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs the source until the guest has finished, and returns the figures.
    fn measure(
        mut self,
        guest: GuestProcess,
        task: GuestTask,
        send_mode: SendMode,
        received: &SharedCounter,
    ) -> Result<ShmSample> {
        self.until(|| match guest.is_done() {
            // The guest has failed, and has printed the reason.
            Ok(true) | Err(_) => Some(()),
            Ok(false) => (received.load(Ordering::Acquire) > 0).then_some(()),
        })?;
        let source = DatagramSource::new(task, send_mode)?;
        let ids = Processes::running(&[guest.id()]).stack();
        let (begin, before) = (Instant::now(), ProcessUsage::activity(&ids).cpu_s);
        let SourceResult {
            sent,
            lost,
            rate,
            cpu,
        } = source.run(&guest, received)?;
        let elapsed = begin.elapsed().as_secs_f64();
        let device = ProcessUsage::activity(&ids).cpu_s - before;
        let guest = guest.counts()?;
        let frames = guest.frames.max(1) as f64;
        Ok(ShmSample {
            rate: rate.unwrap_or(guest.frames as f64 / guest.seconds()),
            kicks: guest.notifications as f64 / frames,
            calls: guest.sleeps as f64 / frames,
            guest: guest.load(),
            device: device / elapsed,
            source: cpu.as_secs_f64() / elapsed,
            lost: lost as f64 / sent.max(1) as f64,
        })
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        // Child processes of the engine exit a moment later, and must not run during the next measurement.
        let begin = Instant::now();
        while !Processes::running(&[]).is_empty() && begin.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
