//! Fuzz target of the relay's supervisor: passes arbitrary bytes to its parsers. No input has an effect on the host.

use pontoon_control::http::HttpRequest;
use pontoon_control::role::Role;
use pontoon_ipc::hostile::message;
use pontoon_relay_worker::messages::{RelayReport, RelayUpdate};
use serde_json::json;

use crate::control;

/// Decodes the bytes as a message between supervisor and worker and as the body of a request, and checks that a decoded
/// value is the same after it has been encoded and decoded again.
pub fn play(bytes: &[u8]) {
    message::<RelayUpdate>(bytes);
    message::<RelayReport>(bytes);
    if let Ok(change) = control::parse(&request(bytes)) {
        let written = json!({"add": texts(&change.add), "remove": texts(&change.remove)});
        let again = control::parse(&request(written.to_string().as_bytes()));
        assert_eq!(again, Ok(change));
    }
}

/// Returns a request with this body to change rules.
fn request(body: &[u8]) -> HttpRequest {
    HttpRequest {
        method: "POST".to_owned(),
        path: "/v1/relay/rules".to_owned(),
        query: String::new(),
        host: None,
        body: body.to_vec(),
        close: false,
        role: Role::Operate,
    }
}

fn texts(list: &[impl ToString]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_does_not_panic() {
        pontoon_test_support::corpus::replay("text", 20, super::play);
    }
}
