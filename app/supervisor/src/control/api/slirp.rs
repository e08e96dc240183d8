//! Protocol of slirp4netns' API socket: one JSON request of each client that adds, lists or removes published ports.
//!
//! ```text
//! {"execute": "add_hostfwd", "arguments": {"proto": "tcp", "host_addr": "0.0.0.0", "host_port": 8080, "guest_port": 80}}
//! {"return": {"id": 1}}
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::{Rc, Weak};
use std::time::Instant;

use pontoon_control::CLIENTS;
use pontoon_control::http::HttpResponse;
use pontoon_control::server::{Answer, Exchange};
use pontoon_engine::address_plan::AddressPlan;
use pontoon_engine::config::{Protocol, PublishedPath};
use serde_json::{Value, json};

use super::Api;
use super::publish::{ChangeError, change};
use crate::publish::Publish;
use crate::publish::port_range::PortRange;
use crate::publish::spec::PublishedPorts;

/// Length in bytes at which a request is refused, as by slirp4netns.
const TOO_LONG: usize = 4096;

/// Published ports by the ids that were sent to clients.
#[derive(Debug, Default)]
pub(super) struct SlirpPorts {
    /// Number of ids assigned so far, which is the last id.
    count: u64,
    by_id: BTreeMap<u64, SlirpPort>,
    /// Ports whose additions the workers have not confirmed yet, while their clients wait for the response.
    pending: Vec<Weak<Publish>>,
}

/// A published port that a client has added.
#[derive(Clone, Debug)]
struct SlirpPort {
    port: Publish,
    protocol: Protocol,
    host: SocketAddr,
    guest: SocketAddr,
}

/// Protocol of the server.
pub(in crate::control) const EXCHANGE: Exchange<Api> = Exchange {
    greet: None,
    handle: exchange,
    clients: CLIENTS,
};

/// Handles the bytes that a client has sent so far. The request is complete at the end of its JSON object: not all clients shut
/// down their sending side.
fn exchange(api: &mut Api, bytes: &[u8], ended: bool, now: Instant) -> Option<Answer<Api>> {
    if bytes.len() >= TOO_LONG {
        return Some(Answer::Now(error("too large message")));
    }
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter();
    let request: Value = match values.next() {
        Some(Ok(request)) => request,
        None if !ended => return None,
        Some(Err(error)) if error.is_eof() && !ended => return None,
        _ => return Some(Answer::Now(error("cannot parse JSON"))),
    };
    Some(match execute(api, &request, now) {
        Ok(answer) => answer,
        Err(why) => Answer::Now(error(why)),
    })
}

fn execute(api: &mut Api, request: &Value, now: Instant) -> Result<Answer<Api>, &'static str> {
    let object = request.as_object().ok_or("json_object() failed")?;
    let arguments = object.get("arguments").unwrap_or(&Value::Null);
    match object.get("execute").and_then(Value::as_str) {
        Some("add_hostfwd") => add(api, arguments, now),
        Some("list_hostfwd") => Ok(Answer::Now(list(api))),
        Some("remove_hostfwd") => remove(api, arguments, now),
        Some(_) => Err("unknown execute"),
        None => Err("no execute found"),
    }
}

fn add(api: &mut Api, arguments: &Value, now: Instant) -> Result<Answer<Api>, &'static str> {
    let forward = parse(api.ports.plan(), arguments)?;
    forget_removed(api);
    let ports = &mut api.slirp_ports;
    ports.pending.retain(|pending| pending.strong_count() > 0);
    let pending: Vec<_> = ports.pending.iter().filter_map(Weak::upgrade).collect();
    let mut with_ids = ports.by_id.values().map(|other| &other.port);
    if with_ids.any(|other| *other == forward.port) || pending.iter().any(|other| **other == forward.port) {
        return Ok(Answer::Now(error(format_args!(
            "{ADD_FAILED}: {} is published already",
            forward.port
        ))));
    }
    let port = Rc::new(forward.port.clone());
    ports.pending.push(Rc::downgrade(&port));
    let added = [forward.port.clone()];
    Ok(change(api, &[], &added, now, move |api, changed| {
        let ports = &mut api.slirp_ports;
        drop(port);
        match changed {
            Ok(_) => {
                ports.count += 1;
                ports.by_id.insert(ports.count, forward);
                reply(&json!({ "return": { "id": ports.count } }))
            }
            Err(why) => error(format_args!("{ADD_FAILED}: {why}")),
        }
    }))
}

fn list(api: &mut Api) -> HttpResponse {
    forget_removed(api);
    let entries = api.slirp_ports.by_id.iter().map(|(id, entry)| {
        json!({
            "id": id,
            "proto": entry.protocol.to_string(),
            "host_addr": entry.host.ip(),
            "host_port": entry.host.port(),
            "guest_addr": entry.guest.ip(),
            "guest_port": entry.guest.port(),
        })
    });
    let entries: Vec<_> = entries.collect();
    reply(&json!({ "entries": entries }))
}

fn remove(api: &mut Api, arguments: &Value, now: Instant) -> Result<Answer<Api>, &'static str> {
    forget_removed(api);
    let id = arguments.get("id").and_then(number);
    let found = id.and_then(|id| Some((id, api.slirp_ports.by_id.get(&id)?.clone())));
    let (id, forward) = found.ok_or("remove_hostfwd: bad arguments.id")?;
    Ok(change(api, &[forward.port], &[], now, move |api, changed| {
        if !matches!(changed, Err(ChangeError::Unread)) {
            api.slirp_ports.by_id.remove(&id);
        }
        match changed {
            Ok(_) => reply(&json!({ "return": {} })),
            Err(why) => error(format_args!("remove_hostfwd: slirp_remove_hostfwd failed: {why}")),
        }
    }))
}

/// Parses the arguments of `add_hostfwd`.
fn parse(plan: &AddressPlan, arguments: &Value) -> Result<SlirpPort, &'static str> {
    let text = |key: &str| arguments.get(key).and_then(Value::as_str).unwrap_or_default();
    let port = |key: &str| {
        let number = arguments.get(key).and_then(number);
        number
            .and_then(|number| u16::try_from(number).ok())
            .filter(|port| *port != 0)
    };
    let protocol = match text("proto") {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return Err("add_hostfwd: bad arguments.proto"),
    };
    let address = match text("host_addr") {
        "" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        text => text.parse().map_err(|_| "add_hostfwd: bad arguments.host_addr")?,
    };
    let host = port("host_port").ok_or("add_hostfwd: bad arguments.host_port")?;
    let (guest_address, target) =
        guest_address(plan, address, text("guest_addr")).ok_or("add_hostfwd: bad arguments.guest_addr")?;
    let guest = port("guest_port").ok_or("add_hostfwd: bad arguments.guest_port")?;
    Ok(SlirpPort {
        port: Publish {
            protocols: protocol.into(),
            address: Some(address),
            interface: None,
            ports: PublishedPorts::Range {
                host: PortRange {
                    first: host,
                    last: host,
                },
                guest,
            },
            excluded: Vec::new(),
            target,
            path: PublishedPath::Shortest,
        },
        protocol,
        host: (address, host).into(),
        guest: (guest_address, guest).into(),
    })
}

/// Returns the guest address to which a port of the host address `host` is forwarded, and that address as
/// [`Publish::target`]: `None` for the guest's own address, which an empty or unspecified `given` selects.
fn guest_address(plan: &AddressPlan, host: IpAddr, given: &str) -> Option<(IpAddr, Option<IpAddr>)> {
    let own = match host {
        IpAddr::V4(_) => plan.v4.as_ref().map(|v4| IpAddr::V4(v4.address.addr())),
        IpAddr::V6(_) => plan.v6.as_ref().map(|v6| IpAddr::V6(v6.address.addr())),
    };
    // If the guest lacks the family, publishing the port fails later.
    let own = own.unwrap_or(match host {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    });
    if given.is_empty() {
        return Some((own, None));
    }
    let given: IpAddr = given.parse().ok()?;
    if given.is_ipv4() != own.is_ipv4() {
        return None;
    }
    Some(match given == own || given.is_unspecified() {
        true => (own, None),
        false => (given, Some(given)),
    })
}

/// Returns a JSON number without its fraction, as slirp4netns does.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the fraction is to be removed, and the value is in range"
)]
fn number(value: &Value) -> Option<u64> {
    let number = value.as_f64().filter(|number| (0.0..1e15).contains(number))?;
    Some(number as u64)
}

/// Removes the ids of ports that were removed through the control socket.
fn forget_removed(api: &mut Api) {
    let Api {
        slirp_ports, ports, ..
    } = api;
    slirp_ports
        .by_id
        .retain(|_, forward| ports.has(forward.protocol, forward.host, &forward.port));
}

fn reply(value: &Value) -> HttpResponse {
    HttpResponse::json(value)
}

/// Returns an error response; clients compare the beginning of the text.
fn error(why: impl std::fmt::Display) -> HttpResponse {
    let description = pontoon_process::error::one_line(&format!("bad request: {why}"));
    reply(&json!({ "error": { "desc": description } }))
}

const ADD_FAILED: &str = "add_hostfwd: slirp_add_hostfwd failed";
