//! Route `/v1/events`: the events of flows, for as long as the client reads.

use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::server::{Answer, StreamState};
use pontoon_engine::egress::EgressProtocol;

use super::Api;
use crate::events::{Filter, MOST, TYPES};

pub(super) fn get(api: &mut Api, request: &HttpRequest, now: Instant) -> Answer<Api> {
    let filter = match filter(&request.query) {
        Ok(filter) => filter,
        Err(error) => return Answer::Now(HttpResponse::problem(400, error)),
    };
    let Some(events) = &api.events else {
        return Answer::Now(HttpResponse::problem(404, "this instance has no events"));
    };
    let Some(subscription) = events.subscribe(filter, request.role, now) else {
        let what = format!("{MOST} clients of this socket read events already");
        return Answer::Now(HttpResponse::problem(503, what));
    };
    Answer::Stream(Box::new(move |_, part, _| {
        subscription.borrow_mut().take(part);
        StreamState::Open
    }))
}

/// Parses a query: `type=TYPE,...` and `protocol=PROTOCOL,...`.
///
/// # Errors
/// The query has another parameter or value; the text is one line.
fn filter(query: &str) -> Result<Filter, String> {
    let mut filter = Filter::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, values) = pair.split_once('=').unwrap_or((pair, ""));
        // A comma may be encoded.
        let values = values.replace("%2C", ",").replace("%2c", ",");
        for value in values.split(',') {
            match name {
                "type" => {
                    let known = TYPES.into_iter().find(|known| *known == value);
                    let wrong = || format!("unknown type '{value}': expected {}", TYPES.join(", "));
                    filter.types.push(known.ok_or_else(wrong)?);
                }
                "protocol" => filter.protocols.push(match value {
                    "tcp" => EgressProtocol::Tcp,
                    "udp" => EgressProtocol::Udp,
                    "icmp" => EgressProtocol::Icmp,
                    _ => return Err(format!("unknown protocol '{value}': expected tcp, udp, icmp")),
                }),
                _ => return Err(format!("unknown parameter '{name}': expected type, protocol")),
            }
        }
        if filter.types.len() + filter.protocols.len() > MOST_VALUES {
            return Err(format!("at most {MOST_VALUES} values"));
        }
    }
    Ok(filter)
}

/// Limit on the values of a query.
const MOST_VALUES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_parsed_or_refused() {
        assert_eq!(filter(""), Ok(Filter::default()));
        let parsed = filter("type=opened,closed&protocol=udp&type=lost").unwrap();
        assert_eq!(parsed.types, ["opened", "closed", "lost"]);
        assert_eq!(parsed.protocols, [EgressProtocol::Udp]);
        assert_eq!(filter("type=opened%2Cclosed").unwrap().types.len(), 2);
        for wrong in [
            "type=",
            "type",
            "type=gaps",
            "protocol=sctp",
            "since=1",
            "type=opened,",
        ] {
            assert!(filter(wrong).is_err(), "{wrong}");
        }
        assert!(filter(&"type=opened&".repeat(40)).is_err());
    }
}
