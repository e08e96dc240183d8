//! What can be asked, and the answers.

use std::collections::BTreeMap;

use pontoon_engine::egress::{Rule, Target};
use pontoon_runtime::Update;
use pontoon_runtime::messages::Stats;

use super::Served;
use super::http::{Request, Response};
use super::metrics;
use super::reply;
use super::round::{Round, Silent};
use crate::policy::{self, Lists};

#[derive(Debug)]
pub(super) struct Api {
    rules: Vec<Rule>,
    forwarder: bool,
    pub(super) round: Round,
}

/// What a request is answered.
#[derive(Debug)]
pub(super) enum Answer {
    Now(Response),
    /// Once the workers have said what they know.
    Later(Render),
}

/// Makes an answer of what the workers said.
pub(super) type Render = fn(&Api, Result<Vec<Stats>, Silent>) -> Response;

/// One thing that can be asked.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    act: fn(&mut Api, &Request, &mut dyn FnMut(Update)) -> Answer,
}

/// All of them.
pub(super) const ROUTES: &[Route] = &[
    Route {
        method: "GET",
        path: "/v1/stats",
        act: |_, _, _| Answer::Later(stats),
    },
    Route {
        method: "GET",
        path: "/v1/policy",
        act: |_, _, _| Answer::Later(policy),
    },
    Route {
        method: "PUT",
        path: "/v1/policy",
        act: set_policy,
    },
    Route {
        method: "GET",
        path: "/metrics",
        act: |_, _, _| Answer::Later(metrics),
    },
    Route {
        method: "GET",
        path: "/v1/openapi.json",
        act: |_, _, _| Answer::Now(document()),
    },
];

/// The description of all this, for programs.
pub(super) const DOCUMENT: &str = include_str!("openapi.json");

impl Api {
    pub(super) fn new(served: Served) -> Self {
        Self {
            rules: served.rules,
            forwarder: served.forwarder,
            round: Round::new(served.workers),
        }
    }

    pub(super) fn handle(&mut self, request: &Request, tell: &mut dyn FnMut(Update)) -> Answer {
        let here = || ROUTES.iter().filter(|route| route.path == request.path);
        if let Some(route) = here().find(|route| route.method == request.method) {
            return (route.act)(self, request, tell);
        }
        let methods: Vec<_> = here().map(|route| route.method).collect();
        Answer::Now(if methods.is_empty() {
            Response::problem(404, format_args!("there is no {}", request.path))
        } else {
            let allow = methods.join(", ");
            Response {
                allow: Some(allow.clone()),
                ..Response::problem(405, format_args!("{} takes {allow}", request.path))
            }
        })
    }
}

fn document() -> Response {
    Response {
        status: 200,
        content_type: "application/json",
        allow: None,
        body: DOCUMENT.as_bytes().to_vec(),
    }
}

fn stats(_: &Api, said: Result<Vec<Stats>, Silent>) -> Response {
    let said = match said {
        Ok(said) => said,
        Err(Silent) => return silent(),
    };
    let worker = |stats: Stats| reply::Worker {
        flows: stats.flows,
        pool_bytes: stats.pool_bytes,
        counters: stats.counters.into_iter().collect(),
    };
    let workers: Vec<reply::Worker> = said.into_iter().map(worker).collect();
    let mut total = reply::Worker::default();
    for worker in &workers {
        total.flows += worker.flows;
        total.pool_bytes += worker.pool_bytes;
        for (name, count) in &worker.counters {
            *total.counters.entry(name.clone()).or_default() += count;
        }
    }
    Response::json(&reply::Stats { workers, total })
}

fn policy(api: &Api, said: Result<Vec<Stats>, Silent>) -> Response {
    let said = match said {
        Ok(said) => said,
        Err(Silent) => return silent(),
    };
    // Each worker counts for each rule, then for what no rule names.
    let hits = |place: usize| -> u64 {
        let of_each = said.iter().filter_map(|stats| stats.rules.get(place));
        of_each.sum()
    };
    let rule = |(place, rule): (usize, &Rule)| reply::Rule {
        action: rule.action.to_string(),
        to: rule.to.to_string(),
        hits: hits(place),
    };
    Response::json(&reply::Policy {
        rules: api.rules.iter().enumerate().map(rule).collect(),
        unlisted: hits(api.rules.len()),
        resolvers: hits(api.rules.len() + 1),
    })
}

fn metrics(api: &Api, said: Result<Vec<Stats>, Silent>) -> Response {
    let said = match said {
        Ok(said) => said,
        Err(Silent) => return silent(),
    };
    // What no rule names, and other resolvers, come after the rules.
    let texts = api.rules.iter().map(ToString::to_string);
    let texts: Vec<String> = texts.chain(["unlisted", "resolvers"].map(String::from)).collect();
    let mut rules = BTreeMap::new();
    for stats in &said {
        for (text, hits) in texts.iter().zip(&stats.rules) {
            *rules.entry(text.clone()).or_default() += hits;
        }
    }
    match metrics::render(said, rules) {
        Ok(text) => Response {
            status: 200,
            content_type: metrics::CONTENT_TYPE,
            allow: None,
            body: text.into_bytes(),
        },
        Err(error) => Response::problem(500, error),
    }
}

/// Other rules in the place of those that there are.
fn set_policy(api: &mut Api, request: &Request, tell: &mut dyn FnMut(Update)) -> Answer {
    match api.read_policy(&request.body) {
        Ok(rules) => {
            tell(Update::Rules(rules.clone()));
            api.rules = rules;
            api.round.restart(tell);
            Answer::Later(policy)
        }
        Err(why) => Answer::Now(Response::problem(400, why)),
    }
}

impl Api {
    fn read_policy(&self, body: &[u8]) -> Result<Vec<Rule>, String> {
        // serde would take an array for the values of the fields, and an empty one for no rules.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err("the body is no JSON object".to_owned());
        }
        let lists: Lists = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let rules = lists.rules()?;
        policy::check(&rules)?;
        match rules
            .iter()
            .find(|rule| matches!(rule.to.target, Target::Name(_)))
        {
            Some(rule) if !self.forwarder => Err(format!("'{rule}' needs our resolver, which is left out")),
            _ => Ok(rules),
        }
    }
}

fn silent() -> Response {
    Response::problem(503, "the engine does not answer")
}
