//! Composes ClientHellos, and runs the reader of them with octets of a hostile client.

use pontoon_names::client_hello::{ClientHelloReader, LIMIT, Progress};
use pontoon_names::ech;

/// A ClientHello.
#[derive(Clone, Debug)]
pub struct Hello {
    /// The version that the client requests.
    pub version: u16,
    /// Types and contents of extensions; `None` if the list is absent.
    pub extensions: Option<Vec<(u16, Vec<u8>)>>,
}

impl Hello {
    /// Returns a ClientHello of TLS 1.3 with a server name and a few extensions of OpenSSL.
    pub fn new(name: &str) -> Self {
        Self {
            version: 0x0303,
            extensions: Some(vec![
                Self::names(&server_name(0, name.as_bytes())),
                (10, vec![0, 4, 0, 29, 0, 23]),
                (43, vec![2, 3, 4]),
            ]),
        }
    }

    /// Returns the extension server_name with the list `names`.
    pub fn names(names: &[u8]) -> (u16, Vec<u8>) {
        let mut content = Vec::new();
        push(&mut content, 2, names);
        (0, content)
    }

    /// Returns the handshake message.
    pub fn message(&self) -> Vec<u8> {
        let mut content = self.version.to_be_bytes().to_vec();
        content.extend([7; 32]);
        push(&mut content, 1, &[9; 32]);
        push(&mut content, 2, &[0x13, 1, 0x13, 2]);
        push(&mut content, 1, &[0]);
        if let Some(extensions) = &self.extensions {
            let mut list = Vec::new();
            for (kind, content) in extensions {
                list.extend(kind.to_be_bytes());
                push(&mut list, 2, content);
            }
            push(&mut content, 2, &list);
        }
        let mut message = vec![1];
        push(&mut message, 3, &content);
        message
    }
}

/// Returns an entry of the list of server names.
pub fn server_name(kind: u8, name: &[u8]) -> Vec<u8> {
    let mut entry = vec![kind];
    push(&mut entry, 2, name);
    entry
}

/// Appends the length of `content` in `octets` octets, and `content`.
fn push(to: &mut Vec<u8>, octets: usize, content: &[u8]) {
    let length = (content.len() as u64).to_be_bytes();
    to.extend(&length[8 - octets..]);
    to.extend(content);
}

/// Divides handshake messages between records of these lengths, which are repeated.
pub fn records(mut messages: &[u8], lengths: &[usize]) -> Vec<u8> {
    let mut records = Vec::new();
    let mut lengths = lengths.iter().cycle();
    while !messages.is_empty() {
        let length = lengths.next().map_or(LIMIT, |length| (*length).clamp(1, LIMIT));
        let (record, rest) = messages.split_at(length.min(messages.len()));
        records.extend([22, 3, 1]);
        push(&mut records, 2, record);
        messages = rest;
    }
    records
}

/// Returns the contents of the records in `bytes`.
pub fn message(mut bytes: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    while let [_, _, _, high, low, rest @ ..] = bytes {
        let length = usize::from(*high) << 8 | usize::from(*low);
        let (record, rest) = rest.split_at(length.min(rest.len()));
        message.extend(record);
        bytes = rest;
    }
    message
}

/// Reads `bytes` in segments of these lengths, which are repeated.
pub fn read(mut bytes: &[u8], segments: &[usize]) -> Progress {
    let mut reader = ClientHelloReader::new();
    let mut progress = Progress::NeedMore;
    let mut segments = segments.iter().cycle();
    while !bytes.is_empty() {
        let length = segments.next().map_or(1, |length| *length).min(bytes.len());
        let (segment, rest) = bytes.split_at(length);
        progress = reader.push(segment);
        bytes = rest;
    }
    progress
}

/// Runs one input of the fuzzer. The first byte selects the form of the others: a stream, a handshake message, the
/// extensions of a ClientHello, or a DNS response.
pub fn run(bytes: &[u8]) {
    let [kind, segment, record, rest @ ..] = bytes else {
        return;
    };
    let (segment, record) = (usize::from(*segment).max(1), usize::from(*record).max(1));
    let stream = match kind % 4 {
        3 => return response(rest),
        0 => rest.to_vec(),
        1 => records(rest, &[record]),
        _ => {
            let mut content = vec![3, 3];
            content.extend([0; 33]);
            content.extend([0, 2, 0x13, 1, 1, 0]);
            push(&mut content, 2, rest);
            let mut message = vec![1];
            push(&mut message, 3, &content);
            records(&message, &[record])
        }
    };
    let whole = read(&stream, &[usize::MAX]);
    assert_eq!(whole, read(&stream, &[segment]));
    assert_eq!(whole, read(&stream, &[1]));
    if stream.len() >= LIMIT {
        assert_ne!(whole, Progress::NeedMore);
    }
    if let Progress::Name(hello) = whole {
        let name = hello.name.as_str();
        assert_eq!(name.parse().as_ref(), Ok(&hello.name));
        assert!((1..=253).contains(&name.len()) && name.is_ascii());
        assert!(!name.ends_with('.') && !name.bytes().any(|octet| octet.is_ascii_uppercase()));
        // The hello is read from one record, too, and further octets do not change the name.
        let mut again = records(&message(&stream), &[LIMIT]);
        again.push(0);
        assert_eq!(read(&again, &[usize::MAX]), Progress::Name(hello));
    }
}

/// Removes `ech` from a DNS response.
fn response(bytes: &[u8]) {
    let mut message = bytes.to_vec();
    match ech::remove(&mut message) {
        Ok(ech::Removal::Unchanged) | Err(ech::Malformed) => assert_eq!(message, bytes),
        Ok(ech::Removal::Removed) => {
            assert_eq!(message.len(), bytes.len());
            assert_ne!(message, bytes);
            assert_eq!(ech::remove(&mut message), Ok(ech::Removal::Unchanged));
        }
    }
}
