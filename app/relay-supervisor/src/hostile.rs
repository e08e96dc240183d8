//! Arbitrary input for the parsers of a relay's supervisor. No input has an effect on the host.

use std::fs::File;
use std::os::fd::OwnedFd;

use pontoon_control::http::HttpRequest;
use pontoon_ipc::ChannelMessage;
use pontoon_relay_worker::messages::{RelayReport, RelayUpdate};
use serde_json::json;

use crate::control;

/// Decodes the bytes as a message between supervisor and worker and as the body of a request. A decoded value is the same after
/// it has been encoded and decoded again.
pub fn play(bytes: &[u8]) {
    message::<RelayUpdate>(bytes);
    message::<RelayReport>(bytes);
    if let Ok(change) = control::parse(&request(bytes)) {
        let written = json!({"add": texts(&change.add), "remove": texts(&change.remove)});
        let again = control::parse(&request(written.to_string().as_bytes()));
        assert_eq!(again, Ok(change));
    }
}

/// Returns a request to change rules.
fn request(body: &[u8]) -> HttpRequest {
    HttpRequest {
        method: "POST".to_owned(),
        path: "/v1/relay/rules".to_owned(),
        host: None,
        body: body.to_vec(),
        close: false,
    }
}

fn texts(list: &[impl ToString]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

/// Decodes a message that comes with each number of descriptors up to two. The encoding of an accepted message is decoded
/// as the same message.
fn message<M: ChannelMessage>(bytes: &[u8]) {
    let descriptors = |count| (0..count).filter_map(|_| File::open("/dev/null").ok().map(OwnedFd::from));
    let decode = |bytes: &[u8], count| pontoon_ipc::decode::<M>(bytes, descriptors(count).collect()).ok();
    for count in 0..3 {
        let Some(message) = decode(bytes, count) else {
            continue;
        };
        let received = message
            .descriptors()
            .into_iter()
            .filter(|place| place.borrow().is_some());
        assert_eq!(received.count(), count);
        // The text of a decoded message can be longer than the received one.
        if let Ok(encoded) = pontoon_ipc::encode(&message) {
            let again = decode(&encoded, count);
            assert_eq!(
                again.map(|again| pontoon_ipc::encode(&again).ok()),
                Some(Some(encoded))
            );
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
