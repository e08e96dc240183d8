//! Protocol of pesto, version 2: the server sends the rules of the published ports to each client, and the client may send the
//! rules that replace them. There is no reply: the server closes the connection when the ports are open, or if the change is refused.
//!
//! ```text
//! server: "basil:s\0"  u32 version  u32 size of a table's name  u32 size of an interface's name
//!         { u8 table  name[128]  u32 capabilities  u32 count  count rules }  u8 0
//! client: { u8 table  u32 count  count rules }  u8 0
//! ```
//!
//! The one table is that of ports of the host. A rule has a fixed length ([`rule`]). Numbers are in network byte order.

use std::time::Instant;

use pontoon_control::http::HttpResponse;
use pontoon_control::server::{Answer, Exchange};
use pontoon_engine::config::PublishedPath;

use super::Api;
use super::publish::change;
use crate::publish::{self, Ports, Publish};
use rule::Rule;

mod rule;

/// Protocol of the server.
pub(in crate::control) const EXCHANGE: Exchange<Api> = Exchange {
    greet: Some(greet),
    handle: exchange,
    // A client changes the rules that it has received, so that the next one has to receive the result.
    clients: 1,
};

const MAGIC: &[u8; 8] = b"basil:s\0";
const VERSION: u32 = 2;

/// Length of the field of a table's name.
const TABLE_NAME: u32 = 128;

/// Number of the table of ports of the host, and its name.
const HOST: (u8, &str) = (1, "HOST");

/// Limit on the rules of a table.
const MOST_RULES: usize = 255;

/// Capabilities of the table.
const IPV4: u32 = 1;
const IPV6: u32 = 1 << 1;
const TCP: u32 = 1 << 2;
const UDP: u32 = 1 << 3;
const SCAN: u32 = 1 << 4;
const INTERFACES: u32 = 1 << 5;

/// Rules of the published ports, as clients receive them. Clients remove a rule only if it is exactly one that they have received, so
/// that the rules stay as they were added.
#[derive(Debug, Default)]
pub(super) struct PestoRules {
    /// Path of the data of clients on this host, for ports of new rules.
    path: PublishedPath,
    entries: Vec<Entry>,
}

/// Value of `--publish`, and its rules.
#[derive(Clone, Debug)]
struct Entry {
    value: Publish,
    rules: Vec<Rule>,
}

impl PestoRules {
    /// Sets the values of the start of the program, and the path of the data of clients on this host for ports of new rules.
    pub(super) fn begin(&mut self, values: &[Publish], ports: &Ports, path: PublishedPath) {
        self.path = path;
        self.entries = values.iter().map(|value| Entry::of(value, ports)).collect();
    }

    /// Returns the rules of all ports that are published now, also those of changes by other clients.
    fn now(&self, ports: &Ports) -> Vec<Entry> {
        let entries = self.entries.iter().filter(|entry| ports.publishes(&entry.value));
        let mut entries: Vec<Entry> = entries.cloned().collect();
        let others = ports.others(entries.iter().map(|entry| &entry.value));
        entries.extend(others.iter().map(|value| Entry::of(value, ports)));
        entries
    }
}

impl Entry {
    fn of(value: &Publish, ports: &Ports) -> Self {
        Self {
            value: value.clone(),
            rules: Rule::of(value, ports.plan()),
        }
    }
}

/// Returns the rules that a new client receives.
fn greet(api: &mut Api) -> Vec<u8> {
    let entries = api.pesto.now(&api.ports);
    let rules: Vec<&Rule> = entries.iter().flat_map(|entry| &entry.rules).collect();
    let mut message = MAGIC.to_vec();
    let sizes = [VERSION, TABLE_NAME, rule::NAME as u32];
    message.extend(sizes.into_iter().flat_map(u32::to_be_bytes));
    let (number, name) = HOST;
    message.push(number);
    let padding = std::iter::repeat(0);
    message.extend(name.bytes().chain(padding).take(TABLE_NAME as usize));
    let plan = api.ports.plan();
    let capabilities = [
        (plan.v4.is_some(), IPV4),
        (plan.v6.is_some(), IPV6),
        (api.ports.permits_auto(), SCAN),
        (true, TCP | UDP | INTERFACES),
    ];
    let set = capabilities.into_iter().filter(|(is_set, _)| *is_set);
    message.extend(set.map(|(_, bit)| bit).sum::<u32>().to_be_bytes());
    message.extend(u32::try_from(rules.len()).unwrap_or(u32::MAX).to_be_bytes());
    // A client refuses a table of more rules by its count.
    if rules.len() <= MOST_RULES {
        rules.iter().for_each(|rule| rule.write(&mut message));
        message.push(END);
    }
    message
}

/// Handles the bytes that a client has sent so far.
fn exchange(api: &mut Api, bytes: &[u8], ended: bool, now: Instant) -> Option<Answer<Api>> {
    let replaced = match parse(bytes) {
        Message::Partial if !ended => return None,
        // The client has only received the rules.
        Message::Partial if bytes.is_empty() => return Some(Answer::Now(closed())),
        Message::Partial => Err("the message is incomplete".to_owned()),
        Message::Whole(None) => return Some(Answer::Now(closed())),
        Message::Whole(Some(rules)) => replace(api, rules, now),
        Message::Wrong(why) => Err(why),
    };
    Some(replaced.unwrap_or_else(|why| {
        refuse(&why);
        Answer::Now(closed())
    }))
}

/// Replaces all rules. The ports of rules that stay are not closed in between.
fn replace(api: &mut Api, rules: Vec<Rule>, now: Instant) -> Result<Answer<Api>, String> {
    let path = api.pesto.path;
    let stays = |entry: &Entry| entry.rules.iter().all(|rule| rules.contains(rule));
    let (mut entries, gone): (Vec<_>, Vec<_>) = api.pesto.now(&api.ports).into_iter().partition(stays);
    let new = rules
        .iter()
        .filter(|rule| !entries.iter().any(|entry| entry.rules.contains(rule)))
        .map(|rule| {
            Ok(Entry {
                value: rule.value(path)?,
                rules: vec![rule.clone()],
            })
        });
    let new: Vec<Entry> = new.collect::<Result<_, String>>()?;
    entries.extend_from_slice(&new);
    let values = |entries: &[Entry]| {
        entries
            .iter()
            .map(|entry| entry.value.clone())
            .collect::<Vec<_>>()
    };
    publish::check(&values(&entries)).map_err(|error| error.to_string())?;
    // The client may disconnect before the workers have confirmed the change.
    let before = std::mem::replace(&mut api.pesto.entries, entries);
    Ok(change(
        api,
        &values(&gone),
        &values(&new),
        now,
        move |api, changed| {
            if let Err(why) = changed {
                refuse(&why.to_string());
                api.pesto.entries = before;
            }
            closed()
        },
    ))
}

/// Logs the reason why a change was refused, which clients do not receive.
fn refuse(why: &str) {
    let why = pontoon_process::error::one_line(why);
    tracing::warn!("refused the ports of a client of pesto's protocol: {why}");
}

/// Returns the response before which the connection is closed.
fn closed() -> HttpResponse {
    HttpResponse {
        status: 200,
        content_type: "",
        allow: None,
        body: Vec::new(),
    }
}

/// Message of a client.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    /// The bytes are the beginning of a message.
    Partial,
    /// Rules of the table, if the message has it.
    Whole(Option<Vec<Rule>>),
    /// The bytes are not a valid message, for this reason.
    Wrong(String),
}

/// Parses the message of a client.
fn parse(bytes: &[u8]) -> Message {
    let (mut rest, mut rules) = (bytes, None);
    loop {
        let Some((table, behind)) = rest.split_first() else {
            return Message::Partial;
        };
        if *table == END {
            return Message::Whole(rules);
        }
        if *table != HOST.0 || rules.is_some() {
            return Message::Wrong(format!("there is no table {table}, or it is repeated"));
        }
        let Some((count, behind)) = behind.split_first_chunk() else {
            return Message::Partial;
        };
        let count = u32::from_be_bytes(*count);
        if count as usize > MOST_RULES {
            return Message::Wrong(format!("{count} rules; the limit is {MOST_RULES}"));
        }
        let (whole, _) = behind.as_chunks();
        if whole.len() < count as usize {
            return Message::Partial;
        }
        let parsed: Result<Vec<Rule>, String> = whole[..count as usize].iter().map(Rule::parse).collect();
        match parsed {
            Ok(parsed) => rules = Some(parsed),
            Err(why) => return Message::Wrong(why),
        }
        rest = &behind[count as usize * rule::LENGTH..];
    }
}

/// Number in place of a table's, at the end of a message.
const END: u8 = 0;

/// Parses the bytes as a message, and checks that its rules are the same after they were written and parsed again.
#[cfg(any(test, fuzzing))]
pub(in crate::control) fn check(bytes: &[u8]) {
    if let Message::Whole(Some(rules)) = parse(bytes) {
        let mut message = vec![HOST.0];
        message.extend(u32::try_from(rules.len()).unwrap_or(u32::MAX).to_be_bytes());
        rules.iter().for_each(|rule| rule.write(&mut message));
        message.push(END);
        assert_eq!(parse(&message), Message::Whole(Some(rules)));
    }
}
