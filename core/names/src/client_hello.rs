//! Reads the server name in a TLS ClientHello from the first octets of a stream.
//!
//! The parser is strict: two servers could read different names from a message that violates RFC 8446 or RFC 6066, so
//! such a message has no name here. The result depends on the octets of the stream only, not on the segments in which
//! they arrive, nor on the records between which the client has divided the message.

mod message;

use arrayvec::ArrayVec;
use thiserror::Error;

use crate::{HostName, HostNameError};

/// Maximum number of octets of the stream up to the end of the ClientHello, with the headers of records. Hellos of
/// browsers have less than 2 KiB, with post-quantum key shares.
pub const LIMIT: usize = 16_384;

/// Reader of the ClientHello at the start of one TLS client's stream.
#[derive(Debug, Default)]
pub struct ClientHelloReader {
    /// Number of octets of the stream that were read.
    total: usize,
    /// True after the header of the first record.
    in_tls: bool,
    /// Header of the current record, as far as it was read.
    header: ArrayVec<u8, RECORD_HEADER>,
    /// Number of octets of the current record that were not read yet.
    rest_of_record: usize,
    /// The handshake message as far as it was read: its type, its length, its content.
    message: Vec<u8>,
    result: Option<Result<ClientHello, Failure>>,
}

/// The progress of a [`ClientHelloReader`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// The ClientHello is not complete.
    NeedMore,
    /// The ClientHello is complete and names a server.
    Name(ClientHello),
    /// The stream does not begin with a ClientHello that names a server.
    Failed(Failure),
}

/// The parts of a ClientHello on which a decision depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// Name of the server, in the extension server_name (RFC 6066 section 3).
    pub name: HostName,
    /// True if there is an extension encrypted_client_hello, in which the client may name another server. Browsers
    /// also send one without content, so that it does not indicate the other name (RFC 9849 section 6.2).
    pub ech: bool,
}

/// The reason why the start of a stream names no server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The stream does not begin with a handshake record of TLS.
    #[error("the stream does not begin with a TLS handshake")]
    NotTls,
    /// The stream begins with a ClientHello of SSL 2.0, which cannot name a server.
    #[error("the client sent an SSL 2.0 hello, which has no server name")]
    Ssl2,
    /// A record before the end of the ClientHello is not a handshake record.
    #[error("a record of type {0} interrupts the ClientHello")]
    OtherRecord(u8),
    /// A handshake record is empty (RFC 8446 section 5.1).
    #[error("the client sent an empty handshake record")]
    EmptyRecord,
    /// A record is longer than RFC 8446 section 5.1 permits.
    #[error("the client sent a record of {0} bytes, more than 16384")]
    LongRecord(u16),
    /// The first handshake message is not a ClientHello.
    #[error("the first handshake message has type {0}, which is not a ClientHello")]
    OtherMessage(u8),
    /// The ClientHello does not end within [`LIMIT`].
    #[error("the ClientHello does not end within 16 KiB")]
    TooLong,
    /// The ClientHello violates its syntax.
    #[error("the ClientHello is malformed")]
    Malformed,
    /// The client supports no version from TLS 1.0 to TLS 1.3.
    #[error("the client requests version {0:#06x}, which is not one of TLS 1.0 to 1.3")]
    Version(u16),
    /// The ClientHello contains an extension twice (RFC 8446 section 4.2).
    #[error("the ClientHello contains extension {0} twice")]
    RepeatedExtension(u16),
    /// The ClientHello names no server.
    #[error("the ClientHello has no server name")]
    NoName,
    /// The ClientHello names several servers. RFC 6066 section 3 permits one of each type, and there is one type.
    #[error("the ClientHello has more than one server name")]
    SeveralNames,
    /// The type of the server name is not host_name, the only one that RFC 6066 defines.
    #[error("the server name in the ClientHello has the unknown type {0}")]
    NameType(u8),
    /// The server name is not a host name.
    #[error("the server name in the ClientHello is not a host name: {0}")]
    Name(#[from] HostNameError),
}

impl ClientHelloReader {
    /// Creates the reader of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the next octets of the stream. After the end of the ClientHello, or after a failure, the result does not
    /// change.
    pub fn push(&mut self, mut octets: &[u8]) -> Progress {
        while self.result.is_none() && !octets.is_empty() {
            let (read, result) = self.step(octets);
            octets = &octets[read..];
            self.total += read;
            if let Some(result) = result {
                // The message is not needed any more, and there may be many such readers.
                self.message = Vec::new();
                self.result = Some(result);
            } else if self.total >= LIMIT {
                self.message = Vec::new();
                self.result = Some(Err(Failure::TooLong));
            }
        }
        match &self.result {
            None => Progress::NeedMore,
            Some(Ok(hello)) => Progress::Name(hello.clone()),
            Some(Err(failure)) => Progress::Failed(*failure),
        }
    }

    /// Reads some of `octets`, which are not empty, and returns their number, and the result if it is known now.
    fn step(&mut self, octets: &[u8]) -> (usize, Option<Result<ClientHello, Failure>>) {
        if self.rest_of_record == 0 {
            self.header.push(octets[0]);
            let result = self.read_header().err().map(Err);
            return (1, result);
        }
        // A step does not pass a field that has to be checked, so that the result does not depend on the number of
        // octets.
        let missing = self.end_of_field() - self.message.len();
        let read = octets
            .len()
            .min(self.rest_of_record)
            .min(missing)
            .min(LIMIT - self.total);
        self.message.extend_from_slice(&octets[..read]);
        self.rest_of_record -= read;
        (read, self.read_message())
    }

    /// Checks the header of the current record as far as it was read.
    fn read_header(&mut self) -> Result<(), Failure> {
        match self.header[..] {
            [HANDSHAKE] => {}
            // The header of SSL 2.0 has two octets; the next one is the type of the message.
            [0x80..=0xff] | [0x80..=0xff, _] if !self.in_tls => {}
            [0x80..=0xff, _, CLIENT_HELLO] if !self.in_tls => return Err(Failure::Ssl2),
            [HANDSHAKE, VERSION_MAJOR] | [HANDSHAKE, VERSION_MAJOR, _] | [HANDSHAKE, VERSION_MAJOR, _, _] => {
            }
            [HANDSHAKE, VERSION_MAJOR, _, high, low] => {
                let len = u16::from_be_bytes([high, low]);
                match len {
                    0 => return Err(Failure::EmptyRecord),
                    1..=LONGEST_RECORD => {}
                    _ => return Err(Failure::LongRecord(len)),
                }
                self.header.clear();
                self.rest_of_record = usize::from(len);
                self.in_tls = true;
            }
            [kind] if self.in_tls => return Err(Failure::OtherRecord(kind)),
            _ if self.in_tls => return Err(Failure::Malformed),
            _ => return Err(Failure::NotTls),
        }
        Ok(())
    }

    /// Returns the length that the message has at the end of the field in which it ends now: its header or its content.
    fn end_of_field(&self) -> usize {
        match self.message[..] {
            [_, high, middle, low, ..] => {
                let len = u32::from_be_bytes([0, high, middle, low]);
                MESSAGE_HEADER + usize::try_from(len).unwrap_or(usize::MAX - MESSAGE_HEADER)
            }
            _ => MESSAGE_HEADER,
        }
    }

    /// Parses the message if a field of it is complete.
    fn read_message(&mut self) -> Option<Result<ClientHello, Failure>> {
        let &[kind, _, _, _, ref content @ ..] = &self.message[..] else {
            return None;
        };
        let end = self.end_of_field();
        if kind != CLIENT_HELLO {
            Some(Err(Failure::OtherMessage(kind)))
        } else if end > LIMIT {
            Some(Err(Failure::TooLong))
        } else if self.message.len() == end {
            Some(message::parse(content))
        } else {
            None
        }
    }
}

/// Length of a record's header: type, version, length (RFC 8446 section 5.1).
const RECORD_HEADER: usize = 5;

/// Type of a record with handshake messages.
const HANDSHAKE: u8 = 22;

/// First octet of the version in all records, from SSL 3.0 to TLS 1.3. The second one has no meaning.
const VERSION_MAJOR: u8 = 3;

/// Maximum length of a record without encryption.
const LONGEST_RECORD: u16 = 16_384;

/// Length of a handshake message's header: type, length (RFC 8446 section 4).
const MESSAGE_HEADER: usize = 4;

/// Type of the handshake message ClientHello, in SSL 2.0 too.
const CLIENT_HELLO: u8 = 1;
