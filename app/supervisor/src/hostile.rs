//! Fuzz target of the supervisor: passes arbitrary bytes to all parsers of data from other processes. No input has an
//! effect on the host.

use pontoon_ipc::hostile::message;
use pontoon_sys::udp::Ancillary;
use pontoon_worker::Update;
use pontoon_worker::messages::Report;

use crate::audit::{Audit, LEAST_SIZE};
use crate::capture::Capture;
use crate::forward::Forward;
use crate::guest::handshake::{self, FromGuest};
use crate::guest::userns;
use crate::host::resolv::{self, Resolv};
use crate::publish::Publish;
use crate::{control, policy};

/// Decodes the bytes as each kind of message and text, and checks that a decoded value is the same after it has been
/// encoded and decoded again.
pub fn play(bytes: &[u8]) {
    message::<Update>(bytes);
    if let Some(report) = message::<Report>(bytes) {
        control::hostile::engine(&report);
    }
    control::hostile::statistics(bytes);
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
        assert_eq!(publish.to_string().parse().as_ref(), Ok(&publish));
        for range in publish.named() {
            assert!(range.first > 0 && range.first <= range.last, "{publish:?}");
            let _ = (publish.guest_port(range.first), publish.guest_port(range.last));
        }
    }
    if let Ok(forward) = text.parse::<Forward>() {
        assert_eq!(forward.to_string().parse(), Ok(forward));
    }
    if let Ok(capture) = text.parse::<Capture>() {
        assert_eq!(capture.check(), Ok(()));
    }
    if let Ok(audit) = text.parse::<Audit>() {
        assert!(audit.size >= LEAST_SIZE && audit.keep > 0);
    }
    resolvers(text);
    let name = userns::user_name(text, 1000);
    assert!(name.is_none_or(|name| !name.contains([':', '\n'])));
    let ranges = userns::subordinate(text, name, 1000);
    assert!(ranges.iter().all(|(_, count)| *count > 0));
}

/// Checks that a parsed resolv.conf has a server, and that the guest's resolv.conf made from it has the same search
/// domains.
fn resolvers(text: &str) {
    let read = |text: &str| Resolv::parse(text, |name| u32::try_from(name.len()).ok());
    let Resolv { servers, search } = read(text);
    assert!(!servers.is_empty());
    let addresses: Vec<_> = servers.iter().map(|server| server.ip()).collect();
    let again = read(&resolv::render(&addresses, &search));
    assert_eq!(again.search, search);
    assert!(again.servers.iter().map(|server| server.ip()).eq(addresses));
}

/// Decodes the bytes as an error that the guest's first process sends to the supervisor, and checks that it is one line.
fn first_process(bytes: &[u8]) {
    if let Ok(FromGuest::Failed(error)) = FromGuest::decode(bytes, Vec::new()) {
        let again = handshake::encode(&error);
        // A longer text was truncated when it was encoded.
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
    fn corpus_does_not_panic() {
        pontoon_test_support::corpus::replay("text", 20, super::play);
    }
}
