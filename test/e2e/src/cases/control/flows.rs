//! Cases about flows that end, or continue, by the user's request.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::ControlScene;
use crate::case::{Case, Context, Family};
use crate::cases::{expect, icmp, udp_server, workers};
use crate::process;

pub(super) fn cases() -> Vec<Case> {
    let both = |name: &str, run: fn(&Context) -> Result<()>| {
        let mut by_several = Case::new(&format!("{name}.workers"), 40, run);
        by_several.options = workers::OPTIONS.to_vec();
        [Case::new(name, 40, run), by_several]
    };
    [
        both("control.flows-killed", killed),
        both("control.policy-replaced", replaced),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl ControlScene<'_> {
    fn listed(&self) -> Result<Vec<Value>> {
        let flows: Value = serde_json::from_str(&self.ctl(&["flows", "--json"])?)?;
        Ok(flows["flows"].as_array().cloned().unwrap_or_default())
    }

    /// Starts `count` connections of the guest that carry data until they end, and waits until they do.
    fn connect(&mut self, count: usize) -> Result<()> {
        let server = self.server;
        let before = self.listed()?;
        for _ in 0..count {
            let line = format!("{{ $E2E guest tcp {server} rr 100000000 >/dev/null 2>&1; echo ended; }} &");
            self.guest.send_line(&line)?;
        }
        process::wait_until("the connections carry data", Duration::from_secs(5), || {
            let flows = self.listed()?;
            // Other flows, such as those of ping, may end meanwhile.
            let carries = |flow: &&Value| {
                let is_new = before.iter().all(|other| other["id"] != flow["id"]);
                is_new
                    && flow["protocol"] == "tcp"
                    && flow["bytes_down"].as_u64().is_some_and(|bytes| bytes > 0)
            };
            Ok(flows.iter().filter(carries).count() == count)
        })?;
        Ok(())
    }

    /// Returns true if the number of bytes of the flow with this id increases.
    fn continues(&self, id: &str) -> Result<bool> {
        let bytes = || -> Result<Option<u64>> {
            let flows = self.listed()?;
            Ok(flows
                .iter()
                .find(|flow| flow["id"] == id)
                .and_then(|flow| flow["bytes_up"].as_u64()))
        };
        let before = bytes()?;
        let mut after = before;
        for _ in 0..50 {
            after = bytes()?;
            if after.is_none() || after > before {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(after > before)
    }
}

/// Tests that flows end by their id and by a rule that names their destination, and no others.
fn killed(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    scene.connect(3)?;
    let flows = scene.listed()?;
    let id = flows[1]["id"].as_str().context("the flow has no id")?.to_owned();
    expect(scene.ctl(&["flows", "kill", &id])?.trim(), "1 flow ended")?;
    expect(&scene.guest.line()?, "ended")?;
    let left = scene.listed()?;
    ensure!(
        left.len() == 2 && left.iter().all(|flow| flow["id"] != id),
        "{left:?}"
    );
    for flow in &left {
        let id = flow["id"].as_str().context("the flow has no id")?;
        ensure!(scene.continues(id)?, "{id} does not continue");
    }
    let unknown = scene
        .ctl(&["flows", "kill", &id])
        .map_err(|error| error.to_string());
    ensure!(
        unknown
            .as_ref()
            .is_err_and(|error| error.contains(&format!("error: no such flow: {id}"))),
        "{unknown:?}"
    );
    let (address, port) = (scene.server.ip(), scene.server.port());
    let other = format!("{address}:{}", port.wrapping_add(1));
    for (rule, answer) in [
        (other.as_str(), "0 flows ended"),
        (&format!("{address}/32:{port}/tcp"), "2 flows ended"),
        ("*", "0 flows ended"),
    ] {
        expect(scene.ctl(&["flows", "kill", "--rule", rule])?.trim(), answer)?;
    }
    expect(&scene.guest.line()?, "ended")?;
    expect(&scene.guest.line()?, "ended")?;
    ensure!(scene.reaches()?, "new connections are not possible");
    let name = scene.ctl(&["flows", "kill", "--rule", "example.org"]);
    ensure!(
        name.is_err_and(|error| error.to_string().contains("no egress rule names the domain")),
        "a name without a rule was taken"
    );
    Ok(())
}

/// Tests that `policy replace --keep-flows` keeps a connection, a UDP endpoint and an echo id that the rules refuse, that new flows
/// are refused, also by a restarted engine, and that without the option the flows end.
fn replaced(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    icmp::open_ping(context)?;
    let udp = udp_server(&scene.network, Family::V4)?;
    let address = scene.server.ip();
    scene.connect(1)?;
    scene
        .guest
        .send_line(&format!("$E2E guest udp stream {udp} >/dev/null 2>&1 &"))?;
    scene
        .guest
        .send_line(&format!("ping -i 0.2 {address} >/dev/null 2>&1 &"))?;
    let mut flows = Vec::new();
    process::wait_until("there is a flow of each kind", Duration::from_secs(5), || {
        flows = scene.listed()?;
        Ok(flows.len() == 3)
    })?;
    let ids = flows.iter().map(|flow| flow["id"].as_str().map(str::to_owned));
    let ids: Vec<String> = ids.collect::<Option<_>>().context("a flow has no id")?;
    std::fs::write("/run/deny", format!("# nothing\ndeny {address} # the server\n"))?;
    std::fs::write("/run/wrong", "allow *\n\ndeny 10.0.0\n")?;
    let wrong = scene.ctl(&["policy", "replace", "/run/wrong"]);
    let wrong = wrong.map_err(|error| error.to_string());
    ensure!(
        wrong
            .as_ref()
            .is_err_and(|error| error.contains("/run/wrong:3: '10.0.0' is neither ")),
        "{wrong:?}"
    );
    let rules = scene.ctl(&["policy", "replace", "/run/deny", "--keep-flows"])?;
    expect(rules.trim(), &format!("0 deny {address}"))?;
    for id in &ids {
        ensure!(scene.continues(id)?, "{id} of {flows:?} does not continue");
    }
    ensure!(!scene.reaches()?, "a new connection is possible");
    let others = [
        format!("$E2E guest udp peer {udp} >/dev/null 2>&1 && echo reached || echo refused"),
        format!("ping -c 1 -W 1 {address} >/dev/null 2>&1 && echo reached || echo refused"),
    ];
    for other in &others {
        expect(&scene.guest.ask(other)?, "refused")?;
    }
    let engine = context.program.engine()?;
    engine.signal(Signal::KILL)?;
    expect(&scene.guest.line()?, "ended")?;
    process::wait_until("another engine runs", Duration::from_secs(5), || {
        Ok(context.program.engine().is_ok_and(|other| other != engine))
    })?;
    ensure!(!scene.reaches()?, "the new engine has other rules");
    scene.ctl(&["policy", "replace", "/dev/null"])?;
    scene.connect(1)?;
    scene.ctl(&["policy", "replace", "/run/deny"])?;
    expect(&scene.guest.line()?, "ended")?;
    let left = scene.listed()?;
    ensure!(left.iter().all(|flow| flow["protocol"] != "tcp"), "{left:?}");
    Ok(())
}
