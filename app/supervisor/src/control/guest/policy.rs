//! The egress rules.

use std::time::Instant;

use pontoon_engine::egress::{EgressRule, Target};
use pontoon_runtime::Update;
use pontoon_runtime::messages::Stats;

use super::Api;
use crate::control::http::{Request, Response};
use crate::control::reply;
use crate::control::server::Answer;
use crate::policy::{self, Lists};

pub(super) fn get(api: &mut Api, _: &Request, now: Instant) -> Answer<Api> {
    api.report(now, |api, said| show(&api.rules, said))
}

/// Other rules in the place of those that there are.
pub(super) fn put(api: &mut Api, request: &Request, now: Instant) -> Answer<Api> {
    match parse(request, api.forwarder) {
        Ok(rules) => {
            api.outbox.push(Update::Rules(rules.clone()));
            api.rules = rules;
            api.stats_query.restart(&mut api.outbox);
            api.confirm(now, |api, said| show(&api.rules, said))
        }
        Err(why) => Answer::Now(Response::problem(400, why)),
    }
}

/// Parses the body of a request.
pub(in crate::control) fn parse(request: &Request, forwarder: bool) -> Result<Vec<EgressRule>, String> {
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

fn show(rules: &[EgressRule], said: Vec<Stats>) -> Response {
    // Each worker counts for each rule, then for what no rule names.
    let counted = said.into_iter().sum::<Stats>().rules;
    let hits = |place: usize| counted.get(place).copied().unwrap_or(0);
    let rule = |(place, rule): (usize, &EgressRule)| reply::Rule {
        action: rule.action.to_string(),
        to: rule.to.to_string(),
        hits: hits(place),
    };
    Response::json(&reply::Policy {
        rules: rules.iter().enumerate().map(rule).collect(),
        unlisted: hits(rules.len()),
        resolvers: hits(rules.len() + 1),
    })
}
