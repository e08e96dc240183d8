//! Published ports.

use std::time::Instant;

use pontoon_engine::config::Published;
use pontoon_worker::Update;
use pontoon_worker::messages::{Door, Refused, Stats};
use serde::Deserialize;

use super::Api;
use crate::control::http::{Request, Response};
use crate::control::reply;
use crate::control::server::Answer;
use crate::publish::{Publish, Refusal, Undo};

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
    tell(api, &changed.doors);
    let undo = changed.undo;
    // Who hears the answer finds every worker at its new doors: they are asked after they were told.
    api.confirm(now, move |api, said| match refusal(&said, &undo) {
        None => Response::json(&reply),
        Some(why) => {
            let doors = api.ports.take_back(undo);
            tell(api, &doors);
            Response::problem(409, why)
        }
    })
}

fn tell(api: &mut Api, doors: &[Door]) {
    let messages = doors.chunks(Update::MOST_DOORS);
    api.outbox
        .extend(messages.map(|doors| Update::Published(doors.to_vec())));
}

/// Why the engine does without a port that it was told of.
fn refusal(said: &[Stats], undo: &Undo) -> Option<String> {
    let whole = |refused: &[Refused]| refused.len() < Refused::MOST;
    said.iter().find_map(|stats| {
        let ours = |refused: &&Refused| undo.has_added(&refused.port);
        let found = stats.refused.iter().find(ours);
        // Where there is no room for all, ours may be among those that are left out.
        let refused = found.or(stats.refused.first().filter(|_| !whole(&stats.refused)))?;
        let Published { protocol, host, .. } = refused.port;
        Some(format!(
            "the engine cannot take over {host}/{protocol}: {}",
            refused.why
        ))
    })
}

/// Parses the body of a request: ports to add, and ports to remove.
pub(in crate::control) fn parse(request: &Request) -> Result<(Vec<Publish>, Vec<Publish>), String> {
    let batch: Batch = request.json()?;
    Ok((specs("add", &batch.add)?, specs("remove", &batch.remove)?))
}

fn specs(list: &str, texts: &[String]) -> Result<Vec<Publish>, String> {
    let spec = |text: &String| text.parse().map_err(|why| format!("'{text}': {why}"));
    let ports = texts.iter().map(spec).collect::<Result<Vec<Publish>, String>>()?;
    let count: usize = ports.iter().map(|ports| usize::from(ports.count)).sum();
    if count > MOST_PORTS {
        return Err(format!("'{list}' names {count} ports; the limit is {MOST_PORTS}"));
    }
    Ok(ports)
}

/// Ports that a list may name: all that there are, of TCP and of UDP. Each is looked up on its own, and a body has room
/// for thousands of ranges with all of them, which would keep everybody else waiting for minutes.
const MOST_PORTS: usize = 2 * u16::MAX as usize;
