//! Command `pontoon ctl events`: prints events of flows as they happen.

use std::io::Write;

use anyhow::Result;
use pontoon_process::error::one_line;
use serde_json::Value;

use super::client::Client;
use super::flows::bytes;
use crate::args::EventArgs;

pub(super) fn show(
    client: &Client<'_>,
    arguments: &EventArgs,
    json: bool,
    to: &mut impl Write,
) -> Result<()> {
    let query = [("type", &arguments.kind), ("protocol", &arguments.protocol)];
    let query: Vec<String> = query
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(name, values)| format!("{name}={}", values.join(",")))
        .collect();
    client.stream(&format!("/v1/events?{}", query.join("&")), |line| {
        match json {
            true => writeln!(to, "{}", one_line(line))?,
            false => writeln!(to, "{}", one_line(&text(&serde_json::from_str(line)?)))?,
        }
        Ok(to.flush()?)
    })
}

/// Returns a record as one line of text.
fn text(record: &Value) -> String {
    let word = |name: &str| record[name].as_str().unwrap_or_default();
    let number = |name: &str| record[name].as_u64().unwrap_or(0);
    let mut line = format!("{} {:<8}", word("time"), word("type"));
    if record["guest"].is_string() {
        let arrow = if word("direction") == "in" { "<-" } else { "->" };
        let (guest, remote) = (word("guest"), record["remote"].as_str().unwrap_or("-"));
        line += &format!(" {:<4} {guest} {arrow} {remote}", word("protocol"));
    }
    if record["from"].is_u64() {
        line += &format!(" records {} to {} are missing", number("from"), number("to"));
    }
    if record["count"].is_u64() {
        let (count, of, direction) = (number("count"), word("of"), word("direction"));
        line += &format!(" {count} more of type {of}, direction {direction}");
    }
    if record["target"].is_string() {
        line += &format!(" at {}", word("target"));
    }
    for name in ["reason", "error", "rule"] {
        if record[name].is_string() {
            line += &format!(" {name}={}", quoted(word(name)));
        }
    }
    if record["bytes_up"].is_u64() {
        let (up, down) = (bytes(number("bytes_up")), bytes(number("bytes_down")));
        let (seconds, millis) = (
            number("duration_us") / 1_000_000,
            number("duration_us") / 1000 % 1000,
        );
        line += &format!(" up={up} down={down} after={seconds}.{millis:03}s");
    }
    line
}

/// Returns a text with spaces in quotation marks.
fn quoted(text: &str) -> String {
    match text.contains(' ') {
        true => format!("'{text}'"),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_shown_in_one_line() {
        for (record, line) in [
            (
                r#"{"v":1,"n":3,"time":"2026-11-24T17:01:57.000001Z","type":"opened","flow":"1","protocol":"tcp",
                    "direction":"out","guest":"10.0.2.15:4","remote":"10.0.2.2:80","target":"127.0.0.1:80"}"#,
                "2026-11-24T17:01:57.000001Z opened   tcp  10.0.2.15:4 -> 10.0.2.2:80 at 127.0.0.1:80",
            ),
            (
                r#"{"time":"T","type":"closed","protocol":"udp","direction":"in","guest":"[::1]:4","reason":"timeout",
                    "bytes_up":1500,"bytes_down":3,"duration_us":61002003}"#,
                "T closed   udp  [::1]:4 <- - reason=timeout up=1.5k down=3 after=61.002s",
            ),
            (
                r#"{"time":"T","type":"refused","protocol":"udp","direction":"out","guest":"a","remote":"b",
                    "reason":"rule","rule":"deny *:80"}"#,
                "T refused  udp  a -> b reason=rule rule='deny *:80'",
            ),
            (
                r#"{"time":"T","type":"gap","from":4,"to":9,"reason":"client"}"#,
                "T gap      records 4 to 9 are missing reason=client",
            ),
            (
                r#"{"time":"T","n":7,"type":"omitted","direction":"out","of":"refused","count":39000}"#,
                "T omitted  39000 more of type refused, direction out",
            ),
        ] {
            assert_eq!(text(&serde_json::from_str(record).unwrap()), line);
        }
    }
}
