//! Route `/v1/publish`: lists, adds and removes published ports.

use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::Answer;
use pontoon_engine::config::Published;
use pontoon_worker::Update;
use pontoon_worker::messages::{Confirmation, PortError, PortUpdate};

use super::change_request::{ChangeRequest, parse_values};
use super::confirm_round::Expired;
use super::{Api, UNCONFIRMED, UNREAD};
use crate::publish::{PortRefusal, PortUndo, Publish};

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
    change(api, &remove, &add, now, |_, changed| match changed {
        Ok(changed) => {
            let texts = |ports: &[Publish]| ports.iter().map(ToString::to_string).collect();
            HttpResponse::json(&reply::PublishChange {
                added: texts(&changed.added),
                removed: texts(&changed.removed),
            })
        }
        Err(error) => HttpResponse::problem(error.status(), error),
    })
}

/// Ports that a change has added and removed.
pub(super) struct Changed {
    pub(super) added: Vec<Publish>,
    pub(super) removed: Vec<Publish>,
}

/// Reason why a change of the published ports failed.
#[derive(Debug)]
pub(super) enum ChangeError {
    /// The ports cannot be opened or closed.
    Refused(PortRefusal),
    /// The engine cannot use a port; the change was reverted.
    Engine(String),
    /// The engine has not confirmed an earlier change; nothing was changed.
    Unread,
    /// The engine has not confirmed the change.
    Unconfirmed,
}

impl ChangeError {
    fn status(&self) -> u16 {
        match self {
            Self::Refused(PortRefusal::Wrong(_)) => 400,
            Self::Refused(PortRefusal::InUse(_) | PortRefusal::Conflict(_)) | Self::Engine(_) => 409,
            Self::Unread | Self::Unconfirmed => 503,
        }
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(PortRefusal::Wrong(why) | PortRefusal::InUse(why) | PortRefusal::Conflict(why)) => {
                write!(f, "{why}")
            }
            Self::Engine(why) => f.write_str(why),
            Self::Unread => f.write_str(UNREAD),
            Self::Unconfirmed => f.write_str(UNCONFIRMED),
        }
    }
}

/// Closes the ports `remove` and opens the ports `add`: either all of them, or none. Returns the response that `render` makes
/// when all workers have applied the change, or when it has failed.
pub(super) fn change(
    api: &mut Api,
    remove: &[Publish],
    add: &[Publish],
    now: Instant,
    render: impl FnOnce(&mut Api, Result<Changed, ChangeError>) -> HttpResponse + 'static,
) -> Answer<Api> {
    if api.confirm_round.has_expired() {
        return api.end_round(now, |api, _| render(api, Err(ChangeError::Unread)));
    }
    let changes = match api.ports.change(remove, add) {
        Ok(changes) => changes,
        Err(refusal) => return Answer::Now(render(api, Err(ChangeError::Refused(refusal)))),
    };
    let changed = Changed {
        added: changes.added,
        removed: changes.removed,
    };
    api.auto.scan_now();
    if changes.port_updates.is_empty() && changes.closes.is_empty() {
        return Answer::Now(render(api, Ok(changed)));
    }
    send(api, &changes.port_updates);
    let unconfirmed = Rc::new(UnconfirmedChange {
        round: api.confirm_round.next(),
        undo: changes.undo,
        closes: changes.closes,
        outcome: OnceCell::new(),
    });
    api.unconfirmed_ports.push(Rc::clone(&unconfirmed));
    // The workers confirm the update, so that a client that has received the response can rely on every worker.
    let round = api.confirm_round.ask(&mut api.outbox, now);
    let mut rest = Some((render, changed));
    Answer::Later(Box::new(move |api| {
        let last = match unconfirmed.outcome.get() {
            Some(Ok(last)) => *last,
            Some(Err(why)) => {
                let (render, _) = rest.take()?;
                return Some(render(api, Err(ChangeError::Engine(why.clone()))));
            }
            None => round,
        };
        let result = api.confirm_round.result(last)?.map(|_| ());
        let (render, changed) = rest.take()?;
        let result = result.map_err(|Expired| ChangeError::Unconfirmed);
        Some(render(api, result.map(|()| changed)))
    }))
}

/// Change of the published ports that not all workers have confirmed. It outlives the client that requested it: a port that
/// a worker refuses must not stay published, also if the workers reply after the client's timeout.
#[derive(Debug)]
pub(super) struct UnconfirmedChange {
    /// Number of the first round of confirmations that includes the change.
    round: u64,
    undo: PortUndo,
    /// Updates that are sent when all workers have confirmed the change.
    closes: Vec<PortUpdate>,
    /// Number of the round of confirmations after which the change is complete, or the reason why a worker refused a port of
    /// the change, which is reverted then.
    outcome: OnceCell<Result<u64, String>>,
}

/// Completes or, if a worker refused a port, reverts the changes, after all workers have replied in a round of confirmations.
pub(super) fn end_unconfirmed(api: &mut Api) {
    let round = api.confirm_round.number();
    let ended = api
        .unconfirmed_ports
        .extract_if(.., |change| change.round <= round);
    let ended: Vec<_> = ended.collect();
    for change in ended {
        let Some(Ok(confirmations)) = api.confirm_round.result(change.round) else {
            continue;
        };
        let outcome = match refusal(confirmations, &change.undo) {
            Some(why) => {
                let port_updates = api.ports.revert(&change.undo);
                send(api, &port_updates);
                Err(why)
            }
            None if change.closes.is_empty() => Ok(change.round),
            None => {
                send(api, &change.closes);
                Ok(api.confirm_round.schedule())
            }
        };
        let _ = change.outcome.set(outcome);
    }
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
    let batch: ChangeRequest = request.json()?;
    Ok((specs("add", &batch.add)?, specs("remove", &batch.remove)?))
}

fn specs(list: &str, texts: &[String]) -> Result<Vec<Publish>, String> {
    let ports: Vec<Publish> = parse_values(texts)?;
    let count: usize = ports.iter().map(Publish::count).sum();
    if count > MOST_PORTS {
        return Err(format!("'{list}' names {count} ports; the limit is {MOST_PORTS}"));
    }
    Ok(ports)
}

/// Limit on the ports of one list in a request: all ports of TCP and UDP. Each port is looked up singly, and a body has
/// room for thousands of ranges of all ports, which would delay other clients for minutes.
const MOST_PORTS: usize = 2 * u16::MAX as usize;
