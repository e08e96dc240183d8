//! Verb `pontoon ctl`: requests to a control socket.

pub(crate) mod client;
mod events;
pub(crate) mod flows;
mod policy;
mod relay;

use std::io::{self, ErrorKind, Write};
use std::path::{self, Path};

use anyhow::{Context as _, Result, anyhow};
use pontoon_control::reply;
use pontoon_engine::egress::{Action, EgressRule, RefusedFlows};
use pontoon_supervisor::capture::Capture;
use pontoon_supervisor::policy::Lists;
use serde::Serialize;
use serde_json::json;

use crate::args::{CaptureCommand, CtlArgs, CtlCommand, GuestForwardCommand, PolicyCommand, PublishCommand};
use client::{Client, ConnectError};

pub(crate) fn ctl(arguments: &CtlArgs) -> Result<()> {
    let mut output = StdoutWriter {
        to: io::stdout().lock(),
        is_closed: false,
    };
    match answer(arguments, &mut output) {
        Err(_) if output.is_closed => Ok(()),
        result => result.map_err(|error| match error.downcast_ref::<ConnectError>() {
            Some(error) => anyhow!(error.advice()),
            None => error,
        }),
    }
}

/// Writer of responses to standard output. A reader that closes it early, such as head(1), is not an error.
struct StdoutWriter<W> {
    to: W,
    is_closed: bool,
}

impl<W: Write> StdoutWriter<W> {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| self.is_closed |= error.kind() == ErrorKind::BrokenPipe)
    }
}

impl<W: Write> Write for StdoutWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.to.write(bytes);
        self.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.to.flush();
        self.note(result)
    }
}

fn answer(arguments: &CtlArgs, mut output: &mut impl Write) -> Result<()> {
    let client = Client::new(&arguments.control).verbatim(arguments.json);
    match &arguments.command {
        CtlCommand::Stats => {
            let stats: reply::EngineStats = client.get("/v1/stats")?;
            print(&mut output, arguments.json, &stats, write_stats)?;
        }
        CtlCommand::Policy { load, command } => {
            let policy: reply::Policy = match (command, load) {
                (Some(PolicyCommand::Replace { file, keep_flows }), _) => {
                    let refused = match keep_flows {
                        true => RefusedFlows::Keep,
                        false => RefusedFlows::Reset,
                    };
                    policy::replace(&client, file, refused)?
                }
                (None, Some(file)) => client.put("/v1/policy", &lists(file)?)?,
                (None, None) => client.get("/v1/policy")?,
            };
            print(&mut output, arguments.json, &policy, write_policy)?;
        }
        CtlCommand::Flows(filter) => flows::show(&client, filter, arguments.json, &mut output)?,
        CtlCommand::Events(filter) => events::show(&client, filter, arguments.json, &mut output)?,
        CtlCommand::Publish(PublishCommand::List) => {
            let published: reply::Published = client.get("/v1/publish")?;
            print(&mut output, arguments.json, &published, write_published)?;
        }
        CtlCommand::Publish(PublishCommand::Add { specs }) => {
            let changed: reply::PublishChange =
                client.post("/v1/publish", &json!({ "add": texts(specs) }))?;
            print(&mut output, arguments.json, &changed, write_change)?;
        }
        CtlCommand::Publish(PublishCommand::Remove { specs }) => {
            let changed: reply::PublishChange =
                client.post("/v1/publish", &json!({ "remove": texts(specs) }))?;
            print(&mut output, arguments.json, &changed, write_change)?;
        }
        CtlCommand::GuestForward(GuestForwardCommand::List) => {
            let forwards: reply::GuestForwards = client.get(GUEST_FORWARD)?;
            print(&mut output, arguments.json, &forwards, write_forwards)?;
        }
        CtlCommand::GuestForward(GuestForwardCommand::Add { specs }) => {
            let changed: reply::PublishChange =
                client.post(GUEST_FORWARD, &json!({ "add": texts(specs) }))?;
            print(&mut output, arguments.json, &changed, write_change)?;
        }
        CtlCommand::GuestForward(GuestForwardCommand::Remove { specs }) => {
            let changed: reply::PublishChange =
                client.post(GUEST_FORWARD, &json!({ "remove": texts(specs) }))?;
            print(&mut output, arguments.json, &changed, write_change)?;
        }
        CtlCommand::Relay(command) => relay::relay(&client, command, arguments.json, &mut output)?,
        CtlCommand::Capture(CaptureCommand::Start { capture }) => {
            let began: reply::Capture = client.post("/v1/capture", &capture_request(capture)?)?;
            print(&mut output, arguments.json, &began, write_capture)?;
        }
        CtlCommand::Capture(CaptureCommand::Stop) => {
            let ended: reply::Capture = client.delete("/v1/capture")?;
            print(&mut output, arguments.json, &ended, write_capture)?;
        }
        CtlCommand::LogLevel { level } => {
            let level: reply::LogLevel = match *level {
                Some(level) => client.put("/v1/log-level", &reply::LogLevel { level })?,
                None => client.get("/v1/log-level")?,
            };
            print(&mut output, arguments.json, &level, |level, to| {
                writeln!(to, "{}", level.level)
            })?;
        }
    }
    Ok(output.flush()?)
}

/// Prints a value as JSON, or as text by the function `write`.
fn print<T: Serialize>(
    to: &mut impl Write,
    json: bool,
    value: &T,
    write: fn(&T, &mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    if json {
        serde_json::to_writer(&mut *to, value)?;
        writeln!(to)?;
        return Ok(());
    }
    Ok(write(value, to)?)
}

const GUEST_FORWARD: &str = "/v1/guest-forward";

fn write_stats(stats: &reply::EngineStats, to: &mut dyn Write) -> io::Result<()> {
    let total = &stats.total;
    writeln!(to, "{:24} {}", "workers", stats.workers.len())?;
    writeln!(to, "{:24} {}", "flows", total.flows)?;
    writeln!(to, "{:24} {}", "pool_bytes", total.pool_bytes)?;
    for (name, count) in total.counters.iter().filter(|(_, count)| **count > 0) {
        writeln!(to, "{name:24} {count}")?;
    }
    Ok(())
}

fn write_policy(policy: &reply::Policy, to: &mut dyn Write) -> io::Result<()> {
    for rule in &policy.rules {
        writeln!(to, "{:>10} {} {}", rule.hits, rule.action, rule.to)?;
    }
    for (hits, what) in [
        (policy.unlisted, "not allowed by any rule"),
        (policy.resolvers, "another resolver"),
    ] {
        if hits > 0 {
            writeln!(to, "{hits:>10} {what}")?;
        }
    }
    Ok(())
}

fn texts(specs: &[impl ToString]) -> Vec<String> {
    specs.iter().map(ToString::to_string).collect()
}

fn write_published(published: &reply::Published, to: &mut dyn Write) -> io::Result<()> {
    write_ports(&published.published, &published.auto, &published.found, to)
}

fn write_forwards(forwards: &reply::GuestForwards, to: &mut dyn Write) -> io::Result<()> {
    write_ports(&forwards.forwards, &forwards.auto, &forwards.found, to)
}

/// Writes values that name ports, then values with `auto`, then, indented, the ports that are open because of these.
fn write_ports(named: &[String], auto: &[String], found: &[String], to: &mut dyn Write) -> io::Result<()> {
    let listed = named.iter().chain(auto);
    listed.into_iter().try_for_each(|port| writeln!(to, "{port}"))?;
    found.iter().try_for_each(|port| writeln!(to, "  {port}"))
}

fn write_change(change: &reply::PublishChange, to: &mut dyn Write) -> io::Result<()> {
    let added = change.added.iter().map(|port| ("added", port));
    let removed = change.removed.iter().map(|port| ("removed", port));
    added
        .chain(removed)
        .try_for_each(|(what, port)| writeln!(to, "{what} {port}"))
}

/// Returns the body of a request for a capture, with an absolute path, because the supervisor may have another working
/// directory.
fn capture_request(capture: &Capture) -> Result<serde_json::Value> {
    let file = path::absolute(&capture.file)?;
    Ok(json!({
        "file": file.to_str().context("the file's name is not UTF-8")?,
        "snap": capture.snap,
        "size": capture.size,
        "time_ms": capture.time.map(|time| time.as_millis()),
    }))
}

fn write_capture(capture: &reply::Capture, to: &mut dyn Write) -> io::Result<()> {
    let file = capture.file.as_deref().unwrap_or_default();
    match &capture.ended {
        None => writeln!(to, "capturing into {file}"),
        Some(why) => writeln!(
            to,
            "{} frames, {} dropped, {} bytes in {file}: {why}",
            capture.frames, capture.dropped, capture.bytes
        ),
    }
}

/// Returns the rules of a policy file, which are checked before the request is sent.
fn lists(file: &Path) -> Result<Lists> {
    let rules = pontoon_supervisor::policy::read(file).map_err(|error| anyhow!("{error}"))?;
    let of = |action| {
        let rules = rules
            .iter()
            .filter(move |rule: &&EgressRule| rule.action == action);
        rules.map(|rule| rule.to.to_string()).collect()
    };
    Ok(Lists {
        allow: of(Action::Allow),
        deny: of(Action::Deny),
    })
}
