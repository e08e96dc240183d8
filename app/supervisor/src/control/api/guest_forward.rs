//! Route `/v1/guest-forward`: lists, adds and removes guest forwards.

use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::Answer;
use pontoon_worker::Update;
use pontoon_worker::messages::ForwardUpdate;

use super::Api;
use super::change_request::{ChangeRequest, parse_values};
use crate::forward::Forward;

/// Limit on the values of one list in a request, each of which is compared with all others.
const MOST_VALUES: usize = 256;

pub(super) fn get(api: &mut Api, _: &HttpRequest, _: Instant) -> Answer<Api> {
    let found = api.forwards.found().map(|forward| {
        let (from, to, protocol) = (forward.from, forward.to, forward.protocol);
        format!("{from}:{to}/{protocol}")
    });
    Answer::Now(HttpResponse::json(&reply::GuestForwards {
        forwards: api.forwards.iter().map(ToString::to_string).collect(),
        auto: api.forwards.autos().iter().map(ToString::to_string).collect(),
        found: found.collect(),
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
    let changed = match api.forwards.change(&remove, &add) {
        Ok(changed) => changed,
        Err(why) => return Answer::Now(HttpResponse::problem(409, why)),
    };
    let texts = |list: &[Forward]| list.iter().map(ToString::to_string).collect();
    let reply = reply::PublishChange {
        added: texts(&changed.added),
        removed: texts(&changed.removed),
    };
    api.auto.scan_now();
    if changed.updates.is_empty() {
        return Answer::Now(HttpResponse::json(&reply));
    }
    send(api, &changed.updates);
    api.confirm(now, move |_, _| HttpResponse::json(&reply))
}

/// Sends changes of guest forwards to the engine.
pub(super) fn send(api: &mut Api, updates: &[ForwardUpdate]) {
    let messages = updates.chunks(Update::MAX_FORWARD_UPDATES);
    api.outbox
        .extend(messages.map(|updates| Update::Forwards(updates.to_vec())));
}

/// Parses the body of a request; returns the values to add and the values to remove.
pub(in crate::control) fn parse(request: &HttpRequest) -> Result<(Vec<Forward>, Vec<Forward>), String> {
    let batch: ChangeRequest = request.json()?;
    Ok((specs("add", &batch.add)?, specs("remove", &batch.remove)?))
}

fn specs(list: &str, texts: &[String]) -> Result<Vec<Forward>, String> {
    if texts.len() > MOST_VALUES {
        let count = texts.len();
        return Err(format!("'{list}' has {count} values; the limit is {MOST_VALUES}"));
    }
    parse_values(texts)
}
