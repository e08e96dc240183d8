//! Route `/v1/policy`: shows and replaces the egress rules.

use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::Answer;
use pontoon_engine::egress::{EgressRule, Target};
use pontoon_worker::Update;
use pontoon_worker::messages::Stats;

use super::Api;
use crate::policy::{self, Lists};

pub(super) fn get(api: &mut Api, _: &HttpRequest, now: Instant) -> Answer<Api> {
    api.report(now, |api, reports| show(&api.rules, reports))
}

/// Handles `PUT /v1/policy`, which replaces the egress rules.
pub(super) fn put(api: &mut Api, request: &HttpRequest, now: Instant) -> Answer<Api> {
    match parse(request, api.forwarder) {
        Ok(rules) => {
            api.outbox.push(Update::Rules(rules.clone()));
            api.rules = rules;
            api.stats_query.restart(&mut api.outbox);
            api.confirm(now, |api, reports| show(&api.rules, reports))
        }
        Err(why) => Answer::Now(HttpResponse::problem(400, why)),
    }
}

/// Parses the body of a request that replaces the egress rules.
pub(in crate::control) fn parse(request: &HttpRequest, forwarder: bool) -> Result<Vec<EgressRule>, String> {
    let lists: Lists = request.json()?;
    let rules = lists.rules()?;
    policy::check(&rules)?;
    match rules
        .iter()
        .find(|rule| matches!(rule.to.target, Target::Name(_)))
    {
        Some(rule) if !forwarder => Err(format!("'{rule}' needs the DNS forwarder, which is disabled")),
        _ => Ok(rules),
    }
}

fn show(rules: &[EgressRule], reports: Vec<Stats>) -> HttpResponse {
    // Each worker reports the hits of the rules in their order, then the number of flows that match no allow rule.
    let counted = reports.into_iter().sum::<Stats>().rules;
    let hits = |place: usize| counted.get(place).copied().unwrap_or(0);
    let rule = |(place, rule): (usize, &EgressRule)| reply::Rule {
        action: rule.action.to_string(),
        to: rule.to.to_string(),
        hits: hits(place),
    };
    HttpResponse::json(&reply::Policy {
        rules: rules.iter().enumerate().map(rule).collect(),
        unlisted: hits(rules.len()),
        resolvers: hits(rules.len() + 1),
    })
}
