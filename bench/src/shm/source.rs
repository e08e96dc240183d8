//! The source on the host: sends datagrams to the published port, and receives echoes.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pontoon_sys::udp;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt};

use super::engine::PORT;
use super::memory::SharedCounter;
use super::process::{GuestProcess, Stopwatch};
use super::{GuestTask, SendMode};

/// Largest number of datagrams in flight: as many of 1,300 bytes as a socket's default receive buffer holds.
pub(super) const WINDOW: usize = 128;

/// Number of datagrams in one send call with UDP_SEGMENT.
const SEGMENTS: usize = 16;

/// Time without a received datagram after which those in flight count as lost.
const TIMEOUT: Duration = Duration::from_millis(20);

/// Pause of the source while [`WINDOW`] datagrams are in flight.
const PAUSE: Duration = Duration::from_micros(20);

/// A UDP socket on the host that sends datagrams to the published port.
pub(super) struct DatagramSource {
    socket: UdpSocket,
    task: GuestTask,
    burst: usize,
    payload: Vec<u8>,
}

/// Figures of the source after a measurement.
pub(super) struct SourceResult {
    pub(super) sent: u64,
    pub(super) lost: u64,
    /// Echoes received per second; `None` if the guest does not echo.
    pub(super) rate: Option<f64>,
    pub(super) cpu: Duration,
}

impl DatagramSource {
    pub(super) fn new(task: GuestTask, send_mode: SendMode) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect((Ipv4Addr::LOCALHOST, PORT))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))?;
        udp::coalesce(&socket).context("the kernel lacks UDP_GRO")?;
        let burst = match send_mode {
            SendMode::Single => 1,
            SendMode::Segmented => SEGMENTS,
        };
        if burst > 1 {
            udp::set_segment(&socket, task.payload() as u16).context("the kernel lacks UDP_SEGMENT")?;
        }
        Ok(Self {
            socket,
            task,
            burst,
            payload: vec![b'd'; burst * task.payload()],
        })
    }

    /// Sends until the guest has finished, with at most [`WINDOW`] datagrams in flight: a flood would take the CPU
    /// time that engine and guest need, for datagrams that are dropped.
    pub(super) fn run(&self, guest: &GuestProcess, received: &SharedCounter) -> Result<SourceResult> {
        // The default timer slack would prolong each sleep by 50 us.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        let watch = Stopwatch::start();
        let fed = match self.task {
            GuestTask::Echo => self.exchange(guest)?,
            GuestTask::Receive | GuestTask::Send(_) | GuestTask::Idle => self.push(guest, received)?,
        };
        Ok(SourceResult {
            cpu: Duration::from_nanos(watch.stop(0, 0).cpu),
            ..fed
        })
    }

    fn push(&self, guest: &GuestProcess, received: &SharedCounter) -> Result<SourceResult> {
        // `given_up` counts datagrams that are presumed lost; some may still arrive.
        let (mut sent, mut given_up) = (0_u64, 0_u64);
        let mut moved = (0, Instant::now());
        while !guest.is_done()? {
            let arrived = received.load(Ordering::Acquire).saturating_sub(1);
            if moved.0 != arrived {
                moved = (arrived, Instant::now());
            }
            if (sent - given_up).saturating_sub(arrived) + self.burst as u64 <= WINDOW as u64 {
                self.send()?;
                sent += self.burst as u64;
            } else if moved.1.elapsed() > TIMEOUT {
                given_up = sent.saturating_sub(arrived);
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(SourceResult {
            sent,
            lost: lost(sent, moved.0),
            rate: None,
            cpu: Duration::ZERO,
        })
    }

    fn exchange(&self, guest: &GuestProcess) -> Result<SourceResult> {
        let mut buffer = vec![0; 1 << 16];
        let len = self.task.payload();
        let (mut sent, mut back, mut echoed, mut ahead) = (0, 0, 0, 0);
        let mut span = None;
        while !guest.is_done()? {
            while ahead + self.burst <= WINDOW {
                self.send()?;
                sent += self.burst as u64;
                ahead += self.burst;
            }
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((bytes, _)) => {
                    let echoes = &buffer[..bytes];
                    ensure!(
                        bytes.is_multiple_of(len) && echoes.iter().all(|byte| *byte == b'd'),
                        "the echo differs from the datagram"
                    );
                    back += (bytes / len) as u64;
                    let now = Instant::now();
                    let (begin, _) = *span.get_or_insert((now, now));
                    // The first echoes arrived before the clock was started.
                    if begin != now {
                        echoed += (bytes / len) as u64;
                    }
                    span = Some((begin, now));
                    ahead = ahead.saturating_sub(bytes / len);
                }
                Err(Errno::AGAIN) => ahead = 0,
                Err(Errno::CONNREFUSED | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let seconds = span.map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
        ensure!(seconds > 0.0, "no echo arrived");
        Ok(SourceResult {
            sent,
            lost: lost(sent, back),
            rate: Some(echoed as f64 / seconds),
            cpu: Duration::ZERO,
        })
    }

    fn send(&self) -> Result<()> {
        match self.socket.send(&self.payload) {
            Ok(_) => Ok(()),
            // The error is an ICMP error for an earlier datagram.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(error).context("cannot send datagrams"),
        }
    }
}

/// Returns the number of sent datagrams that have not arrived and cannot be in flight any more.
fn lost(sent: u64, arrived: u64) -> u64 {
    sent.saturating_sub(arrived).saturating_sub(WINDOW as u64)
}
