//! Runs handshakes with the answers of a hostile proxy, and the parser of a proxy's address.

use std::net::SocketAddr;

use pontoon_proxy::{Credentials, Handshake, Host, LIMIT, Progress, Protocol, ProxyUrl, Target};

/// A part of the password in the credentials of [`credentials`].
pub const SECRET: &str = "xyzzy";

/// Returns credentials with the password [`SECRET`].
pub fn credentials() -> Credentials {
    Credentials::new("user".to_owned(), SECRET.to_owned()).unwrap()
}

/// Returns the target with this text: `NAME:PORT`, `IPV4:PORT` or `[IPV6]:PORT`.
pub fn target(text: &str) -> Target {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return address.into();
    }
    let (name, port) = text.rsplit_once(':').unwrap();
    Target {
        host: Host::Name(name.parse().unwrap()),
        port: port.parse().unwrap(),
    }
}

/// The course of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    /// The last progress, in which the number of octets is that of all octets of the handshake.
    pub progress: Progress,
    /// All requests.
    pub requests: Vec<u8>,
}

/// Runs a handshake with the octets `answers` in segments of these lengths, which are repeated.
pub fn course(mut handshake: Handshake, mut answers: &[u8], segments: &[usize]) -> Course {
    assert_no_secret(&format!("{handshake:?}"));
    let mut requests = handshake.take_request().expect("a request precedes all answers");
    let mut total = 0;
    let mut segments = segments.iter().cycle();
    let progress = loop {
        let length = segments.next().map_or(1, |length| *length).min(answers.len());
        let (segment, rest) = answers.split_at(length);
        answers = rest;
        let progress = handshake.read(segment);
        if let Some(request) = handshake.take_request() {
            requests.extend(request);
            assert_no_secret(&format!("{handshake:?}"));
        }
        match progress {
            Progress::NeedMore if rest.is_empty() => break progress,
            Progress::NeedMore => total += length,
            Progress::Done { consumed } => {
                assert!(consumed <= length);
                assert_eq!(handshake.read(rest), Progress::Done { consumed: 0 });
                let consumed = total + consumed;
                break Progress::Done { consumed };
            }
            Progress::Refused(refusal) => {
                assert_no_secret(&format!("{refusal} {refusal:?}"));
                assert_eq!(handshake.read(rest), progress);
                break progress;
            }
        }
    };
    assert!(handshake.take_request().is_none());
    assert_no_secret(&format!("{handshake:?}"));
    Course { progress, requests }
}

fn assert_no_secret(text: &str) {
    assert!(!text.contains(SECRET), "{text}");
    // A part of "user:xyzzy" in Base64.
    assert!(!text.contains("eXp6"), "{text}");
}

/// Runs one input of the fuzzer. The first byte selects the protocol, the target and the credentials, or the parser of
/// an address; the second one the length of the segments.
pub fn run(bytes: &[u8]) {
    let [kind, segment, rest @ ..] = bytes else {
        return;
    };
    if *kind == u8::MAX {
        text(rest);
        return;
    }
    let protocol = if kind & 1 == 0 {
        Protocol::Http
    } else {
        Protocol::Socks5
    };
    let target = target(["a.example:443", "192.0.2.1:22", "[2001:db8::1]:80"][usize::from(kind >> 2) % 3]);
    let credentials = (kind & 2 != 0).then(credentials);
    let handshake = || Handshake::new(protocol, &target, credentials.as_ref());
    let whole = course(handshake(), rest, &[usize::MAX]);
    assert_eq!(whole, course(handshake(), rest, &[1]));
    assert_eq!(whole, course(handshake(), rest, &[usize::from(*segment).max(1)]));
    assert!(whole.requests.len() < 2_048);
    match whole.progress {
        Progress::NeedMore => assert!(rest.len() < LIMIT),
        Progress::Done { consumed } => {
            assert!((1..=rest.len().min(LIMIT)).contains(&consumed));
            // The octets of the handshake alone have the same result, and one less has none.
            let result = |length: usize| course(handshake(), &rest[..length], &[usize::MAX]).progress;
            assert_eq!(result(consumed), whole.progress);
            assert_eq!(result(consumed - 1), Progress::NeedMore);
        }
        Progress::Refused(_) => {}
    }
}

/// Parses the address of a proxy, with and without credentials.
fn text(bytes: &[u8]) {
    let _ = Credentials::parse(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(url) = text.parse::<ProxyUrl>() {
        assert_eq!(url.to_string().parse(), Ok(url.clone()));
        assert_eq!(ProxyUrl::parse_with_credentials(text), Ok((url, None)));
    }
    if let Ok((url, Some(credentials))) = ProxyUrl::parse_with_credentials(text) {
        assert!(text.parse::<ProxyUrl>().is_err());
        assert_eq!(url.to_string().parse(), Ok(url));
        assert_eq!(format!("{credentials:?}"), "Credentials(..)");
    }
}
