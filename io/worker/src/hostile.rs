//! Fuzz target of the links: scripted hostile guests at the other end of a socket, and scripted senders of ICMP echo
//! replies.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use pontoon_host::ping::echo_reply;
use pontoon_link::socket::{Framing, MAX_FRAME, Packet, Socket, Stream};
use pontoon_link::{Disconnected, Link, Receive, Rest, Source, StopAt};
use pontoon_sys::Family;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Plays a script, whose first byte selects the hostile peer.
///
/// # Panics
/// The frames that the link has received are not those that the guest has sent.
pub fn play(script: &[u8]) {
    let Some((who, script)) = script.split_first() else {
        return;
    };
    match who % 4 {
        0 => Play::<Stream>::new(SocketType::STREAM).run(script, stream),
        1 => Play::<Packet>::new(SocketType::SEQPACKET).run(script, packets),
        2 => echo(script, Family::V4),
        _ => echo(script, Family::V6),
    }
}

/// Link under test, its guest's end of the socket, and the frames that were sent and received.
struct Play<F: Framing> {
    link: Socket<F>,
    guest: UnixStream,
    /// Bytes of each write of the guest.
    sent: Vec<Vec<u8>>,
    received: ReceivedFrames,
}

/// Frames that the link has received, and the reason of its end.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReceivedFrames {
    frames: Vec<Vec<u8>>,
    malformed: u64,
    end: Option<Disconnected>,
}

impl<F: Framing> Play<F> {
    fn new(kind: SocketType) -> Self {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        let guest = UnixStream::from(theirs);
        guest.set_nonblocking(true).expect("a socket");
        Self {
            link: Socket::new(Source::Connected(ours), 1500).expect("a link"),
            guest,
            sent: Vec::new(),
            received: ReceivedFrames::default(),
        }
    }

    /// Lets the guest send and the link receive alternately, then disconnects the guest. The link must have received all
    /// frames that `read` finds in the sent bytes.
    fn run(mut self, mut script: &[u8], read: fn(&[Vec<u8>]) -> ReceivedFrames) {
        while let Some((&step, rest)) = script.split_first() {
            script = rest;
            let bytes = usize::from(step / 4);
            match step % 4 {
                0 => {
                    let (sent, rest) = script.split_at(bytes.min(script.len()));
                    script = rest;
                    self.send(sent);
                }
                // The guest sends a frame behind its length, or a message, whose length two bytes of the script specify, or
                // more bytes.
                1 => {
                    let (len, rest) = script.split_at(script.len().min(2));
                    script = rest;
                    let len = len
                        .iter()
                        .fold(bytes * 64, |len, byte| len * 7 % 70_000 + usize::from(*byte));
                    let prefix = u32::try_from(len).expect("seventy thousand").to_be_bytes();
                    self.send(&[&prefix[..F::PREFIX], &vec![step; len]].concat());
                }
                2 => {
                    self.listen(bytes.max(1));
                }
                _ => self.listen_to_the_end(),
            }
        }
        let Self { guest, .. } = &self;
        guest.shutdown(Shutdown::Both).expect("a socket");
        // The link receives in three calls data that it has read already, data in the socket, and the end: the kernel
        // reports unread data again.
        for _ in 0..3 {
            self.listen_to_the_end();
        }
        assert_eq!(self.received, read(&self.sent));
    }

    fn send(&mut self, bytes: &[u8]) {
        match self.guest.write(bytes) {
            Ok(len) => self.sent.push(bytes[..len].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.listen_to_the_end(),
            // The write fails because the link has closed the socket.
            Err(_) => {}
        }
    }

    /// Receives up to `max` frames from the link. Returns true if there may be more.
    fn listen(&mut self, max: usize) -> bool {
        if self.received.end.is_some() {
            return false;
        }
        let (receiver, _) = self.link.halves();
        let received = &mut self.received;
        let before = received.frames.len();
        let burst = receiver.receive(max, StopAt::Empty, |frames| {
            received.frames.extend(frames.iter().map(whole));
        });
        assert_eq!(received.frames.len() - before, burst.frames);
        received.malformed += burst.malformed;
        match burst.rest {
            Rest::Drained => false,
            Rest::More => true,
            Rest::Disconnected(how) => {
                received.end = Some(how);
                false
            }
        }
    }

    fn listen_to_the_end(&mut self) {
        while self.listen(pontoon_link::BURST) {}
    }
}

/// Returns all bytes of a frame, whose head is a copy of the first of them.
fn whole(frame: &pontoon_engine::Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.len];
    let mut rest = &mut bytes[..];
    for part in frame.parts {
        let (here, behind) = rest.split_at_mut(part.len());
        part.copy_to(here);
        rest = behind;
    }
    assert!(rest.is_empty() && bytes.starts_with(frame.head));
    bytes
}

fn stream(sent: &[Vec<u8>]) -> ReceivedFrames {
    let sent = sent.concat();
    let mut rest = &sent[..];
    let mut received = ReceivedFrames {
        end: Some(Disconnected::Closed),
        ..ReceivedFrames::default()
    };
    while let Some((prefix, behind)) = rest.split_first_chunk() {
        let len = u32::from_be_bytes(*prefix) as usize;
        match behind.split_at_checked(len) {
            _ if len > MAX_FRAME => {
                received.end = Some(Disconnected::Protocol("a frame of more than 64 KiB"));
                break;
            }
            None => break,
            Some(([], behind)) => {
                received.malformed += 1;
                rest = behind;
            }
            Some((frame, behind)) => {
                received.frames.push(frame.to_vec());
                rest = behind;
            }
        }
    }
    received
}

fn packets(sent: &[Vec<u8>]) -> ReceivedFrames {
    let sound = |message: &&Vec<u8>| (1..=MAX_FRAME).contains(&message.len());
    // An empty message ends the input, like the end of the socket.
    let end = sent.iter().position(Vec::is_empty).unwrap_or(sent.len());
    let (frames, malformed): (Vec<_>, Vec<_>) = sent[..end].iter().partition(sound);
    ReceivedFrames {
        frames: frames.into_iter().cloned().collect(),
        malformed: malformed.len() as u64,
        end: Some(Disconnected::Closed),
    }
}

/// Parses `packet` as an ICMP packet that was received on a raw socket.
fn echo(packet: &[u8], family: Family) {
    if let Some(reply) = echo_reply(packet, family) {
        assert!(packet.get(reply.data).is_some());
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_is_parsed_without_panic() {
        pontoon_test_support::corpus::replay("socket", 20, super::play);
    }
}
