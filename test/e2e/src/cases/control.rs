//! Cases about the control socket of `pontoon run`.

mod authority;
mod capture;
mod flows;
mod publish;
mod stuck;
mod top;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::add_address;
use rustix::process::Signal;
use serde_json::Value;

use super::{OBEDIENT, expect, talk, tcp_server, tmpfs};
use crate::case::{Case, Context, Family};
use crate::http::HttpClient;
use crate::lint;
use crate::network::Network;
use crate::process;
use crate::run::RunningProgram;

const SOCKET: &str = "/run/control";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("control.stats", 30, stats),
        Case::new("control.policy", 30, policy),
        Case::new("control.flows", 30, flows),
        Case::new("control.metrics-over-tcp", 30, metrics_over_tcp),
        Case::new("control.log-level", 30, log_level),
        Case::new("control.engine-killed", 30, engine_killed),
        Case::new("control.engine-stopped", 30, engine_stopped),
        Case::new("control.not-for-the-guest", 30, not_for_the_guest),
    ]
    .into_iter()
    .chain(publish::cases())
    .chain(capture::cases())
    .chain(top::cases())
    .chain(stuck::cases())
    .chain(authority::cases())
    .chain(flows::cases())
    .map(Case::pontoon_only)
    .collect()
}

/// A running guest with a shell and the control socket, and a server at the far end of the network.
struct ControlScene<'a> {
    context: &'a Context,
    server: SocketAddr,
    guest: RunningProgram,
    network: Network<'a>,
}

impl<'a> ControlScene<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        Self::with(context, &[])
    }

    /// Starts the guest with additional options of `pontoon run`.
    fn with(context: &'a Context, options: &[&str]) -> Result<Self> {
        let network = Network::new(context)?;
        tmpfs(Path::new("/run"))?;
        let server = tcp_server(&network, Family::V4)?;
        let guest = network.run().options(["--control", SOCKET]).options(options);
        let guest = guest.shell(OBEDIENT).spawn()?.listening()?;
        Ok(Self {
            context,
            server,
            guest,
            network,
        })
    }

    /// Runs `pontoon ctl` with these arguments, and returns its output.
    fn ctl(&self, words: &[&str]) -> Result<String> {
        let mut command = self.context.program.command()?;
        process::output(command.args(["ctl", "--control", SOCKET]).args(words))
    }

    /// Returns true if the guest can connect to the server.
    fn reaches(&mut self) -> Result<bool> {
        let line = format!(
            "$E2E guest tcp {} peer >/dev/null 2>&1 && echo reached || echo refused",
            self.server
        );
        Ok(self.guest.ask(&line)? == "reached")
    }
}

fn stats(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    let mode = std::fs::metadata(SOCKET)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "mode {mode:o}");
    ensure!(scene.reaches()?, "the guest does not reach the server");
    let json = scene.ctl(&["stats", "--json"])?;
    ensure!(json.contains("\"tcp_opened\":1"), "{json}");
    let text = scene.ctl(&["stats"])?;
    let opened = text.lines().find(|line| line.starts_with("tcp_opened "));
    ensure!(opened.is_some_and(|line| line.ends_with(" 1")), "{text}");
    for (path, holds) in [
        ("v1/stats", "\"workers\":[{"),
        ("v1/openapi.json", "\"openapi\": \"3.1.0\""),
        ("metrics", "pontoon_tcp_opened_total{worker=\"0\"} 1\n"),
        ("metrics", "pontoon_sandbox_layer{layer=\"seccomp\"} 1\n"),
        ("metrics", "pontoon_sandbox_refused_total{worker=\"0\"} 0\n"),
        ("metrics", "pontoon_tcp_connect_seconds_count{worker=\"0\"} 1\n"),
        ("metrics", "pontoon_batch_frames_bucket{worker=\"0\",le=\"+Inf\"}"),
    ] {
        let url = format!("http://pontoon/{path}");
        let text =
            process::output(Command::new("curl").args(["-sS", "--fail", "--unix-socket", SOCKET, &url]))?;
        ensure!(text.contains(holds), "{path}: {text}");
    }
    let ControlScene { mut guest, .. } = scene;
    guest.send_line("exit 0")?;
    guest.finish()?;
    ensure!(
        !Path::new(SOCKET).exists(),
        "the file of the control socket was not removed"
    );
    Ok(())
}

/// Tests that new rules end the flows that they forbid, and apply to later flows.
fn policy(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    let rule = scene.server.ip().to_string();
    std::fs::write("/run/deny.toml", format!("deny = [\"{rule}\"]\n"))?;
    std::fs::write("/run/open.toml", "")?;
    std::fs::write("/run/wrong.toml", "deny = [\"10.0.0\"]\n")?;

    let line = format!(
        "$E2E guest tcp {} rr 100000000 >/dev/null 2>&1; echo ended",
        scene.server
    );
    scene.guest.send_line(&line)?;
    process::wait_until("the guest is connected", Duration::from_secs(5), || {
        Ok(scene.ctl(&["stats", "--json"])?.contains("\"tcp_opened\":1"))
    })?;
    scene.ctl(&["policy", "--load", "/run/deny.toml"])?;
    expect(&scene.guest.line()?, "ended")?;
    ensure!(!scene.reaches()?, "the guest reaches the server");
    let text = scene.ctl(&["policy"])?;
    expect(text.trim_start(), &format!("1 deny {rule}"))?;

    ensure!(
        scene.ctl(&["policy", "--load", "/run/wrong.toml"]).is_err(),
        "wrong rules were taken"
    );
    ensure!(
        !scene.reaches()?,
        "the guest reaches the server after invalid rules were loaded"
    );
    scene.ctl(&["policy", "--load", "/run/open.toml"])?;
    ensure!(scene.reaches()?, "the guest does not reach the server");
    Ok(())
}

/// Tests that a connection is listed while it exists, to a client whose filter matches it.
fn flows(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    let server = scene.server;
    let line = format!("$E2E guest tcp {server} rr 100000000 >/dev/null 2>&1 &");
    scene.guest.send_line(&line)?;
    let flows = |words: &[&str]| -> Result<Vec<serde_json::Value>> {
        let text = scene.ctl(&[&["flows", "--json"], words].concat())?;
        let flows: serde_json::Value = serde_json::from_str(&text)?;
        Ok(flows["flows"].as_array().cloned().unwrap_or_default())
    };
    process::wait_until("the server has answered", Duration::from_secs(5), || {
        let flows = flows(&[])?;
        Ok(flows
            .iter()
            .any(|flow| flow["bytes_down"].as_u64().is_some_and(|bytes| bytes > 0)))
    })?;
    let table = scene.ctl(&["flows"])?;
    ensure!(table.contains(" open "), "{table}");
    let all = flows(&[])?;
    ensure!(all.len() == 1, "{all:?}");
    let (flow, remote) = (&all[0], server.to_string());
    ensure!(
        flow["protocol"] == "tcp" && flow["remote"] == *remote && flow["direction"] == "out",
        "{flow}"
    );
    let bytes = |flow: &serde_json::Value| flow["bytes_up"].as_u64().zip(flow["bytes_down"].as_u64());
    ensure!(bytes(flow).is_some_and(|(up, down)| up > 0 && down > 0), "{flow}");
    let to = format!("{}/tcp", server.ip());
    process::wait_until("the flow has carried more", Duration::from_secs(5), || {
        Ok(flows(&["--to", &to])?.first().and_then(bytes) > bytes(flow))
    })?;
    ensure!(flows(&["--to", "*/udp"])?.is_empty(), "a UDP flow is seen");
    Ok(())
}

/// Tests that supervisor and engine log more after the log level was changed.
fn log_level(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let talk = talk()?;
    tmpfs(Path::new("/run"))?;
    let run = network.run().options(["--control", SOCKET]).talk_to(&talk);
    let mut guest = run.shell("echo listening; read -r line").spawn()?.listening()?;
    let ctl = |words: &[&str]| {
        let mut command = context.program.command()?;
        process::output(
            command
                .args(["ctl", "--control", SOCKET, "log-level"])
                .args(words),
        )
    };
    expect(&ctl(&[])?, "info")?;
    ensure!(ctl(&["loud"]).is_err(), "there is no such level");
    expect(&ctl(&["debug", "--json"])?, "{\"level\":\"debug\"}")?;
    add_address("lo", "192.0.2.77/32")?;
    let logged = || -> Result<String> { Ok(std::fs::read_to_string(&talk)?) };
    process::wait_until(
        "the supervisor logs debug messages",
        Duration::from_secs(5),
        || Ok(logged()?.contains("debug: the host's addresses changed")),
    )?;
    ensure!(!logged()?.contains("debug: frames_up "), "the engine has ended");
    guest.send_line("")?;
    guest.finish()?;
    let logged = logged()?;
    ensure!(
        logged.contains("debug: frames_up "),
        "the engine does not log debug messages:\n{logged}"
    );
    Ok(())
}

fn metrics_over_tcp(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let shell = "echo listening; read -r line";
    let guest = network
        .run()
        .options(["--metrics", "127.0.0.1:9100"])
        .shell(shell);
    let _guest = guest.spawn()?.listening()?;
    let curl = |path: &str| {
        let url = format!("http://127.0.0.1:9100/{path}");
        process::output(Command::new("curl").args(["-sS", "--fail", &url]))
    };
    let metrics = curl("metrics")?;
    ensure!(metrics.contains("pontoon_flows{worker=\"0\"} "), "{metrics}");
    lint::check(&metrics)?;
    ensure!(curl("v1/stats").is_err(), "more than metrics is served");
    Ok(())
}

/// The restarted engine has the rules that were loaded before. No total decreases, and the flows of the engine are gone.
fn engine_killed(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    let rule = scene.server.ip().to_string();
    std::fs::write("/run/deny.toml", format!("deny = [\"{rule}\"]\n"))?;
    std::fs::write("/run/open.toml", "")?;
    ensure!(scene.reaches()?, "the guest does not reach the server");
    scene.ctl(&["policy", "--load", "/run/deny.toml"])?;
    ensure!(!scene.reaches()?, "the server is reached");
    let hits = |scene: &ControlScene<'_>| -> Result<u64> {
        let text = scene.ctl(&["policy"])?;
        let hits = text.trim().strip_suffix(&format!(" deny {rule}"));
        hits.and_then(|hits| hits.parse().ok())
            .with_context(|| format!("the rules are others: {text}"))
    };
    process::wait_until("the refusal is counted", Duration::from_secs(5), || {
        Ok(hits(&scene)? == 1)
    })?;

    let mut http = HttpClient::connect(SOCKET)?;
    let mut total = || -> Result<Value> {
        let stats: Value = serde_json::from_str(&http.get("/v1/stats")?)?;
        Ok(stats["total"].clone())
    };
    let before = total()?;
    let engine = context.program.engine()?;
    engine.signal(Signal::KILL)?;
    process::wait_until("another engine runs", Duration::from_secs(5), || {
        let during = total()?;
        for (name, count) in before["counters"].as_object().into_iter().flatten() {
            let is_gauge = name.starts_with("sandbox_layer_");
            let now = during["counters"][name].as_u64();
            ensure!(is_gauge || now >= count.as_u64(), "{name}: {count}, then {now:?}");
        }
        Ok(during["flows"] == 0 && context.program.engine().is_ok_and(|other| other != engine))
    })?;
    ensure!(before["counters"]["tcp_opened"] == 1, "{before}");
    ensure!(hits(&scene)? == 1, "the hits of the rule are lost");
    ensure!(!scene.reaches()?, "the guest reaches the server");
    process::wait_until("both refusals are counted", Duration::from_secs(5), || {
        Ok(hits(&scene)? == 2)
    })?;
    scene.ctl(&["policy", "--load", "/run/open.toml"])?;
    ensure!(scene.reaches()?, "the guest does not reach the server");
    process::wait_until("both connections are counted", Duration::from_secs(5), || {
        let counters = &total()?["counters"];
        Ok(counters["tcp_opened"] == 2 && counters["sandbox_layer_seccomp"] == 1)
    })?;
    Ok(())
}

/// Statistics are served at once while the engine is stopped; only queries for flows wait for it.
fn engine_stopped(context: &Context) -> Result<()> {
    let mut scene = ControlScene::with(context, &["--workers", "2"])?;
    ensure!(scene.reaches()?, "the server is not reached");
    let opened = |scene: &ControlScene<'_>| Ok(scene.ctl(&["stats", "--json"])?.contains("\"tcp_opened\":1"));
    process::wait_until("the connection is counted", Duration::from_secs(5), || {
        opened(&scene)
    })?;
    let engine = context.program.engine()?;
    engine.signal(Signal::STOP)?;
    let mut http = HttpClient::connect(SOCKET)?;
    for _ in 0..3 {
        for (path, holds) in [
            ("/v1/stats", "\"tcp_opened\":1"),
            ("/metrics", "\npontoon_tcp_connect_seconds_count{worker="),
            ("/v1/policy", "\"unlisted\":0"),
        ] {
            let body = http.get_at_once(path)?;
            ensure!(body.contains(holds), "{path}: {body}");
        }
    }
    ensure!(opened(&scene)?, "the connection is not counted");
    let error = http.get("/v1/flows").map(|_| "flows were listed".to_owned());
    let error = error.unwrap_or_else(|error| error.to_string());
    ensure!(error.contains("the engine does not respond"), "{error}");
    engine.signal(Signal::CONT)?;
    ensure!(scene.reaches()?, "the server is not reached");
    Ok(())
}

/// Tests that processes of the guest, which can see and open the socket, are not served, not even in nested
/// namespaces.
fn not_for_the_guest(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    let curl = format!("curl -s -m 5 --unix-socket {SOCKET} http://pontoon/v1/stats");
    for way in [
        "",
        "unshare --pid --fork",
        "unshare --user --map-root-user --pid --fork unshare --pid --fork",
    ] {
        let status = scene.guest.ask(&format!("{way} {curl} >/dev/null; echo $?"))?;
        ensure!(
            CUT_OFF.contains(&&*status),
            "{way:?}: curl ends with status {status}"
        );
    }
    // A client of the guest is not served either if it exits before the supervisor checks its process.
    scene.guest.signal(Signal::STOP)?;
    let change = r#"{"add":["127.0.0.1:8080:80"]}"#;
    let line =
        format!("curl -s -m 1 --unix-socket {SOCKET} -d '{change}' http://pontoon/v1/publish; echo $?");
    let status = scene.guest.ask(&line)?;
    scene.guest.signal(Signal::CONT)?;
    expect(&status, "28")?;
    expect(&scene.ctl(&["publish", "list"])?, "")?;

    let served = |way: &str| -> Result<()> {
        let line = format!("{way} {curl}");
        let text = process::output(Command::new("sh").args(["-c", &line]))?;
        ensure!(text.contains("\"tcp_opened\""), "{way:?}: {text}");
        Ok(())
    };
    served("")?;
    // A client in another user namespace of the host is served if the program may read that process's namespaces.
    if !context.program.drop_privileges {
        served("unshare --user --map-root-user --pid --fork")?;
    }
    Ok(())
}

/// Exit statuses of a curl whose connection is closed: CURLE_COULDNT_CONNECT if it is closed at once, otherwise
/// CURLE_GOT_NOTHING, CURLE_SEND_ERROR or CURLE_RECV_ERROR.
const CUT_OFF: [&str; 4] = ["7", "52", "55", "56"];
