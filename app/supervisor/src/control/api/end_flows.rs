//! Routes `/v1/flows/{id}` and `/v1/flows/kill`: end flows.

use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::Answer;
use pontoon_engine::Token;
use pontoon_engine::egress::{Match, Target};
use pontoon_worker::Update;
use pontoon_worker::messages::{EndFlows, FlowSelection};
use serde::Deserialize;

use super::Api;

/// Body of a request to end flows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KillRequest {
    /// Destinations of the flows, in the syntax of the options `--allow` and `--deny`.
    rule: String,
}

/// Handles `DELETE /v1/flows/{id}`, which ends the flow with that id.
pub(super) fn delete(api: &mut Api, request: &HttpRequest, now: Instant) -> Answer<Api> {
    let id = request.id().to_owned();
    let missing = move || HttpResponse::problem(404, format_args!("no such flow: {id}"));
    let Some(token) = parse_id(request.id()) else {
        return Answer::Now(missing());
    };
    end(api, FlowSelection::Id(token), now, move |ended| match ended {
        0 => missing(),
        ended => HttpResponse::json(&reply::FlowsEnded { ended }),
    })
}

/// Handles `POST /v1/flows/kill`, which ends the flows to the destinations that a rule names.
pub(super) fn post(api: &mut Api, request: &HttpRequest, now: Instant) -> Answer<Api> {
    let what = match parse(request) {
        Ok(what) => what,
        Err(why) => return Answer::Now(HttpResponse::problem(400, why)),
    };
    let is_known = |api: &Api| {
        let mut rules = api.statistics.rule_hits().rules.into_iter();
        rules.any(|(rule, _)| rule.to.target == what.target)
    };
    if matches!(what.target, Target::Name(_)) && !is_known(api) {
        let why = format!("no egress rule names the domain of '{what}', so its addresses are not known");
        return Answer::Now(HttpResponse::problem(400, why));
    }
    end(api, FlowSelection::To(what), now, |ended| {
        HttpResponse::json(&reply::FlowsEnded { ended })
    })
}

/// Parses the body of a request to end flows.
pub(in crate::control) fn parse(request: &HttpRequest) -> Result<Match, String> {
    let KillRequest { rule } = request.json()?;
    rule.parse()
}

/// Parses the id of a flow, as the list of flows shows it.
fn parse_id(text: &str) -> Option<u64> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let token = u64::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
    Token(token).flow().map(|_| token)
}

/// Requests the end of flows; the number of those that all workers have ended is passed to `render`.
fn end(
    api: &mut Api,
    which: FlowSelection,
    now: Instant,
    render: impl FnOnce(u64) -> HttpResponse + 'static,
) -> Answer<Api> {
    if let Some(refused) = api.refuse_unread(now) {
        return refused;
    }
    api.last_end += 1;
    let number = api.last_end;
    api.outbox.push(Update::EndFlows(EndFlows { number, which }));
    api.confirm(now, move |_, confirmations| {
        let results = confirmations.iter().flat_map(|confirmation| &confirmation.ended);
        let counts = results.filter(|result| result.number == number);
        render(counts.map(|result| u64::from(result.count)).sum())
    })
}
