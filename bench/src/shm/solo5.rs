//! Solo5's tender for seccomp (spt) with its network test as guest, over a tap; the host's kernel sends echo
//! requests.

use std::io::IoSlice;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pontoon_netns::ip;
use pontoon_sys::Family;
use pontoon_sys::batch::Batch;
use pontoon_sys::{icmp, messages};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrV4, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt,
};
use rustix::process::geteuid;

use super::process::Stopwatch;
use super::{GuestTask, ShmSample};
use crate::run::processes::ProcessUsage;

/// IPv4 address of the guest, a constant of Solo5's test.
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Timeout of an echo reply.
const TIMEOUT: Duration = Duration::from_millis(20);

/// Time limit for the tender and its guest to start.
const BEGIN: Duration = Duration::from_secs(10);

/// Paths of the tender and the test in a source tree of Solo5.
pub(super) struct Solo5 {
    tender: PathBuf,
    guest: PathBuf,
}

impl Solo5 {
    /// Finds the programs in a source tree of Solo5.
    ///
    /// # Errors
    /// The tree has not been built.
    pub(super) fn find(tree: &Path) -> Result<Self> {
        let found = |path: &str| {
            let path = tree.join(path);
            ensure!(
                path.is_file(),
                "{} does not exist (try: make in the source tree of Solo5)",
                path.display()
            );
            Ok(path)
        };
        Ok(Self {
            tender: found("tenders/spt/solo5-spt")?,
            guest: found("tests/test_net/test_net.spt")?,
        })
    }

    /// Starts the tender and measures echo requests with `window` of them in flight.
    pub(super) fn measure(&self, window: usize, duration: Duration) -> Result<ShmSample> {
        ip(&format!(
            "tuntap add dev solo5 mode tap user {}
             address add 10.0.0.1/24 dev solo5
             link set solo5 up",
            geteuid().as_raw()
        ))?;
        let measured = self.measure_over_tap(window, duration);
        ip("link del dev solo5")?;
        measured
    }

    fn measure_over_tap(&self, window: usize, duration: Duration) -> Result<ShmSample> {
        let mut command = Command::new(&self.tender);
        command.arg("--net:service0=solo5").arg(&self.guest);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let tender = TenderProcess(child.with_context(|| format!("cannot run {}", self.tender.display()))?);
        let mut source = PingSource::new()?;
        let begin = Instant::now();
        while source.exchange(1, Duration::ZERO)?.answers == 0 {
            ensure!(begin.elapsed() < BEGIN, "Solo5's guest does not answer");
        }
        let ids = [tender.0.id()];
        let (before, watch) = (ProcessUsage::activity(&ids).cpu_s, Stopwatch::start());
        let exchanged = source.exchange(window, duration)?;
        let source = watch.stop(exchanged.answers, 0);
        let guest = ProcessUsage::activity(&ids).cpu_s - before;
        Ok(ShmSample {
            rate: exchanged.answers as f64 / source.seconds(),
            guest: guest / source.seconds(),
            source: source.load(),
            lost: exchanged.lost as f64 / exchanged.sent.max(1) as f64,
            ..ShmSample::default()
        })
    }
}

/// A running tender of Solo5, which is killed on drop.
struct TenderProcess(Child);

impl Drop for TenderProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The sender of ICMP echo requests.
struct PingSource {
    socket: OwnedFd,
    request: Vec<u8>,
    batch: Batch,
}

/// Numbers of echo requests sent, replies received, and requests that count as lost.
#[derive(Default)]
struct EchoCounts {
    sent: u64,
    answers: u64,
    lost: u64,
}

impl PingSource {
    fn new() -> Result<Self> {
        let protocol = Some(ipproto::ICMP);
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        icmp::only_echo_replies(&socket, Family::V4)?;
        connect(&socket, &SocketAddrV4::new(GUEST, 0))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))?;
        // RFC 792: header of an echo request with its checksum, and a payload of zeros.
        let mut request = vec![0; 8 + GuestTask::Echo.payload()];
        request[0] = 8;
        request[2..4].copy_from_slice(&[0xf7, 0xff]);
        Ok(Self {
            socket,
            request,
            batch: Batch::new(messages::MOST, 256),
        })
    }

    /// Sends echo requests and receives replies for `duration`, many in each system call.
    fn exchange(&mut self, window: usize, duration: Duration) -> Result<EchoCounts> {
        let mut exchanged = EchoCounts::default();
        let requests = vec![IoSlice::new(&self.request); window];
        let mut ahead = 0;
        let begin = Instant::now();
        loop {
            while ahead < window {
                let most = (window - ahead).min(messages::MOST);
                let sent = messages::send(&self.socket, &requests[..most])?;
                ahead += sent;
                exchanged.sent += sent as u64;
            }
            match self.batch.receive(&self.socket) {
                Ok(answers) => {
                    ahead = ahead.saturating_sub(answers);
                    exchanged.answers += answers as u64;
                }
                Err(Errno::AGAIN | Errno::INTR) => exchanged.lost += std::mem::take(&mut ahead) as u64,
                Err(error) => return Err(error).context("cannot receive replies"),
            }
            if begin.elapsed() >= duration {
                return Ok(exchanged);
            }
        }
    }
}
