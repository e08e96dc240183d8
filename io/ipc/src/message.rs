//! Encoding and decoding of messages between processes.

use std::io;
use std::os::fd::OwnedFd;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Descriptor;

/// Message between a supervisor and one kind of worker process.
pub trait ChannelMessage: Serialize + DeserializeOwned {
    /// Limit on the size of a message in bytes.
    const MAX_LEN: usize;

    /// True if some messages replace older ones that have not been sent. Otherwise [`Self::replaces`] is not called, which
    /// takes time proportional to the number of queued messages.
    const REPLACES: bool = false;

    /// Returns the descriptors of the message, in the order in which they are sent.
    fn descriptors(&self) -> Vec<&Descriptor> {
        Vec::new()
    }

    /// Returns the descriptors of the message, to be set when the message is received, in the order of
    /// [`Self::descriptors`].
    fn descriptors_mut(&mut self) -> Vec<&mut Descriptor> {
        Vec::new()
    }

    /// Returns true if the message can be received without its last descriptors, because the receiving process has no free
    /// descriptor for them, or without any, because the sending user has too many in flight (`ETOOMANYREFS`).
    fn may_lack_descriptors(&self) -> bool {
        false
    }

    /// Returns true if all values of a received message are within their limits.
    fn is_valid(&self) -> bool {
        true
    }

    /// Returns true if this message makes the queued message `older` obsolete.
    fn replaces(&self, _older: &Self) -> bool {
        false
    }
}

/// Message of a worker process to its supervisor; some are about the state of the process itself.
pub trait ProcessReport: ChannelMessage {
    /// Limit on the text of an error in bytes.
    const MAX_ERROR: usize;

    /// Returns the report that the process exits because of an error with this text.
    fn failure(text: String) -> Self;

    /// Distinguishes reports about the state of the process itself from others.
    fn classify(self) -> ReportKind<Self>;

    /// Returns the report of an error, whose text is truncated to [`Self::MAX_ERROR`] bytes.
    fn failed(error: &io::Error) -> Self {
        let mut text = error.to_string();
        text.truncate(text.floor_char_boundary(Self::MAX_ERROR));
        Self::failure(text)
    }
}

/// Report of a worker process, by its subject.
#[derive(Debug)]
pub enum ReportKind<R> {
    /// The process is ready: it has entered the sandbox, and its loop runs.
    Ready,
    /// The process exits because of this error.
    Failed(String),
    /// The report is not about the state of the process.
    Other(R),
}

/// Encodes a message, without its descriptors.
///
/// # Errors
/// `InvalidInput` if the message exceeds [`ChannelMessage::MAX_LEN`].
pub fn encode<M: ChannelMessage>(message: &M) -> io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(message).map_err(|error| invalid_input(&error.to_string()))?;
    match bytes.len() {
        len if len > M::MAX_LEN => Err(invalid_input(&format!(
            "{len} bytes exceed the limit of {}",
            M::MAX_LEN
        ))),
        _ => Ok(bytes),
    }
}

/// Decodes a message and sets its descriptors to those that were received with it.
///
/// # Errors
/// `InvalidData` if the bytes are not a message, a value is outside its limits, or the number of descriptors is not that of
/// the message; all descriptors are closed then.
pub fn decode<M: ChannelMessage>(bytes: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<M> {
    if bytes.len() > M::MAX_LEN {
        return Err(invalid_data(bytes, "too long"));
    }
    let mut message: M = serde_json::from_slice(bytes).map_err(|error| {
        // The decoder's error quotes parts of the message, which may come from a less trusted process and be as long as a
        // message.
        let text: String = error.to_string().chars().take(MAX_QUOTED).collect();
        invalid_data(bytes, &text.escape_debug().to_string())
    })?;
    let may_lack = message.may_lack_descriptors();
    let places = message.descriptors_mut();
    let (received, expected) = (descriptors.len(), places.len());
    if received > expected || (received < expected && !may_lack) {
        let what = format!("{received} file descriptors instead of {expected}");
        return Err(invalid_data(bytes, &what));
    }
    for (place, descriptor) in places.into_iter().zip(descriptors) {
        place.set(descriptor);
    }
    match message.is_valid() {
        true => Ok(message),
        false => Err(invalid_data(bytes, "a value is outside its limits")),
    }
}

/// Limit on the characters of the decoder's error that are kept.
const MAX_QUOTED: usize = 200;

fn invalid_input(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn invalid_data(bytes: &[u8], why: &str) -> io::Error {
    let begin = String::from_utf8_lossy(bytes.get(..64).unwrap_or(bytes)).into_owned();
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("invalid message {begin:?}: {why}"),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub(crate) enum TestMessage {
        State(u32),
        Event(u32),
        File(u32, Descriptor),
        Files(Vec<Descriptor>),
        Text(String),
    }

    impl ChannelMessage for TestMessage {
        const MAX_LEN: usize = 256;
        const REPLACES: bool = true;

        fn descriptors(&self) -> Vec<&Descriptor> {
            match self {
                Self::File(_, file) => vec![file],
                Self::Files(files) => files.iter().collect(),
                Self::State(_) | Self::Event(_) | Self::Text(_) => Vec::new(),
            }
        }

        fn descriptors_mut(&mut self) -> Vec<&mut Descriptor> {
            match self {
                Self::File(_, file) => vec![file],
                Self::Files(files) => files.iter_mut().collect(),
                Self::State(_) | Self::Event(_) | Self::Text(_) => Vec::new(),
            }
        }

        fn may_lack_descriptors(&self) -> bool {
            matches!(self, Self::Files(_))
        }

        fn is_valid(&self) -> bool {
            !matches!(self, Self::Text(text) if text.len() > 64)
        }

        fn replaces(&self, older: &Self) -> bool {
            matches!((self, older), (Self::State(_), Self::State(_)))
        }
    }

    pub(crate) fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    pub(crate) fn file(number: u32) -> TestMessage {
        TestMessage::File(number, Arc::new(null()).into())
    }

    #[test]
    fn decoded_message_equals_the_encoded_one() {
        for message in [
            TestMessage::State(7),
            TestMessage::Event(u32::MAX),
            TestMessage::Text("line\n\u{1b}[2J\"".to_owned()),
            TestMessage::Files(Vec::new()),
        ] {
            let bytes = encode(&message).unwrap();
            assert_eq!(decode::<TestMessage>(&bytes, Vec::new()).unwrap(), message);
        }
    }

    #[test]
    fn number_of_descriptors_is_checked_for_each_variant() {
        let accepted = |message: &TestMessage, count: usize| {
            let descriptors = (0..count).map(|_| null()).collect();
            decode::<TestMessage>(&encode(message).unwrap(), descriptors).is_ok()
        };
        let file = file(1);
        assert_eq!(
            [0, 1, 2].map(|count| accepted(&file, count)),
            [false, true, false]
        );
        let event = TestMessage::Event(1);
        assert_eq!([0, 1].map(|count| accepted(&event, count)), [true, false]);
        let files = TestMessage::Files(vec![Descriptor::default(); 2]);
        assert_eq!(
            [0, 1, 2, 3].map(|count| accepted(&files, count)),
            [true, true, true, false]
        );
    }

    #[test]
    fn missing_descriptors_are_the_last_ones() {
        let files = encode(&TestMessage::Files(vec![Descriptor::default(); 2])).unwrap();
        let TestMessage::Files(files) = decode(&files, vec![null()]).unwrap() else {
            panic!("another message");
        };
        assert!(files[0].borrow().is_some() && files[1].borrow().is_none());
    }

    #[test]
    fn descriptors_of_refused_messages_are_closed() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert!(decode::<TestMessage>(b"{\"event\":1}", vec![write]).is_err());
        assert_eq!(rustix::io::read(&read, &mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn invalid_and_long_messages_are_refused() {
        for bytes in [
            &b""[..],
            b"null",
            b"{\"event\":-1}",
            b"{\"event\":1}x",
            b"{\"other\":1}",
            b"{\"text\":\"\xff\"}",
            b"[[[[[[[[[[[[[[[[",
        ] {
            assert!(decode::<TestMessage>(bytes, Vec::new()).is_err(), "{bytes:?}");
        }
        let text = |len| TestMessage::Text("a".repeat(len));
        assert!(decode::<TestMessage>(&encode(&text(64)).unwrap(), Vec::new()).is_ok());
        assert!(decode::<TestMessage>(&encode(&text(65)).unwrap(), Vec::new()).is_err());
        assert_eq!(
            encode(&text(256)).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        let long = serde_json::to_vec(&TestMessage::Files(vec![Descriptor::default(); 60])).unwrap();
        assert!(decode::<TestMessage>(&long, Vec::new()).is_err());
    }

    #[test]
    fn error_shows_no_control_character_and_little_of_a_message() {
        let name = "\\u000a\\u000d\\u001b[2J".repeat(9);
        let error = decode::<TestMessage>(format!("{{\"{name}\":1}}").as_bytes(), Vec::new()).unwrap_err();
        let text = error.to_string();
        assert!(text.len() < 600 && !text.contains(char::is_control), "{text:?}");
    }
}
