//! The workers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use pontoon_relay::counters::{Row, WorkerStats};
use pontoon_relay_worker::Counters;
use pontoon_relay_worker::messages::{Message, Settings};
use pontoon_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Context as _, Error};
use crate::signals;
use crate::spawn::{self, Child};
use crate::stdio;

/// Processes that move packets.
#[derive(Debug)]
pub(super) struct Crew {
    settings: Settings,
    members: Vec<Member>,
}

/// A worker's place; what it counts outlives it.
#[derive(Debug)]
struct Member {
    memory: OwnedFd,
    counters: Counters,
    life: Life,
    restarts: u64,
}

#[derive(Debug)]
enum Life {
    Alive {
        child: Child,
        control: OwnedFd,
        since: Instant,
    },
    /// Dead, and when it is to be born again.
    Dead(Instant),
}

/// A worker that dies younger than this ...
const YOUNG: Duration = Duration::from_millis(50);

/// ... has a successor only after this long, so that one that cannot live does not take the whole machine.
const PAUSE: Duration = Duration::from_millis(50);

/// How long one may take to end when asked to.
const GRACE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

impl Crew {
    /// Places for `count` workers, which are due at once.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub(super) fn new(count: u8, settings: Settings) -> Result<Self, Error> {
        let member = |_| {
            let memory = Counters::create().context("cannot make memory for counters")?;
            let counters = Counters::map(&memory).context("cannot map memory for counters")?;
            Ok(Member {
                memory,
                counters,
                life: Life::Dead(Instant::now()),
                restarts: 0,
            })
        };
        Ok(Self {
            settings,
            members: (0..count).map(member).collect::<Result<_, Error>>()?,
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Readable when a worker has died.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.members.iter().filter_map(|member| match &member.life {
            Life::Alive { child, .. } => Some(child.fd()),
            Life::Dead(_) => None,
        })
    }

    /// When the next one is due.
    pub(super) fn next_birth(&self) -> Option<Instant> {
        let due = |member: &Member| match member.life {
            Life::Alive { .. } => None,
            Life::Dead(until) => Some(until),
        };
        self.members.iter().filter_map(due).min()
    }

    /// Buries the dead.
    pub(super) fn reap(&mut self) {
        for (number, member) in self.members.iter_mut().enumerate() {
            let Life::Alive { child, since, .. } = &member.life else {
                continue;
            };
            let fd = child.fd();
            if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::default())) != Ok(1) {
                continue;
            }
            let now = Instant::now();
            let pause = if now - *since < YOUNG {
                PAUSE
            } else {
                Duration::ZERO
            };
            match child.wait() {
                status @ 129.. => tracing::error!("worker {number} was killed by signal {}", status - 128),
                status => tracing::error!("worker {number} died with status {status}"),
            }
            member.restarts += 1;
            member.life = Life::Dead(now + pause);
        }
    }

    /// Starts those that are due. Each has to be told everything, by its number.
    pub(super) fn start_due(&mut self) -> Vec<usize> {
        let now = Instant::now();
        let mut started = Vec::new();
        for (number, member) in self.members.iter_mut().enumerate() {
            if !matches!(member.life, Life::Dead(due) if due <= now) {
                continue;
            }
            match start() {
                Ok((child, control)) => {
                    let begin = Message::Begin(self.settings);
                    send(&control, &begin, Some(member.memory.as_fd()));
                    member.life = Life::Alive {
                        child,
                        control,
                        since: now,
                    };
                    started.push(number);
                }
                Err(error) => {
                    tracing::error!("{error}");
                    member.life = Life::Dead(now + PAUSE);
                }
            }
        }
        started
    }

    /// Tells one.
    pub(super) fn tell(&self, number: usize, message: &Message, descriptor: Option<BorrowedFd<'_>>) {
        if let Some(Life::Alive { control, .. }) = self.members.get(number).map(|member| &member.life) {
            send(control, message, descriptor);
        }
    }

    /// Tells all.
    pub(super) fn tell_all(&self, message: &Message) {
        for number in 0..self.members.len() {
            self.tell(number, message, None);
        }
    }

    /// Tells each, with its own descriptor.
    pub(super) fn tell_each(&self, message: &Message, descriptors: &[OwnedFd]) {
        for (number, descriptor) in descriptors.iter().enumerate() {
            self.tell(number, message, Some(descriptor.as_fd()));
        }
    }

    /// What every worker has counted in a row.
    pub(super) fn read(&self, row: u32) -> impl Iterator<Item = Row> {
        self.members.iter().map(move |member| member.counters.read(row))
    }

    /// Makes a row ready for somebody else.
    pub(super) fn clear(&self, row: u32) {
        for member in &self.members {
            member.counters.clear(row);
        }
    }

    /// Who they are.
    pub(super) fn stats(&self) -> Vec<WorkerStats> {
        let stats = |member: &Member| WorkerStats {
            pid: match &member.life {
                Life::Alive { child, .. } => child.pid().as_raw_nonzero().get().unsigned_abs(),
                Life::Dead(_) => 0,
            },
            restarts: member.restarts,
        };
        self.members.iter().map(stats).collect()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &self.members {
            if let Life::Alive { child, control, .. } = &member.life {
                let _ = rustix::net::shutdown(control, rustix::net::Shutdown::Both);
                let fd = child.fd();
                if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&GRACE)) != Ok(1) {
                    child.kill();
                }
                let _ = child.wait();
            }
        }
    }
}

fn start() -> Result<(Child, OwnedFd), Error> {
    let (ours, theirs) = seqpacket::pair().context("cannot make a socket pair")?;
    let child = spawn::fork(|| {
        let prepared = spawn::close_all_but(&[theirs.as_fd()])
            .and_then(|()| stdio::leave_to_the_command())
            .and_then(|()| signals::unblock_all());
        let result = prepared
            .and_then(|()| theirs.try_clone())
            .and_then(pontoon_relay_worker::run);
        match result {
            Ok(()) => 0,
            Err(error) => {
                tracing::error!("worker: {error}");
                1
            }
        }
    })
    .context("cannot fork a worker")?;
    Ok((child, ours))
}

/// A worker that is dead hears nothing; its successor will be told everything.
fn send(control: &OwnedFd, message: &Message, descriptor: Option<BorrowedFd<'_>>) {
    if let Err(error) = seqpacket::send(control, &message.encode(), descriptor.as_slice()) {
        tracing::debug!(%error, "a worker was not told");
    }
}
