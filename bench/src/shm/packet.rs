//! A measurement over a SOCK_SEQPACKET socket, without an engine; each side makes one system call for each frame.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};

use super::GuestTask;
use super::process::{GuestProcess, SideCounts, Stopwatch};

/// Number of frames in one direction before the device serves the other direction.
const BURST: u64 = 64;

/// Time that the guest waits for a frame before it reads the clock.
const TIMEOUT: Duration = Duration::from_millis(20);

/// Runs a measurement and returns the counts of the guest and of the device.
pub(super) fn measure(task: GuestTask, duration: Duration) -> Result<(SideCounts, SideCounts)> {
    let flags = SocketFlags::CLOEXEC;
    let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    sockopt::set_socket_timeout(&theirs, sockopt::Timeout::Recv, Some(TIMEOUT))?;
    sockopt::set_socket_timeout(&theirs, sockopt::Timeout::Send, Some(TIMEOUT))?;
    let guest = GuestProcess::new(|| work(&theirs, task, duration))?;
    drop(theirs);
    let served = serve(&ours, task, &guest)?;
    Ok((guest.counts()?, served))
}

/// Runs the guest's side for `duration`.
fn work(socket: &OwnedFd, task: GuestTask, duration: Duration) -> Result<SideCounts> {
    let mut frame = [0; 2048];
    let mut frames = 0;
    let watch = Stopwatch::start();
    while watch.elapsed() < duration {
        for _ in 0..BURST {
            let len = match task {
                GuestTask::Send(_) => task.frame(),
                GuestTask::Receive | GuestTask::Echo | GuestTask::Idle => {
                    match recv(socket, &mut frame[..], RecvFlags::empty()) {
                        Ok((len, _)) => len,
                        Err(Errno::AGAIN) => break,
                        Err(error) => return Err(error.into()),
                    }
                }
            };
            if matches!(task, GuestTask::Echo | GuestTask::Send(_)) {
                match send(socket, &frame[..len], SendFlags::NOSIGNAL) {
                    Ok(_) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            frames += 1;
        }
    }
    Ok(watch.stop(frames, 0))
}

/// Runs the device's side, a generator and a sink, until the guest has finished.
fn serve(socket: &OwnedFd, task: GuestTask, guest: &GuestProcess) -> Result<SideCounts> {
    let frame = vec![0x55; task.frame()];
    let mut buffer = [0; 2048];
    let mut frames = 0;
    let watch = Stopwatch::start();
    loop {
        let made = if task.generates() {
            burst(|| send(socket, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))?
        } else {
            Some(0)
        };
        let received = match task {
            GuestTask::Echo | GuestTask::Send(_) => {
                burst(|| recv(socket, &mut buffer[..], RecvFlags::DONTWAIT).map(|(len, _)| len))?
            }
            GuestTask::Receive | GuestTask::Idle => Some(0),
        };
        let (Some(made), Some(received)) = (made, received) else {
            return Ok(watch.stop(frames, 0));
        };
        frames += made + received;
        if made + received == 0 {
            wait(socket, task, guest)?;
        }
    }
}

/// Sends or receives at most [`BURST`] frames by `one`. Returns their number, or `None` if the guest has closed its
/// end.
fn burst(mut one: impl FnMut() -> Result<usize, Errno>) -> Result<Option<u64>> {
    for moved in 0..BURST {
        match one() {
            Ok(1..) => {}
            Err(Errno::AGAIN) => return Ok(Some(moved)),
            Ok(0) | Err(Errno::PIPE | Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(BURST))
}

/// Waits until the socket is ready, or the guest has finished.
fn wait(socket: &OwnedFd, task: GuestTask, guest: &GuestProcess) -> Result<()> {
    let mut flags = PollFlags::IN;
    flags.set(PollFlags::OUT, task.generates());
    let mut fds = [
        PollFd::from_borrowed_fd(socket.as_fd(), flags),
        PollFd::from_borrowed_fd(guest.as_fd(), PollFlags::IN),
    ];
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
