//! Route `/v1/flows`: the current flows of all workers, converted to JSON.

use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::Answer;
use pontoon_engine::Token;
use pontoon_engine::flow_dump::Flow;

use super::Api;
use super::flow_dump::Outcome;

pub(super) fn get(api: &mut Api, _: &HttpRequest, now: Instant) -> Answer<Api> {
    let number = api.flow_dump.ask(&mut api.outbox, now);
    Answer::Later(Box::new(move |api| {
        Some(match api.flow_dump.result(number)? {
            Outcome::Found(flows) => HttpResponse::json(&reply::Flows {
                flows: flows.iter().map(shown).collect(),
            }),
            Outcome::NoReply => super::no_reply(),
        })
    }))
}

fn shown(flow: &Flow) -> reply::Flow {
    reply::Flow {
        id: format!("{:x}", Token::from(flow.id).0),
        worker: flow.id.worker.0,
        protocol: flow.protocol.to_string(),
        guest: flow.guest,
        remote: flow.remote,
        direction: if flow.came_in { "in" } else { "out" }.to_owned(),
        state: flow.phase.to_string(),
        age_ms: u64::try_from(flow.age.as_millis()).unwrap_or(u64::MAX),
        bytes_up: flow.traffic.up,
        bytes_down: flow.traffic.down,
    }
}
