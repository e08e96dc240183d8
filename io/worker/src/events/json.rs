//! Text of the records: one line of JSON for each (docs/events.md).

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pontoon_engine::FlowId;
use pontoon_engine::Token;
use pontoon_engine::egress::DecisionGround;
use pontoon_engine::flow_events::{CloseReason, FlowEnds, FlowEvent, FlowEventKind, RefusalReason};

use super::omitted::OmittedClass;
use super::recorder::OMITTED;

/// Version of the records' form: it changes when a field changes its meaning or is removed.
const VERSION: u32 = 1;

/// Returns the wall-clock time since 1970.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Begins a record with these fields.
fn begin(line: &mut String, number: Option<u64>, time: Duration, kind: &str) {
    line.clear();
    let _ = write!(line, "{{\"v\":{VERSION},");
    if let Some(number) = number {
        let _ = write!(line, "\"n\":{number},");
    }
    line.push_str("\"time\":\"");
    timestamp(line, time);
    let _ = write!(line, "\",\"type\":\"{kind}\"");
}

/// Writes the record of an event into `line`. `opened` is the number of the flow's opening record; `rule` the text of the
/// rule that has decided, and the name in the ClientHello.
pub(super) fn event(
    line: &mut String,
    number: u64,
    time: Duration,
    event: &FlowEvent,
    opened: Option<u64>,
    (rule, name): (Option<&str>, Option<&str>),
) {
    begin(line, Some(number), time, kind(&event.kind));
    if let Some(id) = event.flow {
        flow(line, id);
    }
    ends(line, &event.ends);
    match event.kind {
        FlowEventKind::Opened { target } | FlowEventKind::Peer { target } => {
            if let Some(target) = target {
                let _ = write!(line, ",\"target\":\"{target}\"");
            }
        }
        FlowEventKind::Decided { ground } => line.push_str(match ground {
            DecisionGround::Decider => ",\"decision\":\"allow\",\"by\":\"decider\"",
            DecisionGround::Redirect => ",\"decision\":\"redirect\",\"by\":\"decider\"",
            DecisionGround::Proxy => ",\"decision\":\"proxy\",\"by\":\"option\"",
            DecisionGround::Rule(_)
            | DecisionGround::Unlisted
            | DecisionGround::Resolver
            | DecisionGround::TlsOnly(_) => ",\"decision\":\"allow\",\"by\":\"rule\"",
        }),
        FlowEventKind::ServerName { .. } => {}
        FlowEventKind::Proof { result, .. } => {
            let (decision, proof) = match result {
                Ok(()) => ("allow", "proven"),
                Err(cause) => ("deny", cause.word()),
            };
            let _ = write!(
                line,
                ",\"decision\":\"{decision}\",\"by\":\"rule\",\"proof\":\"{proof}\""
            );
        }
        FlowEventKind::Refused { reason } => {
            let _ = write!(line, ",\"reason\":\"{reason}\"");
            if let RefusalReason::Host(failure) = reason {
                let _ = write!(line, ",\"error\":\"{failure}\"");
            }
        }
        FlowEventKind::Closed {
            reason, traffic, age, ..
        } => {
            let _ = write!(line, ",\"reason\":\"{reason}\"");
            match (reason, reason.failure()) {
                (CloseReason::ProxyRefused(refusal), _) => {
                    let _ = write!(line, ",\"error\":\"{refusal}\"");
                }
                (_, Some(failure)) => {
                    let _ = write!(line, ",\"error\":\"{failure}\"");
                }
                (_, None) => {}
            }
            let (up, down, age) = (traffic.up, traffic.down, age.as_micros());
            let _ = write!(
                line,
                ",\"bytes_up\":{up},\"bytes_down\":{down},\"duration_us\":{age}"
            );
        }
    }
    if let Some(rule) = rule {
        line.push_str(",\"rule\":");
        text(line, rule);
    }
    if let Some(name) = name {
        line.push_str(",\"name\":");
        text(line, name);
    }
    end(line, opened);
}

/// Writes the record of a flow that has an opening record and ended with its engine.
pub(super) fn lost(
    line: &mut String,
    number: u64,
    time: Duration,
    id: FlowId,
    ends_of: &FlowEnds,
    opened: u64,
) {
    begin(line, Some(number), time, "lost");
    flow(line, id);
    ends(line, ends_of);
    line.push_str(",\"reason\":\"engine-exit\"");
    end(line, Some(opened));
}

/// Writes the record of missing records, with the first and the last of their numbers.
pub(super) fn gap(line: &mut String, time: Duration, (from, to): (u64, u64), reason: &str) {
    begin(line, None, time, "gap");
    let _ = write!(line, ",\"from\":{from},\"to\":{to},\"reason\":\"{reason}\"");
    end(line, None);
}

/// Writes the record of events that have no records of their own, because there were too many in a second.
pub(super) fn omitted(line: &mut String, number: u64, time: Duration, class: OmittedClass, count: u64) {
    begin(line, Some(number), time, OMITTED);
    let of = if class.is_refusal { "refused" } else { "peer" };
    let direction = if class.came_in { "in" } else { "out" };
    let _ = write!(
        line,
        ",\"direction\":\"{direction}\",\"of\":\"{of}\",\"count\":{count}"
    );
    end(line, None);
}

/// Writes the first or last record of an instance.
pub(super) fn instance(line: &mut String, number: u64, time: Duration, kind: &str) {
    begin(line, Some(number), time, kind);
    let version = env!("CARGO_PKG_VERSION");
    let _ = write!(line, ",\"version\":\"{version}\",\"pid\":{}", std::process::id());
    end(line, None);
}

fn end(line: &mut String, opened: Option<u64>) {
    if let Some(opened) = opened {
        let _ = write!(line, ",\"opened\":{opened}");
    }
    line.push_str("}\n");
}

/// Returns the word for a kind of event.
pub(super) const fn kind(kind: &FlowEventKind) -> &'static str {
    match kind {
        FlowEventKind::Opened { .. } => "opened",
        FlowEventKind::Decided { .. } | FlowEventKind::ServerName { .. } | FlowEventKind::Proof { .. } => {
            "decided"
        }
        FlowEventKind::Peer { .. } => "peer",
        FlowEventKind::Refused { .. } => "refused",
        FlowEventKind::Closed { .. } => "closed",
    }
}

fn flow(line: &mut String, id: FlowId) {
    let _ = write!(line, ",\"flow\":\"{:x}\"", Token::from(id).0);
}

fn ends(line: &mut String, ends: &FlowEnds) {
    let direction = if ends.came_in { "in" } else { "out" };
    let (protocol, guest) = (ends.protocol, ends.guest);
    let _ = write!(
        line,
        ",\"protocol\":\"{protocol}\",\"direction\":\"{direction}\",\"guest\":\"{guest}\""
    );
    if let Some(remote) = ends.remote {
        let _ = write!(line, ",\"remote\":\"{remote}\"");
    }
}

/// Appends a string of JSON.
fn text(line: &mut String, text: &str) {
    line.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => {
                line.push('\\');
                line.push(letter);
            }
            letter if letter.is_control() => {
                let _ = write!(line, "\\u{:04x}", u32::from(letter));
            }
            letter => line.push(letter),
        }
    }
    line.push('"');
}

/// Appends a time in the form of RFC 3339, in UTC and with microseconds.
fn timestamp(line: &mut String, time: Duration) {
    let (days, second) = (time.as_secs() / 86_400, time.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let _ = write!(
        line,
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        time.subsec_micros()
    );
}

/// Returns year, month and day of a number of days since 1970-01-01. A year begins with March here, so that the leap day is
/// its last one.
fn date(days: u64) -> (u64, u64, u64) {
    // 1970-01-01 is day 719,468 of the calendar that begins on 0000-03-01.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let first = (153 * month + 2) / 5;
    let (year, month) = match month {
        0..10 => (year, month + 3),
        _ => (year + 1, month - 9),
    };
    (era * 400 + year, month, day - first + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_799, "2000-02-29T23:59:59.000000Z"),
            (1_709_210_096, "2024-02-29T12:34:56.000000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            let mut line = String::new();
            timestamp(&mut line, Duration::from_secs(seconds));
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn texts_are_escaped() {
        let mut line = String::new();
        text(&mut line, "a\"\\\n\u{1b}\u{9b}é");
        let decoded: String = serde_json::from_str(&line).unwrap();
        assert_eq!(decoded, "a\"\\\n\u{1b}\u{9b}é");
        assert!(line.is_ascii() || !line.contains('\u{1b}'));
    }
}
