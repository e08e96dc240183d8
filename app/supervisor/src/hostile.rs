//! Every reader of what comes from outside this process, for the fuzzer and for what it has gathered. Nothing of it is
//! carried out.

use pontoon_relay_worker::messages::Message;
use pontoon_sys::udp::Ancillary;
use pontoon_worker::Update;
use pontoon_worker::messages::Report;

use crate::capture::Capture;
use crate::handshake::{self, FromGuest};
use crate::publish::Publish;
use crate::resolv::{self, Resolv};
use crate::{control, policy, userns};

/// Reads the bytes as each kind of message and text. What is understood is the same once it has been written and read
/// again.
pub fn play(bytes: &[u8]) {
    if let Ok(update) = Update::decode(bytes, Vec::new()) {
        assert_eq!(Update::decode(&update.encode(), Vec::new()).ok(), Some(update));
    }
    if let Ok(report) = Report::decode(bytes) {
        assert_eq!(Report::decode(&report.encode()).ok().as_ref(), Some(&report));
        control::hostile::engine(&report);
    }
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode()).ok(), Some(message));
    }
    let _ = Ancillary::decode(bytes);
    first_process(bytes);
    control::hostile::client(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        files_and_options(text);
    }
}

fn files_and_options(text: &str) {
    for rule in policy::parse(text).into_iter().flatten() {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    if let Ok(publish) = text.parse::<Publish>() {
        assert_eq!(publish.to_string().parse(), Ok(publish));
        let last = u32::from(publish.host) + u32::from(publish.count) - 1;
        assert!(publish.count > 0 && last <= u32::from(u16::MAX), "{publish:?}");
    }
    if let Ok(capture) = text.parse::<Capture>() {
        assert_eq!(capture.check(), Ok(()));
    }
    resolvers(text);
    let name = userns::user_name(text, 1000);
    assert!(name.is_none_or(|name| !name.contains([':', '\n'])));
    let ranges = userns::subordinate(text, name, 1000);
    assert!(ranges.iter().all(|(_, count)| *count > 0));
}

/// resolv.conf has a server in any case, and hands its domains on to the guest's.
fn resolvers(text: &str) {
    let read = |text: &str| Resolv::parse(text, |name| u32::try_from(name.len()).ok());
    let Resolv { servers, search } = read(text);
    assert!(!servers.is_empty());
    let addresses: Vec<_> = servers.iter().map(|server| server.ip()).collect();
    let again = read(&resolv::render(&addresses, &search));
    assert_eq!(again.search, search);
    assert!(again.servers.iter().map(|server| server.ip()).eq(addresses));
}

/// The guest's first process, which says why it fails.
fn first_process(bytes: &[u8]) {
    if let Ok(FromGuest::Failed(error)) = FromGuest::decode(bytes, Vec::new()) {
        let again = handshake::encode(&error);
        // What is longer was cut.
        if again.len() < handshake::ROOM {
            match FromGuest::decode(&again, Vec::new()) {
                Ok(FromGuest::Failed(again)) => assert_eq!(again, error),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn stands_the_corpus() {
        pontoon_test_support::corpus::replay("text", 20, super::play);
    }
}
