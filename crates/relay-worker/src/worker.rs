//! The loop.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use pontoon_sandbox::trap;
use pontoon_sys::{Family, seqpacket};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::thread::{ClockId, clock_nanosleep_relative};

use crate::counters::Counters;
use crate::input::{Input, RingInput, SocketInput};
use crate::messages::{self, Entry, Kind, MAX_LEN, Message, Output, Settings};
use crate::sender::Sender;
use crate::work::Work;

/// A worker that has been begun.
#[derive(Debug)]
pub(crate) struct Worker {
    control: OwnedFd,
    epoll: OwnedFd,
    settings: Settings,
    inputs: BTreeMap<u32, Source>,
    work: Work,
    /// Rules, and rows of rules, that wait for the commit.
    added: Vec<Entry>,
    removed: Vec<u32>,
}

/// An input, and what it leads to.
#[derive(Debug)]
struct Source {
    table: u32,
    row: u32,
    input: Input,
}

/// What the event of the supervisor's socket says; inputs say their number.
const CONTROL: u64 = u64::MAX;

/// Events of one look.
const EVENTS: usize = 64;

impl Worker {
    /// Waits for the supervisor's first word.
    ///
    /// # Errors
    /// It is another one; the kernel's.
    pub(crate) fn new(control: OwnedFd) -> io::Result<Self> {
        let mut buffer = [0; MAX_LEN];
        let message = seqpacket::receive(&control, &mut buffer)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (message, memory) = messages::received(&buffer[..message.len], message.descriptors)?;
        let (Message::Begin(settings), Some(memory)) = (message, memory) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &control, EventData::new_u64(CONTROL), EventFlags::IN)?;
        rustix::io::ioctl_fionbio(&control, true)?;
        Ok(Self {
            control,
            epoll,
            settings,
            inputs: BTreeMap::new(),
            work: Work::new(Counters::map(&memory)?),
            added: Vec::new(),
            removed: Vec::new(),
        })
    }

    /// Works until the supervisor is gone.
    ///
    /// # Errors
    /// The supervisor said something unknown; the kernel's.
    pub(crate) fn run(mut self) -> io::Result<()> {
        seqpacket::send(&self.control, messages::READY.as_bytes(), &[])?;
        let mut more = false;
        loop {
            let woken = self.wait(more)?;
            if woken.supervisor && self.hear()? == Heard::End {
                return Ok(());
            }
            if woken.input && !more {
                self.let_more_arrive();
            }
            more = false;
            for source in self.inputs.values_mut() {
                let packets = self.work.batch(&mut source.input, source.table, source.row);
                more |= packets >= source.input.enough();
            }
            self.work.note_refusals(trap::refused());
        }
    }

    /// Sleeps until there is something, or only looks where there is `more`.
    fn wait(&self, more: bool) -> io::Result<Woken> {
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        let at_once = Timespec::default();
        let events = match epoll::wait(&self.epoll, &mut events[..], more.then_some(&at_once)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &mut [],
            Err(error) => return Err(error.into()),
        };
        let mut woken = Woken::default();
        for event in events {
            let number = event.data.u64();
            if number == CONTROL {
                woken.supervisor = true;
                continue;
            }
            woken.input = true;
            let source = u32::try_from(number).ok().and_then(|id| self.inputs.get(&id));
            let flags = event.flags;
            if flags.contains(EventFlags::ERR)
                && let Some(source) = source
            {
                // The interface has gone down, say; reading the error ends it.
                let _ = rustix::net::sockopt::socket_error(&source.input);
            }
        }
        Ok(woken)
    }

    /// The batch clock.
    fn let_more_arrive(&self) {
        if self.settings.max_delay.is_zero() {
            return;
        }
        if let Ok(time) = Timespec::try_from(self.settings.max_delay) {
            // Woken early by a signal, it was long enough.
            let _ = clock_nanosleep_relative(ClockId::Monotonic, &time);
        }
    }

    /// Does all that the supervisor has said.
    fn hear(&mut self) -> io::Result<Heard> {
        let mut buffer = [0; MAX_LEN];
        loop {
            let message = match seqpacket::receive(&self.control, &mut buffer) {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(Heard::End),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Heard::Everything),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Heard::End),
                Err(error) => return Err(error),
            };
            let (message, descriptor) = messages::received(&buffer[..message.len], message.descriptors)?;
            self.obey(message, descriptor)?;
        }
    }

    fn obey(&mut self, message: Message, descriptor: Option<OwnedFd>) -> io::Result<()> {
        match (message, descriptor) {
            (Message::Input(input), Some(socket)) => {
                epoll::add(
                    &self.epoll,
                    &socket,
                    EventData::new_u64(input.id.into()),
                    EventFlags::IN,
                )?;
                let source = Source {
                    table: input.table,
                    row: input.row,
                    input: match input.kind {
                        Kind::Ring { size, used } => {
                            let position = used.then(|| self.work.position(input.row));
                            Input::Ring(RingInput::new(socket, size, position)?)
                        }
                        Kind::Socket(port) => Input::Socket(SocketInput::new(socket, port)),
                    },
                };
                self.inputs.insert(input.id, source);
            }
            (Message::NoInput(id), None) => {
                if let Some(mut source) = self.inputs.remove(&id) {
                    // The supervisor has the socket, too, so that closing ours would not end its events.
                    epoll::delete(&self.epoll, &source.input)?;
                    while self.work.batch(&mut source.input, source.table, source.row) > 0 {}
                }
            }
            (Message::Output(Output { id, v6, multicast }), Some(socket)) => {
                let family = if v6 { Family::V6 } else { Family::V4 };
                let sender = Sender::new(socket, family, multicast, self.settings.segment);
                self.work.set_sender(id, Some(sender));
            }
            (Message::NoOutput(id), None) => self.work.set_sender(id, None),
            (Message::Rule(entry), None) => self.added.push(*entry),
            (Message::NoRule(row), None) => self.removed.push(row),
            (Message::Commit, None) => {
                let added = std::mem::take(&mut self.added);
                self.work.change(&std::mem::take(&mut self.removed), added);
            }
            (other, _) => {
                let text = format!("out of place: {other:?}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
        Ok(())
    }
}

/// Who has woken us.
#[derive(Debug, Default)]
struct Woken {
    supervisor: bool,
    input: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Everything,
    End,
}
