//! Route `/v1/policy`: shows and replaces the egress rules.

use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::Answer;
use pontoon_engine::egress::{EgressRule, RefusedFlows, Target};
use pontoon_worker::Update;
use pontoon_worker::messages::RulesUpdate;
use serde::Deserialize;

use super::Api;
use crate::policy::{self, Lists};
use crate::statistics::RuleHits;

pub(super) fn get(api: &mut Api, _: &HttpRequest, _: Instant) -> Answer<Api> {
    Answer::Now(show(api))
}

/// Body of a request that replaces the egress rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Replacement {
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    deny: Vec<String>,
    /// Treatment of flows that the rules refuse: `reset`, the default, or `keep`.
    flows: Option<String>,
}

/// Handles `PUT /v1/policy`, which replaces the egress rules.
pub(super) fn put(api: &mut Api, request: &HttpRequest, now: Instant) -> Answer<Api> {
    match parse(request, api.forwarder) {
        Ok((rules, refused)) => {
            let update = api.statistics.set_rules(rules);
            api.outbox.push(Update::Rules(RulesUpdate { refused, ..update }));
            api.confirm(now, |api, _| show(api))
        }
        Err(why) => Answer::Now(HttpResponse::problem(400, why)),
    }
}

/// Parses the body of a request that replaces the egress rules.
pub(in crate::control) fn parse(
    request: &HttpRequest,
    forwarder: bool,
) -> Result<(Vec<EgressRule>, RefusedFlows), String> {
    let Replacement { allow, deny, flows } = request.json()?;
    let refused = flows.map_or(Ok(RefusedFlows::default()), |flows| flows.parse())?;
    let rules = Lists { allow, deny }.rules()?;
    policy::check(&rules)?;
    match rules
        .iter()
        .find(|rule| matches!(rule.to.target, Target::Name(_)))
    {
        Some(rule) if !forwarder => Err(format!("'{rule}' needs the DNS forwarder, which is disabled")),
        _ => Ok((rules, refused)),
    }
}

fn show(api: &Api) -> HttpResponse {
    let RuleHits {
        rules,
        unlisted,
        resolvers,
    } = api.statistics.rule_hits();
    let rule = |(rule, hits): (EgressRule, u64)| reply::Rule {
        action: rule.action.to_string(),
        to: rule.to.to_string(),
        hits,
    };
    HttpResponse::json(&reply::Policy {
        rules: rules.into_iter().map(rule).collect(),
        unlisted,
        resolvers,
    })
}
