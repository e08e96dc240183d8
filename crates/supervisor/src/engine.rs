//! The engine's process, as the supervisor sees it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pontoon_runtime::messages::{MAX_LEN, Report, Stats};
use pontoon_runtime::{Attachment, Setup, Update};
use pontoon_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use crate::error::{Context as _, Error};
use crate::spawn::{self, Child};
use crate::stdio;

/// A running engine. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Engine {
    child: Child,
    socket: OwnedFd,
    pending: Vec<Update>,
    /// What it said before it died.
    last_words: Vec<u8>,
}

/// How long the engine may take to say that it runs; it takes about a millisecond.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// How long the engine may take to end; it takes about a millisecond.
const GRACE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Room for what the engine says: a line of text.
const LINE: usize = 4096;

/// What the engine's last words begin with.
const LAST_WORDS: &[u8] = b"error: ";

impl Engine {
    /// Forks the engine, with the guest's link. `setup` gets its end of the socket.
    ///
    /// # Errors
    /// It cannot be forked.
    pub(crate) fn start(setup: impl FnOnce(OwnedFd) -> Setup, attachment: Attachment) -> Result<Self, Error> {
        let (ours, theirs) = seqpacket::pair().context("cannot make a socket pair")?;
        rustix::io::ioctl_fionbio(&ours, true).context("cannot set up a socket")?;
        let setup = setup(theirs);
        let supervisor = getpid();
        let child = spawn::fork(|| {
            // This dies with the supervisor; where that is dead already, its end of the socket is closed, too.
            let dies_too = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
            if !dies_too || getppid() != Some(supervisor) {
                return 1;
            }
            become_engine(setup, attachment)
        })
        .context("cannot fork the engine")?;
        Ok(Self {
            child,
            socket: ours,
            pending: Vec::new(),
            last_words: Vec::new(),
        })
    }

    /// Waits until its loop runs.
    ///
    /// # Errors
    /// It could not start, and why.
    pub(crate) fn ready(&self) -> Result<(), Error> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut fds, Some(&PATIENCE)).context("cannot wait for the engine")? == 0 {
            return Err(Error::new("the engine does not answer"));
        }
        let mut buffer = [0; LINE];
        match seqpacket::receive(&self.socket, &mut buffer).context("cannot hear the engine")? {
            Some(message) => match Report::decode(&buffer[..message.len]) {
                Ok(Report::Ready) => Ok(()),
                Ok(Report::Stats(_)) | Err(_) => Err(died(&buffer[..message.len], self.child.wait())),
            },
            None => Err(died(&[], self.child.wait())),
        }
    }

    /// Readable when the engine is dead.
    #[must_use]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.child.fd()
    }

    /// Call it when it is dead. Where it ended in order, it found the guest gone.
    ///
    /// # Errors
    /// What to tell the user.
    pub(crate) fn autopsy(&mut self) -> Result<(), Error> {
        drop(self.hear());
        match (&self.last_words[..], self.child.wait()) {
            ([], 0) => Ok(()),
            (words, status) => Err(died(words, status)),
        }
    }

    /// Readable when it has said something.
    #[must_use]
    pub(crate) fn voice(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What its workers said since the last call.
    pub(crate) fn hear(&mut self) -> Vec<Stats> {
        let mut heard = Vec::new();
        let mut buffer = vec![0; MAX_LEN];
        while let Ok(Some(message)) = seqpacket::receive(&self.socket, &mut buffer) {
            let message = &buffer[..message.len];
            match Report::decode(message) {
                Ok(Report::Stats(stats)) => heard.push(stats),
                Ok(Report::Ready) => {}
                Err(_) => self.last_words = message.to_vec(),
            }
        }
        heard
    }

    /// Tells the engine something, now or when there is room. A newer update of one kind takes the older one's place.
    pub(crate) fn tell(&mut self, update: Update) {
        let kind = std::mem::discriminant(&update);
        self.pending.retain(|older| std::mem::discriminant(older) != kind);
        self.pending.push(update);
        self.flush();
    }

    /// What to poll for writing while something waits for room.
    #[must_use]
    pub(crate) fn unsent(&self) -> Option<BorrowedFd<'_>> {
        (!self.pending.is_empty()).then(|| self.socket.as_fd())
    }

    /// Sends what waits.
    pub(crate) fn flush(&mut self) {
        while let Some(update) = self.pending.first() {
            match seqpacket::send(&self.socket, &update.encode(), &[]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => tracing::warn!(%error, "the engine was not told of a change"),
                Ok(()) => {}
            }
            self.pending.remove(0);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The end of the socket asks it to end, and to say what it counted.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let fd = self.child.fd();
        if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&GRACE)) != Ok(1) {
            self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn died(words: &[u8], status: u8) -> Error {
    if let Some(words) = words.strip_prefix(LAST_WORDS) {
        return Error::new(format!("the engine: {}", String::from_utf8_lossy(words)));
    }
    Error::new(match status {
        129.. => format!("the engine was killed by signal {}", status - 128),
        status => format!("the engine died with status {status}"),
    })
}

fn become_engine(setup: Setup, attachment: Attachment) -> u8 {
    let _ = rustix::thread::set_name(c"pontoon-engine");
    match prepare(&setup, &attachment) {
        Ok(voice) => match pontoon_runtime::run(setup, attachment) {
            Ok(()) => 0,
            Err(error) => {
                let mut words = LAST_WORDS.to_vec();
                words.extend(error.to_string().bytes().take(LINE - LAST_WORDS.len()));
                let _ = seqpacket::send(&voice, &words, &[]);
                1
            }
        },
        Err(error) => {
            tracing::error!(%error, "engine");
            1
        }
    }
}

/// Lets go of everything that was the supervisor's; returns a socket for the last words.
fn prepare(setup: &Setup, attachment: &Attachment) -> io::Result<OwnedFd> {
    let voice = setup.supervisor.try_clone()?;
    let single = [setup.supervisor.as_fd(), voice.as_fd()];
    let published = setup.published.iter().map(AsFd::as_fd);
    let raw_icmp = setup.raw_icmp.iter().flatten().map(AsFd::as_fd);
    let keep: Vec<_> = single
        .into_iter()
        .chain(attachment.descriptors())
        .chain(published)
        .chain(raw_icmp)
        .collect();
    spawn::close_all_but(&keep)?;
    stdio::leave_to_the_command()?;
    Ok(voice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_how_it_died() {
        assert_eq!(died(&[], 137).to_string(), "the engine was killed by signal 9");
        assert_eq!(died(&[], 101).to_string(), "the engine died with status 101");
        assert_eq!(died(b"error: no memory", 1).to_string(), "the engine: no memory");
    }
}
