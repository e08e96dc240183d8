//! The workers.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use pontoon_relay::counters::{OF_WORKER, Row, WorkerStats};
use pontoon_relay_worker::Counters;
use pontoon_relay_worker::messages::{Message, READY, Settings};
use pontoon_sandbox::{Namespaces, Role, Sandbox};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::RETRY;
use super::line::{Cut, Line};
use crate::deaths::Deaths;
use crate::error::{Context as _, Error, one_line};
use crate::spawn::{self, Child};
use crate::talk::Talk;
use crate::{environment, last_words, output, panics, signals, stdio};

/// Processes that move packets.
#[derive(Debug)]
pub(super) struct Crew {
    birth: Birth,
    members: Vec<Member>,
}

/// What every worker is born with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Birth {
    /// What it is told first.
    pub(super) settings: Settings,
    /// A layer of the sandbox that the host refuses is an error.
    pub(super) require_sandbox: bool,
    /// What it does without, for tests.
    pub(super) disabled: Disabled,
}

/// A worker's place; what it counts outlives it.
#[derive(Debug)]
struct Member {
    memory: OwnedFd,
    counters: Counters,
    life: Life,
    restarts: u64,
    deaths: Deaths,
    /// The namespaces of the first one.
    born_in: Option<Namespaces>,
}

#[derive(Debug)]
enum Life {
    Alive {
        child: Child,
        line: Line,
        /// Its standard error.
        talk: Talk,
        since: Instant,
        /// Until when it has to say that it works, where it has not yet. What it is told meanwhile waits.
        silent: Option<Instant>,
    },
    /// Dead, and when it is to be born again.
    Dead(Instant),
}

/// Why a worker is none any more.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Said(String),
    Killed(u8),
    Died(u8),
    Silent,
}

/// A worker that dies younger than this ...
const YOUNG: Duration = Duration::from_millis(50);

/// ... has a successor only after this long, so that one that cannot live does not take the whole machine.
const PAUSE: Duration = Duration::from_millis(50);

/// How long one may take to say that it works; it takes a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Room for what one says: a line of text.
const LONGEST: usize = 4096;

/// How long one may take to end when asked to.
const GRACE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

impl Crew {
    /// Starts `count` workers, and waits until they work.
    ///
    /// # Errors
    /// Out of descriptors or memory; one that cannot start: so would be the next.
    pub(super) fn new(count: u8, birth: Birth) -> Result<Self, Error> {
        let member = |_| {
            let memory = Counters::create().context("cannot make memory for counters")?;
            let counters = Counters::map(&memory).context("cannot map memory for counters")?;
            Ok(Member {
                memory,
                counters,
                life: Life::Dead(Instant::now()),
                restarts: 0,
                deaths: Deaths::default(),
                born_in: None,
            })
        };
        let mut crew = Self {
            birth,
            members: (0..count).map(member).collect::<Result<_, Error>>()?,
        };
        for member in &mut crew.members {
            member.start(&crew.birth)?;
        }
        crew.wait_for_all()?;
        Ok(crew)
    }

    fn wait_for_all(&mut self) -> Result<(), Error> {
        loop {
            self.go_on();
            for (number, member) in self.members.iter_mut().enumerate() {
                if let Some(end) = member.look() {
                    return Err(Error::new(format!("worker {number}: {end}")));
                }
            }
            let Some(until) = self.next_turn() else {
                return Ok(());
            };
            let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            poll(&mut self.poll_fds().collect::<Vec<_>>(), timeout.as_ref())
                .context("cannot wait for a worker")?;
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// What to poll: a worker's death, its first word, room for what it has not been told yet, and what it writes.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.members.iter().flat_map(|member| {
            let fds = match &member.life {
                Life::Alive {
                    child,
                    line,
                    talk,
                    silent,
                    ..
                } => {
                    let death = PollFd::from_borrowed_fd(child.fd(), PollFlags::IN);
                    let word = silent.map(|_| PollFd::new(line, PollFlags::IN));
                    let talk = talk.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                    [Some(death), word, line.poll_fd(), talk]
                }
                Life::Dead(_) => [None, None, None, None],
            };
            fds.into_iter().flatten()
        })
    }

    /// When the next one is due, or is to be told more, or has been silent for too long.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        let turn = |member: &Member| match &member.life {
            Life::Alive { silent, line, .. } => [*silent, line.next_turn()].into_iter().flatten().min(),
            Life::Dead(until) => Some(*until),
        };
        self.members.iter().filter_map(turn).min()
    }

    /// Tells what there was no room for before, and says what they have written.
    pub(super) fn go_on(&mut self) {
        for member in &mut self.members {
            if let Life::Alive { line, talk, .. } = &mut member.life {
                line.go_on(Instant::now());
                talk.pass_on();
            }
        }
    }

    /// Buries the dead.
    pub(super) fn reap(&mut self) {
        for (number, member) in self.members.iter_mut().enumerate() {
            let Some(end) = member.look() else {
                continue;
            };
            tracing::error!("worker {number}: {end}");
            member.restarts += 1;
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
            match member.start(&self.birth) {
                Ok(()) => started.push(number),
                Err(error) => {
                    tracing::error!("{error}");
                    member.life = Life::Dead(now + RETRY);
                }
            }
        }
        started
    }

    /// Tells one. Who has not listened for so long that it is too much to keep is replaced.
    pub(super) fn tell(&mut self, number: usize, message: &Message, descriptor: Option<BorrowedFd<'_>>) {
        let life = self.members.get_mut(number).map(|member| &mut member.life);
        if let Some(Life::Alive { child, line, .. }) = life
            && line.say(message, descriptor) == Err(Cut)
        {
            tracing::error!("worker {number} does not listen");
            child.kill();
        }
    }

    /// Tells all.
    pub(super) fn tell_all(&mut self, message: &Message) {
        for number in 0..self.members.len() {
            self.tell(number, message, None);
        }
    }

    /// Tells each, with its own descriptor.
    pub(super) fn tell_each(&mut self, message: &Message, descriptors: &[OwnedFd]) {
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
        let stats = |member: &Member| {
            let mut stats = WorkerStats {
                pid: match &member.life {
                    Life::Alive { child, .. } => child.pid().as_raw_nonzero().get().unsigned_abs(),
                    Life::Dead(_) => 0,
                },
                restarts: member.restarts,
                ..WorkerStats::default()
            };
            stats.add(&member.counters.read(OF_WORKER));
            stats
        };
        self.members.iter().map(stats).collect()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &self.members {
            if let Life::Alive { child, line, .. } = &member.life {
                let _ = rustix::net::shutdown(line, rustix::net::Shutdown::Both);
                let fd = child.fd();
                if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&GRACE)) != Ok(1) {
                    child.kill();
                }
                let _ = child.wait();
            }
        }
    }
}

impl Member {
    /// Forks a worker that counts in our memory. That it works it will say.
    fn start(&mut self, birth: &Birth) -> Result<(), Error> {
        let (ours, theirs) = seqpacket::pair_with_suspect().context("cannot make a socket pair")?;
        let mut line = Line::new(ours).context("cannot talk to a worker")?;
        let (talk, error) = Talk::pair().context("cannot make a pipe")?;
        // It is the first message: there is room.
        let _ = line.say(&Message::Begin(birth.settings), Some(self.memory.as_fd()));
        let child = spawn::sandboxed(&birth.disabled, &mut self.born_in, |born_in| {
            let sandbox = Sandbox {
                role: Role::Relay,
                born_in,
                required: birth.require_sandbox,
            };
            let own = rustix::stdio::dup2_stderr(&error);
            own.map_or(1, |()| {
                output::is_own_pipe();
                become_worker(&theirs, sandbox, &birth.disabled)
            })
        });
        let since = Instant::now();
        self.life = Life::Alive {
            child: child.context("cannot fork a worker")?,
            line,
            talk,
            since,
            silent: Some(since + PATIENCE),
        };
        Ok(())
    }

    /// Hears its first word. Buries it if it is dead, or is to be: it has complained, or said nothing for too long.
    fn look(&mut self) -> Option<End> {
        let Life::Alive {
            child,
            line,
            talk,
            since,
            silent,
        } = &mut self.life
        else {
            return None;
        };
        let fd = child.fd();
        let dead = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::default())) == Ok(1);
        let now = Instant::now();
        let mut said = (dead || silent.is_some()).then(|| word(line)).flatten();
        if said.as_deref() == Some(READY) {
            *silent = None;
            said = word(line);
        }
        if !dead && said.is_none() && silent.is_none_or(|until| now < until) {
            return None;
        }
        child.kill();
        let end = match (said, child.wait()) {
            (Some(why), _) => End::Said(why),
            (None, _) if !dead => End::Silent,
            (None, status @ 129..) => End::Killed(status - 128),
            (None, status) => End::Died(status),
        };
        talk.pass_on_all();
        let pause = if now - *since < YOUNG {
            PAUSE
        } else {
            Duration::ZERO
        };
        self.life = Life::Dead(now + pause.max(self.deaths.pause(now)));
        Some(end)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said(why) => f.write_str(&one_line(why)),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::Died(status) => write!(f, "died with status {status}"),
            Self::Silent => f.write_str("it does not answer"),
        }
    }
}

/// What a worker says, or said before it died.
fn word(line: &Line) -> Option<String> {
    let mut buffer = [0; LONGEST];
    let message = last_words::receive(line, &mut buffer).ok()??;
    Some(String::from_utf8_lossy(&buffer[..message.len]).into_owned())
}

/// A worker's life. In a pid namespace of its own it is process 1, which no signal ends but SIGKILL and its own faults.
fn become_worker(control: &OwnedFd, sandbox: Sandbox, disabled: &Disabled) -> u8 {
    // SAFETY: a child of one thread has one, and what the supervisor has read of its environment it has copied.
    unsafe { environment::forget() };
    panics::log_them();
    let prepared = spawn::close_all_but(&[control.as_fd()])
        .and_then(|()| stdio::leave_to_the_command())
        .and_then(|()| signals::unblock_all());
    let result = prepared
        .and_then(|()| control.try_clone())
        .and_then(|own| pontoon_relay_worker::run(own, sandbox, disabled));
    match result {
        Ok(()) => 0,
        Err(error) => {
            let words = error.to_string();
            let _ = seqpacket::send(control, &words.as_bytes()[..words.len().min(LONGEST)], &[]);
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> Member {
        let memory = Counters::create().unwrap();
        Member {
            counters: Counters::map(&memory).unwrap(),
            memory,
            life: Life::Dead(Instant::now()),
            restarts: 0,
            deaths: Deaths::default(),
            born_in: None,
        }
    }

    /// Lives for as long as it takes to die, and returns how long its successor has to wait.
    #[expect(clippy::zombie_processes, reason = "the member waits")]
    fn die(member: &mut Member) -> Duration {
        let (ours, _) = seqpacket::pair().unwrap();
        let child = std::process::Command::new("false").spawn().unwrap();
        let child = Child::new(child.id().try_into().unwrap()).unwrap();
        poll(&mut [PollFd::new(&child.fd(), PollFlags::IN)], None).unwrap();
        member.life = Life::Alive {
            child,
            line: Line::new(ours).unwrap(),
            talk: Talk::pair().unwrap().0,
            since: Instant::now() - 2 * YOUNG,
            silent: None,
        };
        let begin = Instant::now();
        assert_eq!(member.look(), Some(End::Died(1)));
        match member.life {
            Life::Dead(due) => due - begin,
            Life::Alive { .. } => panic!("it lives"),
        }
    }

    #[test]
    fn workers_that_die_one_after_the_other_have_to_wait() {
        let mut member = member();
        let waits: Vec<_> = (0..7).map(|_| die(&mut member)).collect();
        assert!(waits[..3].iter().all(|wait| *wait < PAUSE), "{waits:?}");
        assert!(waits[6] >= Duration::from_millis(800), "{waits:?}");
    }

    #[test]
    fn what_a_worker_says_is_one_line() {
        let end = End::Said("a\nerror: b\x1b[2J".to_owned());
        assert_eq!(end.to_string(), "a error: b [2J");
    }
}
