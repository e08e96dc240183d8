//! Routes of a relay's control socket, with the bodies of requests and responses.

use std::path::Path;

use pontoon_control::Metrics;
use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::role::Role;
use pontoon_control::server::{Answer, Route, Server};
use pontoon_process::error::Error;
use pontoon_relay::Rule;
use pontoon_relay::rules::Change;
use serde::Deserialize;

use crate::metrics;
use crate::state::Relay;

/// Opens the control socket at `path`, to which only this user can connect, and the metrics endpoint.
///
/// # Errors
/// Another process listens at the path or address, or a socket cannot be opened.
pub(super) fn open(path: Option<&Path>, metrics: Option<&Metrics>) -> Result<Vec<Server<Relay>>, Error> {
    pontoon_control::open(path, metrics, ROUTES)
}

/// Routes of the control socket and of the metrics endpoint.
const ROUTES: &[Route<Relay>] = &[
    Route::new("GET", "/v1/relay/stats", Role::Read, |relay, _, _| {
        Answer::Now(HttpResponse::json(&relay.stats()))
    }),
    Route::new("GET", "/v1/relay/rules", Role::Read, |relay, _, _| {
        Answer::Now(list(relay))
    }),
    Route::new("POST", "/v1/relay/rules", Role::Operate, |relay, request, _| {
        Answer::Now(change(relay, request))
    }),
    Route::new("GET", "/metrics", Role::Measure, |relay, _, _| {
        Answer::Now(metrics::response(&relay.stats()))
    }),
    Route::new("GET", "/v1/openapi.json", Role::Read, |_, _, _| {
        Answer::Now(HttpResponse::document(DOCUMENT))
    }),
];

/// OpenAPI description of the control socket.
const DOCUMENT: &str = include_str!("openapi.json");

/// Body of a request that changes rules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleRequest {
    #[serde(default)]
    add: Vec<String>,
    #[serde(default)]
    remove: Vec<String>,
}

fn list(relay: &Relay) -> HttpResponse {
    let rules = relay.rules().iter().map(|rule| show(relay, rule)).collect();
    HttpResponse::json(&reply::RelayRules { rules })
}

fn change(relay: &mut Relay, request: &HttpRequest) -> HttpResponse {
    let change = match parse(request) {
        Ok(change) => change,
        Err(why) => return HttpResponse::problem(400, why),
    };
    match relay.change(&change) {
        Ok(before) => {
            let (added, removed) = (relay.rules().without(&before), before.without(relay.rules()));
            HttpResponse::json(&reply::RelayChange {
                added: added.map(|rule| show(relay, rule)).collect(),
                removed: removed.map(ToString::to_string).collect(),
            })
        }
        Err(why) => HttpResponse::problem(409, why),
    }
}

/// Parses the body of a request that changes rules.
pub(super) fn parse(request: &HttpRequest) -> Result<Change, String> {
    let batch: RuleRequest = request.json()?;
    Change::parse(&batch.remove, &batch.add)
}

fn show(relay: &Relay, rule: &Rule) -> reply::RelayRule {
    reply::RelayRule {
        rule: rule.to_string(),
        waits: relay.waits_for(rule),
    }
}

#[cfg(test)]
mod tests {
    use pontoon_relay::counters::{RuleStats, Stats};
    use pontoon_test_support::openapi::{check_routes, conform, parse};
    use serde::Serialize;

    use super::*;

    #[test]
    fn document_describes_every_route_and_no_other() {
        let routes = ROUTES.iter().map(|route| (route.method, route.path));
        check_routes(&parse(DOCUMENT), routes);
    }

    #[test]
    fn responses_match_their_schemas() {
        fn check(schema: &str, answer: &impl Serialize) {
            let document = parse(DOCUMENT);
            let schema = &document["components"]["schemas"][schema];
            conform(&document, schema, &serde_json::to_value(answer).unwrap()).unwrap();
        }
        let stats = Stats {
            interfaces: vec![Default::default()],
            devices: vec![Default::default()],
            rules: vec![RuleStats {
                outputs: vec![Default::default()],
                ..RuleStats::default()
            }],
            workers: vec![Default::default()],
            querier: Some(Default::default()),
            ..Stats::default()
        };
        let mut stats = serde_json::to_value(stats).unwrap();
        stats["interfaces"][0]["family"] = "ipv6".into();
        check("Stats", &stats);
        let rule = reply::RelayRule {
            rule: "a 239.1.1.1:1 -> b *:*".to_owned(),
            waits: vec!["a: no such interface".to_owned()],
        };
        check(
            "Rules",
            &reply::RelayRules {
                rules: vec![rule.clone()],
            },
        );
        let change = reply::RelayChange {
            added: vec![rule],
            removed: vec!["b 239.1.1.1:1 -> a *:*".to_owned()],
        };
        check("Changed", &change);
    }
}
