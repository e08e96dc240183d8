//! Checks the stream of a guest's DNS connection over TCP, in which each message follows its length in two octets (RFC
//! 1035 section 4.2.2, RFC 7766).
//!
//! The stream is forwarded without buffering messages, so the engine cannot answer a message. A message that is not a
//! query ends the connection.

use vm_memory::VolatileSlice;

use super::message;
use crate::{Counters, Failure, Host, Instant};
use crate::state::record;

/// The parser's position in the queries of a DNS client over TCP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queries {
    /// Time of the last message, or of the connection's SYN or handshake.
    last_message: Instant,
    /// A query was forwarded whole, or the handshake completed, since the last call of [`Self::note_messages`].
    has_news: bool,
    /// Octets of the current message that were forwarded, including the two of its length.
    passed: u32,
    /// Length of the current message, as far as its two octets were forwarded.
    length: u16,
}

record! { Queries { last_message, has_news, passed, length } }

/// Error: the stream contains a message that is not a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NoQuery;

impl Queries {
    /// Creates the parser of a connection that is opened at `now`.
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            last_message: now,
            // The first call of `note_messages` follows the handshake.
            has_news: true,
            passed: 0,
            length: 0,
        }
    }

    /// Returns the time of the last message.
    pub(crate) const fn last_message(&self) -> Instant {
        self.last_message
    }

    /// Sets the time of the last message to `now` if a query was forwarded whole since the previous call, or if the
    /// guest has received a part of a response (`is_answered`).
    pub(crate) const fn note_messages(&mut self, is_answered: bool, now: Instant) {
        if self.has_news || is_answered {
            self.last_message = now;
        }
        self.has_news = false;
    }

    /// Sends `parts` to the host socket, up to the first message that is not a query, and as far as the socket accepts
    /// them. The data is copied first, so that the guest cannot modify it after the check.
    ///
    /// # Errors
    /// An error of the socket, or [`Failure::Prohibited`] at a message that is not a query.
    pub(crate) fn send<H: Host>(
        &mut self,
        host: &mut H,
        counters: &mut Counters,
        socket: &mut H::Socket,
        parts: &[VolatileSlice<'_>],
    ) -> Result<usize, Failure> {
        let mut buffer = [0; BUFFER];
        let mut sent = 0;
        for part in parts {
            let mut at = 0;
            while at < part.len() {
                let rest = part.offset(at).expect("at is within the part");
                let copied = rest.copy_to(&mut buffer);
                let mut ahead = *self;
                if ahead.follow(&buffer[..copied]).is_err() {
                    counters.dns_unsupported += 1;
                    return Err(Failure::Prohibited);
                }
                let taken = match host.tcp_send(socket, &[VolatileSlice::from(&mut buffer[..copied])]) {
                    Ok(taken) => taken,
                    Err(Failure::WouldBlock) => 0,
                    Err(failure) => return Err(failure),
                };
                at += taken;
                sent += taken;
                if taken == copied {
                    *self = ahead;
                    continue;
                }
                self.follow(&buffer[..taken])
                    .expect("the parser has accepted these octets");
                return if sent > 0 {
                    Ok(sent)
                } else {
                    Err(Failure::WouldBlock)
                };
            }
        }
        Ok(sent)
    }

    /// Advances the parser by the octets `octets`.
    fn follow(&mut self, mut octets: &[u8]) -> Result<(), NoQuery> {
        while let Some(&octet) = octets.first() {
            let [high, low] = self.length.to_be_bytes();
            let mut step: u32 = 1;
            match self.passed {
                0 => self.length = u16::from_be_bytes([octet, low]),
                1 => self.length = u16::from_be_bytes([high, octet]),
                FLAGS if !message::is_query(octet) => return Err(NoQuery),
                2..=FLAGS => {}
                passed => {
                    step = u32::try_from(octets.len())
                        .unwrap_or(u32::MAX)
                        .min(self.end() - passed)
                }
            }
            self.passed += step;
            octets = &octets[step as usize..];
            if self.passed == LENGTH && usize::from(self.length) < message::HEADER {
                return Err(NoQuery);
            }
            if self.passed > LENGTH && self.passed == self.end() {
                (self.passed, self.length) = (0, 0);
                self.has_news = true;
            }
        }
        Ok(())
    }

    /// Returns the length of the current message in octets, including the two of its length.
    fn end(&self) -> u32 {
        LENGTH + u32::from(self.length)
    }
}

/// Number of octets of a message's length field.
const LENGTH: u32 = 2;

/// Offset of the octet that contains the opcode, behind length and id.
const FLAGS: u32 = LENGTH + 2;

/// Maximum number of octets that are copied and sent at once; most streams are shorter.
const BUFFER: usize = 2_048;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(flags: u8, len: u16) -> Vec<u8> {
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend((0..len).map(|at| if at == 2 { flags } else { 0xff }));
        bytes
    }

    #[test]
    fn message_shorter_than_a_header_is_not_a_query() {
        for len in 0..12 {
            assert_eq!(
                Queries::new(Instant(0)).follow(&message(0, len)),
                Err(NoQuery),
                "{len}"
            );
        }
        assert_eq!(Queries::new(Instant(0)).follow(&message(0, 12)), Ok(()));
    }

    #[test]
    fn other_opcodes_and_responses_are_not_queries() {
        for flags in 0..=255 {
            let is_query = flags & 0xf8 == 0;
            assert_eq!(
                Queries::new(Instant(0)).follow(&message(flags, 40)).is_ok(),
                is_query,
                "{flags:#x}"
            );
        }
    }

    proptest! {
        #[test]
        fn message_that_is_not_a_query_is_detected_at_every_split_of_the_stream(
            before in proptest::collection::vec(12..3_000_u16, 0..5),
            cuts in proptest::collection::vec(1..400_usize, 1..20),
        ) {
            let mut stream: Vec<u8> = before.iter().flat_map(|len| message(1, *len)).collect();
            let flags_at = stream.len() + FLAGS as usize;
            stream.extend(message(0x28, 30));
            let mut queries = Queries::new(Instant(0));
            let mut cuts = cuts.iter().cycle();
            let mut at = 0;
            loop {
                let end = (at + cuts.next().unwrap()).min(stream.len());
                let followed = queries.follow(&stream[at..end]);
                prop_assert_eq!(followed.is_err(), end > flags_at);
                if followed.is_err() {
                    break;
                }
                at = end;
            }
        }
    }
}
