//! Messages between the supervisor and the guest's first process: before the command starts, and about its job control.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use pontoon_process::Error;
use pontoon_sys::seqpacket;
use pontoon_sys::tun::TapOffload;
use pontoon_wire::Mac;
use rustix::process::Pid;

use crate::guest::tap::CreatedTap;
use crate::publish::port_range::PortRange;

/// Messages from the guest's first process to the supervisor.
#[derive(Debug)]
pub(crate) enum FromGuest {
    /// The process in the outer user namespace has forked the guest's first process, which has this id.
    Forked(Pid),
    /// The guest's first process has created and configured the tap.
    Tap(CreatedTap),
    /// A child has opened these sockets in the guest's network namespace.
    Sockets(Vec<OwnedFd>),
    /// The whole network is configured, and the guest's first process waits for [`ToGuest::Go`].
    Prepared,
    /// The guest's first process has started the command.
    Started,
    /// The setup failed; the guest's first process exits after this message.
    Failed(Error),
    /// The terminal has sent this signal to the command's process group.
    Signalled(u8),
    /// The command has been stopped.
    Stopped(Stop),
}

/// Stop of the command by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// Number of the signal.
    pub(crate) signal: u8,
    /// True if the terminal has sent it.
    pub(crate) by_terminal: bool,
}

/// Messages from the supervisor to the guest's first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToGuest {
    /// The user and group ids of the guest's user namespace are mapped.
    Mapped,
    /// The network is ready: the guest's first process starts the command.
    Go,
}

const TAP: u8 = 1;
const PREPARED: u8 = 2;
const STARTED: u8 = 3;
const FAILED: u8 = 4;
const MAPPED: u8 = 5;
const GO: u8 = 6;
const FORKED: u8 = 7;
const SIGNALLED: u8 = 8;
const STOPPED: u8 = 9;
const SOCKETS: u8 = 10;

/// Size of the longest message in bytes: one line of text.
pub(crate) const ROOM: usize = 8192;

impl FromGuest {
    /// Sends the message to the supervisor.
    ///
    /// # Errors
    /// The other end of the socket is closed.
    pub(crate) fn send(&self, socket: impl AsFd) -> io::Result<()> {
        match self {
            Self::Tap(made) => {
                let offload = made.offload;
                let bits = [offload.vnet_hdr, offload.tso, offload.uso].map(u8::from);
                let has_listeners = u8::from(made.listeners.is_some());
                let ports = [made.ephemeral.first, made.ephemeral.last].map(u16::to_ne_bytes);
                let bytes = [
                    &[TAP][..],
                    &bits,
                    &[has_listeners],
                    &made.mac.0,
                    &made.index.to_ne_bytes(),
                    ports.as_flattened(),
                ]
                .concat();
                let descriptors: Vec<_> = made
                    .queues
                    .iter()
                    .chain([&made.netlink])
                    .chain(&made.listeners)
                    .map(AsFd::as_fd)
                    .collect();
                seqpacket::send(socket, &bytes, &descriptors)
            }
            Self::Forked(pid) => {
                let pid = pid.as_raw_nonzero().get().to_ne_bytes();
                seqpacket::send(socket, &[&[FORKED][..], &pid].concat(), &[])
            }
            Self::Sockets(sockets) => {
                let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                seqpacket::send(socket, &[SOCKETS], &sockets)
            }
            Self::Prepared => seqpacket::send(socket, &[PREPARED], &[]),
            Self::Started => seqpacket::send(socket, &[STARTED], &[]),
            Self::Failed(error) => seqpacket::send(socket, &encode(error), &[]),
            Self::Signalled(number) => seqpacket::send(socket, &[SIGNALLED, *number], &[]),
            Self::Stopped(stop) => {
                seqpacket::send(socket, &[STOPPED, stop.signal, stop.by_terminal.into()], &[])
            }
        }
    }

    /// Waits for a message of the guest's first process; returns `None` if the other end of the socket is closed.
    ///
    /// # Errors
    /// The receive fails; `InvalidData` for an unknown message.
    pub(crate) fn receive(socket: impl AsFd) -> io::Result<Option<Self>> {
        let mut buffer = [0; ROOM];
        let Some(message) = seqpacket::receive(socket, &mut buffer)? else {
            return Ok(None);
        };
        Self::decode(&buffer[..message.len], message.descriptors).map(Some)
    }

    /// Decodes a message with its descriptors.
    ///
    /// # Errors
    /// `InvalidData` if the message is unknown.
    pub(crate) fn decode(message: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        Ok(match (message, descriptors) {
            ([TAP, vnet_hdr, tso, uso, has_listeners, rest @ ..], mut queues)
                if rest.len() == 14 && queues.len() > 1 + usize::from(*has_listeners != 0) =>
            {
                let listeners = match has_listeners {
                    0 => None,
                    _ => queues.pop(),
                };
                let (mac, rest) = rest.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
                let number = |at: usize| u16::from_ne_bytes([rest[at], rest[at + 1]]);
                let ephemeral = PortRange {
                    first: number(4).max(1),
                    last: number(6).max(number(4)).max(1),
                };
                let netlink = queues.pop().ok_or(io::ErrorKind::InvalidData)?;
                let offload = TapOffload {
                    vnet_hdr: *vnet_hdr != 0,
                    tso: *tso != 0,
                    uso: *uso != 0,
                };
                Self::Tap(CreatedTap {
                    queues,
                    offload,
                    mac: Mac(*mac),
                    netlink,
                    listeners,
                    ephemeral,
                    index: u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]),
                })
            }
            ([FORKED, a, b, c, d], none) if none.is_empty() => {
                let pid = Pid::from_raw(i32::from_ne_bytes([*a, *b, *c, *d]));
                Self::Forked(pid.ok_or(io::ErrorKind::InvalidData)?)
            }
            ([SOCKETS], sockets) => Self::Sockets(sockets),
            ([PREPARED], none) if none.is_empty() => Self::Prepared,
            ([STARTED], none) if none.is_empty() => Self::Started,
            ([SIGNALLED, number], none) if none.is_empty() => Self::Signalled(*number),
            ([STOPPED, signal, by_terminal], none) if none.is_empty() => Self::Stopped(Stop {
                signal: *signal,
                by_terminal: *by_terminal != 0,
            }),
            ([FAILED, status, text @ ..], none) if none.is_empty() => Self::Failed(decode(*status, text)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

impl ToGuest {
    /// Sends the message to the guest's first process.
    ///
    /// # Errors
    /// The other end of the socket is closed.
    pub(crate) fn send(self, socket: impl AsFd) -> io::Result<()> {
        let tag = match self {
            Self::Mapped => MAPPED,
            Self::Go => GO,
        };
        seqpacket::send(socket, &[tag], &[])
    }

    /// Waits for this message of the supervisor.
    ///
    /// # Errors
    /// `UnexpectedEof` if the supervisor has exited.
    pub(crate) fn expect(self, socket: impl AsFd) -> io::Result<()> {
        let mut buffer = [0; 1];
        let Some(message) = seqpacket::receive(socket, &mut buffer)? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match (&buffer[..message.len], self) {
            ([MAPPED], Self::Mapped) | ([GO], Self::Go) => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Encodes an error as its exit status, text, NUL and advice. Text that exceeds a message is truncated.
pub(crate) fn encode(error: &Error) -> Vec<u8> {
    let (what, advice, status) = error.parts();
    let mut bytes = vec![FAILED, status];
    bytes.extend(what.bytes().filter(|byte| *byte != 0));
    if let Some(advice) = advice {
        bytes.push(0);
        bytes.extend(advice.bytes());
    }
    bytes.truncate(ROOM);
    bytes
}

fn decode(status: u8, text: &[u8]) -> Error {
    let mut parts = text.splitn(2, |byte| *byte == 0);
    let mut next = || {
        parts
            .next()
            .map(|part| String::from_utf8_lossy(part).into_owned())
    };
    let error = Error::new(next().unwrap_or_default()).with_status(status);
    match next() {
        Some(advice) => error.advise(advice),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_received_with_status_and_advice() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let plain = Error::new("cannot run x: not found").with_status(127);
        for error in [plain.clone(), plain.advise("y")] {
            FromGuest::Failed(error.clone()).send(&ours).unwrap();
            match FromGuest::receive(&theirs).unwrap() {
                Some(FromGuest::Failed(arrived)) => assert_eq!(arrived, error),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn stops_and_signals_are_received() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        for by_terminal in [false, true] {
            let stop = Stop {
                signal: 20,
                by_terminal,
            };
            FromGuest::Stopped(stop).send(&ours).unwrap();
            let received = FromGuest::receive(&theirs).unwrap();
            assert!(matches!(received, Some(FromGuest::Stopped(other)) if other == stop));
        }
        FromGuest::Signalled(2).send(&ours).unwrap();
        let received = FromGuest::receive(&theirs).unwrap();
        assert!(matches!(received, Some(FromGuest::Signalled(2))));
    }

    #[test]
    fn taps_are_received_with_queues_and_offloads() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let (one, other) = rustix::pipe::pipe().unwrap();
        let listeners = one.try_clone().unwrap();
        let offload = TapOffload {
            vnet_hdr: true,
            tso: true,
            uso: false,
        };
        let made = CreatedTap {
            queues: vec![one],
            offload,
            mac: Mac([2, 3, 4, 5, 6, 7]),
            netlink: other,
            listeners: Some(listeners),
            ephemeral: PortRange {
                first: 1024,
                last: 2047,
            },
            index: 0x0102_0304,
        };
        FromGuest::Tap(made).send(&ours).unwrap();
        match FromGuest::receive(&theirs).unwrap() {
            Some(FromGuest::Tap(made)) => assert_eq!(
                (
                    made.queues.len(),
                    made.offload,
                    made.mac,
                    made.index,
                    made.listeners.is_some(),
                    made.ephemeral.last
                ),
                (1, offload, Mac([2, 3, 4, 5, 6, 7]), 0x0102_0304, true, 2047)
            ),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn unexpected_messages_and_end_of_stream_are_errors() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        ToGuest::Mapped.send(&ours).unwrap();
        ToGuest::Mapped.expect(&theirs).unwrap();
        ToGuest::Mapped.send(&ours).unwrap();
        assert!(ToGuest::Go.expect(&theirs).is_err());
        // The process of another test may hold a copy of the descriptor.
        rustix::net::shutdown(&ours, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(
            ToGuest::Go.expect(&theirs).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
