//! Route `/v1/publish`: lists, adds and removes published ports.

use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::Answer;
use pontoon_engine::config::Published;
use pontoon_worker::Update;
use pontoon_worker::messages::{Confirmation, PortError, PortUpdate};
use serde::Deserialize;

use super::Api;
use crate::publish::{PortRefusal, PortUndo, Publish};

/// Body of a request that changes the published ports: either all changes are applied, or none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishRequest {
    #[serde(default)]
    add: Vec<String>,
    #[serde(default)]
    remove: Vec<String>,
}

pub(super) fn get(api: &mut Api, _: &HttpRequest, _: Instant) -> Answer<Api> {
    Answer::Now(HttpResponse::json(&reply::Published {
        published: api.ports.iter().map(|port| port.to_string()).collect(),
        auto: api.ports.autos().iter().map(ToString::to_string).collect(),
        found: api.ports.found().map(|port| port.to_string()).collect(),
    }))
}

pub(super) fn post(api: &mut Api, request: &HttpRequest, now: Instant) -> Answer<Api> {
    let (add, remove) = match parse(request) {
        Ok(batch) => batch,
        Err(why) => return Answer::Now(HttpResponse::problem(400, why)),
    };
    if let Some(refused) = api.refuse_unread(now) {
        return refused;
    }
    let changed = match api.ports.change(&remove, &add) {
        Ok(changed) => changed,
        Err(PortRefusal::Wrong(why)) => return Answer::Now(HttpResponse::problem(400, why)),
        Err(PortRefusal::Conflict(why)) => return Answer::Now(HttpResponse::problem(409, why)),
    };
    let texts = |ports: &[Publish]| ports.iter().map(ToString::to_string).collect();
    let reply = reply::PublishChange {
        added: texts(&changed.added),
        removed: texts(&changed.removed),
    };
    api.auto.hurry();
    if changed.port_updates.is_empty() {
        return Answer::Now(HttpResponse::json(&reply));
    }
    send(api, &changed.port_updates);
    let undo = changed.undo;
    // The workers confirm the update, so that a client that has received the response can rely on every worker.
    api.confirm(now, move |api, confirmations| {
        match refusal(&confirmations, &undo) {
            None => HttpResponse::json(&reply),
            Some(why) => {
                let port_updates = api.ports.take_back(undo);
                send(api, &port_updates);
                HttpResponse::problem(409, why)
            }
        }
    })
}

/// Sends changes of published ports to the engine.
pub(super) fn send(api: &mut Api, port_updates: &[PortUpdate]) {
    let messages = port_updates.chunks(Update::MAX_PORT_UPDATES);
    api.outbox
        .extend(messages.map(|port_updates| Update::Published(port_updates.to_vec())));
}

/// Returns the reason why a worker refused a port of the change `undo`, if one did.
fn refusal(confirmations: &[Confirmation], undo: &PortUndo) -> Option<String> {
    let whole = |refused: &[PortError]| refused.len() < PortError::MOST;
    confirmations.iter().find_map(|Confirmation { port_errors, .. }| {
        let ours = |refused: &&PortError| undo.has_added(&refused.port);
        let found = port_errors.iter().find(ours);
        // A list that is full may lack a port of this change.
        let refused = found.or(port_errors.first().filter(|_| !whole(port_errors)))?;
        let Published { protocol, host, .. } = refused.port;
        Some(format!(
            "the engine cannot take over {host}/{protocol}: {}",
            refused.why
        ))
    })
}

/// Parses the body of a request; returns the ports to add and the ports to remove.
pub(in crate::control) fn parse(request: &HttpRequest) -> Result<(Vec<Publish>, Vec<Publish>), String> {
    let batch: PublishRequest = request.json()?;
    Ok((specs("add", &batch.add)?, specs("remove", &batch.remove)?))
}

fn specs(list: &str, texts: &[String]) -> Result<Vec<Publish>, String> {
    let spec = |text: &String| text.parse().map_err(|why| format!("'{text}': {why}"));
    let ports = texts.iter().map(spec).collect::<Result<Vec<Publish>, String>>()?;
    let count: usize = ports.iter().map(Publish::count).sum();
    if count > MOST_PORTS {
        return Err(format!("'{list}' names {count} ports; the limit is {MOST_PORTS}"));
    }
    Ok(ports)
}

/// Limit on the ports of one list in a request: all ports of TCP and UDP. Each port is looked up singly, and a body has
/// room for thousands of ranges of all ports, which would delay other clients for minutes.
const MOST_PORTS: usize = 2 * u16::MAX as usize;
