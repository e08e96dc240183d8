//! Published ports.

use std::time::Instant;

use pontoon_runtime::Update;
use serde::Deserialize;

use super::Api;
use crate::control::http::{Request, Response};
use crate::control::reply;
use crate::control::server::Answer;
use crate::publish::{Publish, Refusal};

/// A batch: all of it, or nothing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch {
    #[serde(default)]
    add: Vec<String>,
    #[serde(default)]
    remove: Vec<String>,
}

pub(super) fn get(api: &mut Api, _: &Request, _: Instant) -> Answer<Api> {
    let published = api.ports.iter().map(|port| port.to_string()).collect();
    Answer::Now(Response::json(&reply::Published { published }))
}

pub(super) fn post(api: &mut Api, request: &Request, now: Instant) -> Answer<Api> {
    let (add, remove) = match parse(request) {
        Ok(batch) => batch,
        Err(why) => return Answer::Now(Response::problem(400, why)),
    };
    let changed = match api.ports.change(&remove, &add) {
        Ok(changed) => changed,
        Err(Refusal::Wrong(why)) => return Answer::Now(Response::problem(400, why)),
        Err(Refusal::Conflict(why)) => return Answer::Now(Response::problem(409, why)),
    };
    let texts = |ports: &[Publish]| ports.iter().map(ToString::to_string).collect();
    let reply = reply::PublishChange {
        added: texts(&changed.added),
        removed: texts(&changed.removed),
    };
    if changed.doors.is_empty() {
        return Answer::Now(Response::json(&reply));
    }
    api.outbox.extend(
        changed
            .doors
            .chunks(Update::MOST_DOORS)
            .map(|doors| Update::Published(doors.to_vec())),
    );
    // Who hears the answer finds every worker at its new doors: they are asked after they were told.
    api.report(now, move |_, _| Response::json(&reply))
}

/// What a request asks for: what to add, and what to remove.
pub(in crate::control) fn parse(request: &Request) -> Result<(Vec<Publish>, Vec<Publish>), String> {
    let batch: Batch = request.json()?;
    Ok((specs("add", &batch.add)?, specs("remove", &batch.remove)?))
}

fn specs(list: &str, texts: &[String]) -> Result<Vec<Publish>, String> {
    let spec = |text: &String| text.parse().map_err(|why| format!("'{text}': {why}"));
    let ports = texts.iter().map(spec).collect::<Result<Vec<Publish>, String>>()?;
    let count: usize = ports.iter().map(|ports| usize::from(ports.count)).sum();
    if count > MOST_PORTS {
        return Err(format!("'{list}' names {count} ports, and may name {MOST_PORTS}"));
    }
    Ok(ports)
}

/// Ports that a list may name: all that there are, of TCP and of UDP. Each is looked up on its own, and a body has room
/// for thousands of ranges with all of them, which would keep everybody else waiting for minutes.
const MOST_PORTS: usize = 2 * u16::MAX as usize;
