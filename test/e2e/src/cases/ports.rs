//! Cases about port specifications: interfaces, exclusions, target addresses, `auto`, and guest forwards.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::{OBEDIENT, expect, host, tmpfs};
use crate::case::{Case, Context, Family};
use crate::guest::{tcp, udp};
use crate::http::HttpClient;
use crate::network::Network;
use crate::process;
use crate::run::RunningProgram;
use crate::server;

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        Case::both("ports.interface-and-exclusions", 30, interface),
        Case::both("ports.target-address", 30, target),
        Case::both("ports.guest-forward-reaches-only-its-ports", 30, forwards),
    ]
    .into_iter()
    .flatten()
    .collect();
    cases.extend([
        Case::new("ports.auto-follows-the-guest", 40, auto),
        Case::new("ports.auto-of-two-instances", 40, two_instances),
        Case::new("ports.auto-is-limited", 60, limited),
        Case::new("ports.auto-changes-at-run-time", 40, changes),
        Case::new("ports.guest-forward-auto-does-not-loop", 40, both_directions),
        Case::new("ports.guest-forward-changes-at-run-time", 40, forward_changes),
        Case::new("ports.refused-specifications", 20, refused),
    ]);
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// Private subnets of the guests, in which the gateway has the second address.
const SUBNETS: [&str; 4] = ["--ipv4", "10.77.0.0/24", "--ipv6", "fd77::/64"];

/// Time limit for the ports of `auto` to change after the listening sockets; they are scanned once a second.
const FOLLOWED: Duration = Duration::from_secs(10);

fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 77, 0, 2).into(),
        Family::V6 => std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2).into(),
    }
}

fn here(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn is_open(port: u16) -> bool {
    tcp::command(here(port), &["peer"]).is_ok()
}

fn wait_open(port: u16, open: bool) -> Result<()> {
    let what = format!("port {port} is {}", if open { "open" } else { "closed" });
    process::wait_until(&what, FOLLOWED, || Ok(is_open(port) == open))?;
    Ok(())
}

/// A guest with a shell, and its control socket.
struct Scene<'a> {
    context: &'a Context,
    socket: String,
    guest: RunningProgram,
}

impl<'a> Scene<'a> {
    fn new(network: &Network<'a>, context: &'a Context, name: &str, options: &[&str]) -> Result<Self> {
        let socket = format!("/run/{name}");
        let run = network.run().options(["--control", &socket]).options(SUBNETS);
        let guest = run.options(options).shell(OBEDIENT).spawn()?.listening()?;
        Ok(Self {
            context,
            socket,
            guest,
        })
    }

    /// Starts servers in the guest, which [`Self::stop`] ends.
    fn serve(&mut self, servers: &[&str]) -> Result<()> {
        let line = format!("$E2E guest serve {} & server=$!", servers.join(" "));
        expect(&self.guest.ask(&line)?, "listening")
    }

    /// Ends the servers that were started last.
    fn stop(&mut self) -> Result<()> {
        let line = "kill $server; wait $server 2>/dev/null; echo stopped";
        expect(&self.guest.ask(line)?, "stopped")
    }

    /// Returns true if the guest can connect to `to`.
    fn reaches(&mut self, to: SocketAddr) -> Result<bool> {
        let line = format!("$E2E guest tcp {to} peer >/dev/null 2>&1 && echo reached || echo refused");
        Ok(self.guest.ask(&line)? == "reached")
    }

    fn ctl(&self, words: &[&str]) -> Result<String> {
        let mut command = self.context.program.command()?;
        process::output(command.args(["ctl", "--control", &self.socket]).args(words))
    }

    /// Returns the number of ports of `auto` in the metrics, for the option `option` and the state `state`.
    fn count(&self, option: &str, state: &str) -> Result<u64> {
        let text = HttpClient::connect(&self.socket)?.get("/metrics")?;
        let name = format!("pontoon_auto_ports{{option=\"{option}\",state=\"{state}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        Ok(value.unwrap_or("0").trim().parse()?)
    }

    fn wait_count(&self, option: &str, state: &str, count: u64) -> Result<()> {
        let what = format!("{count} ports are {state}");
        process::wait_until(&what, FOLLOWED, || Ok(self.count(option, state)? == count))?;
        Ok(())
    }
}

fn scene<'a>(network: &Network<'a>, context: &'a Context, options: &[&str]) -> Result<Scene<'a>> {
    tmpfs(Path::new("/run"))?;
    Scene::new(network, context, "control", options)
}

fn interface(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let server = format!("tcp:{}", SocketAddr::new(family.unspecified(), 80));
    let _guest = network
        .run()
        .options(["--publish", "%lo:8080:80"])
        .options(["--publish", "8000-8002,~8001"])
        .options(["--publish", "8001:80"])
        .guest(["serve", &server])
        .spawn()?
        .listening()?;
    expect_peer(SocketAddr::new(family.loopback(), 8080))?;
    expect_peer(SocketAddr::new(family.loopback(), 8001))?;
    let outside = network.host_address(family);
    let ask = |port: u16, words: &[&str]| {
        let to = SocketAddr::new(outside, port);
        network.server().enter(|| tcp::command(to, words))
    };
    ask(8001, &["peer"])?;
    // The port is bound to another interface than the one at which the client arrives.
    ask(8080, &["refused"])?;
    Ok(())
}

fn expect_peer(to: SocketAddr) -> Result<()> {
    ensure!(!tcp::command(to, &["peer"])?.is_empty());
    Ok(())
}

/// Tests ports that lead to a second address of the guest, the only one at which its servers listen.
fn target(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let (own, second) = match family {
        Family::V4 => ("10.77.0.15/24", "10.77.0.100"),
        Family::V6 => ("fd77::15/64", "fd77::100"),
    };
    let (_, len) = own.split_once('/').unwrap_or_default();
    let at: IpAddr = second.parse()?;
    let servers = ["tcp", "udp"].map(|protocol| format!("{protocol}:{}", SocketAddr::new(at, 80)));
    let publish = |ports: &str| format!("{}:{ports}:{}:80/both", host(family.unspecified()), host(at));
    let _guest = network
        .run()
        .options(["--address", own, "--address", &format!("{second}/{len}")])
        .options(["--publish", &publish("8080")])
        .options(["--publish", "8081:80"])
        .guest(["serve".to_owned()].into_iter().chain(servers))
        .spawn()?
        .listening()?;
    let outside = SocketAddr::new(network.host_address(family), 8080);
    let seen = network.server().enter(|| tcp::command(outside, &["peer"]))?;
    expect(&seen, &network.server_address(family).to_string())?;
    let outside = outside.to_string();
    expect(
        &network.server().enter(|| udp::command(&["peer", &outside]))?,
        "ok",
    )?;
    // No server listens at the guest's first address.
    let other = SocketAddr::new(family.loopback(), 8081);
    ensure!(
        tcp::command(other, &["peer"]).is_err(),
        "{other} leads to {second}"
    );
    Ok(())
}

fn forwards(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    for port in [6000, 6001, 5000] {
        let at = SocketAddr::new(family.loopback(), port);
        server::tcp::start(at)?;
        server::udp::start(at)?;
    }
    let options = [
        "--guest-forward",
        "5000:6000/both",
        "--guest-forward",
        "5002:6001",
        "--deny",
    ];
    let gateway = |port| SocketAddr::new(gateway(family), port);
    let denied = format!("{}:5002", host(gateway(0).ip()));
    let options = [&options[..], &[&denied]].concat();
    let mut scene = scene(&network, context, &options)?;
    ensure!(scene.reaches(gateway(5000))?, "the forwarded port is not reached");
    for port in [5001, 5002, 6000, 6001] {
        ensure!(
            !scene.reaches(gateway(port))?,
            "port {port} of the host's loopback is open"
        );
    }
    let mut udp = |port| {
        scene.guest.ask(&format!(
            "$E2E guest udp peer {} 2>/dev/null || echo none",
            gateway(port)
        ))
    };
    expect(&udp(5000)?, "ok")?;
    expect(&udp(6001)?, "none")
}

fn auto(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let options = ["--publish", "127.0.0.1:8000-8099,auto,~8050/both"];
    let mut scene = scene(&network, context, &options)?;
    let taken = TcpListener::bind(here(8001))?;
    scene.serve(&[
        "tcp:0.0.0.0:8000",
        "tcp:[::]:8001",
        "tcp:127.0.0.1:8002",
        "tcp:0.0.0.0:8050",
        "tcp:0.0.0.0:8100",
        "udp:0.0.0.0:8003",
    ])?;
    wait_open(8000, true)?;
    scene.wait_count("publish", "taken", 1)?;
    expect(&udp::command(&["peer", "127.0.0.1:8003"])?, "ok")?;
    for port in [8002, 8050, 8100] {
        tcp::command(here(port), &["refused"])?;
    }
    // The port that another program had is published once it is free.
    drop(taken);
    wait_open(8001, true)?;
    let list = scene.ctl(&["publish", "list"])?;
    expect(
        &list,
        "127.0.0.1:8000-8099,auto,~8050/both\n  127.0.0.1:8000:8000/tcp\n  127.0.0.1:8001:8001/tcp\n  127.0.0.1:8003:8003/udp",
    )?;
    scene.stop()?;
    wait_open(8000, false)?;
    scene.wait_count("publish", "open", 0)
}

fn two_instances(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let options = ["--publish", "127.0.0.1:auto"];
    let mut first = Scene::new(&network, context, "first", &options)?;
    let mut second = Scene::new(&network, context, "second", &options)?;
    first.serve(&["tcp:0.0.0.0:8080"])?;
    wait_open(8080, true)?;
    second.serve(&["tcp:0.0.0.0:8080", "tcp:0.0.0.0:8081"])?;
    wait_open(8081, true)?;
    second.wait_count("publish", "taken", 1)?;
    first.stop()?;
    second.wait_count("publish", "open", 2)?;
    wait_open(8080, true)
}

fn limited(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut scene = scene(&network, context, &["--publish", "127.0.0.1:auto"])?;
    let line = "$E2E guest serve $(seq -f 'tcp:0.0.0.0:%g' 10001 11100) &";
    expect(&scene.guest.ask(line)?, "listening")?;
    scene.wait_count("publish", "open", 1_024)?;
    expect(&scene.count("publish", "excess")?.to_string(), "76")?;
    expect(&scene.count("publish", "taken")?.to_string(), "0")?;
    ensure!(is_open(10_001) && is_open(11_024) && !is_open(11_025));
    Ok(())
}

fn changes(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut scene = scene(&network, context, &[])?;
    scene.serve(&["tcp:0.0.0.0:8080", "tcp:0.0.0.0:80"])?;
    let auto = "127.0.0.1:8000-9000,auto/tcp";
    expect(&scene.ctl(&["publish", "add", auto])?, &format!("added {auto}"))?;
    wait_open(8080, true)?;
    scene.ctl(&[
        "publish",
        "add",
        "127.0.0.1%lo:9999:80",
        "127.0.0.2:all,~1-20000,~20002-65535",
    ])?;
    let engine = context.program.engine()?;
    engine.signal(Signal::KILL)?;
    process::wait_for_ends(&[engine])?;
    wait_open(8080, true)?;
    wait_open(9999, true)?;
    let list = scene.ctl(&["publish", "list"])?;
    expect(
        &list,
        "127.0.0.1%lo:9999:80/tcp\n127.0.0.2:20001:20001/tcp\n127.0.0.1:8000-9000,auto/tcp\n  127.0.0.1:8080:8080/tcp",
    )?;
    scene.ctl(&["publish", "remove", auto, "127.0.0.1%lo:9999:80"])?;
    wait_open(8080, false)?;
    wait_open(9999, false)
}

/// Tests that ports which Pontoon publishes are not forwarded back to the guest.
fn both_directions(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    server::tcp::start(here(6000))?;
    let options = ["--publish", "127.0.0.1:auto", "--guest-forward", "auto"];
    let mut scene = scene(&network, context, &options)?;
    scene.serve(&["tcp:0.0.0.0:8080"])?;
    wait_open(8080, true)?;
    scene.wait_count("guest-forward", "open", 1)?;
    let gateway = |port| SocketAddr::new(gateway(Family::V4), port);
    ensure!(
        scene.reaches(gateway(6000))?,
        "the host's listener is not reached"
    );
    ensure!(
        !scene.reaches(gateway(8080))?,
        "the guest reaches itself by its published port"
    );
    expect(&scene.count("publish", "open")?.to_string(), "1")
}

fn forward_changes(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    server::tcp::start(here(6000))?;
    let mut scene = scene(&network, context, &[])?;
    let at = SocketAddr::new(gateway(Family::V4), 5000);
    ensure!(!scene.reaches(at)?, "the host's loopback is open");
    let spec = "10.77.0.2:5000:127.0.0.1:6000/tcp";
    let spec_shown = "10.77.0.2:5000:127.0.0.1:6000/tcp";
    expect(
        &scene.ctl(&["guest-forward", "add", spec])?,
        &format!("added {spec_shown}"),
    )?;
    ensure!(scene.reaches(at)?, "the forwarded port is not reached");
    let engine = context.program.engine()?;
    engine.signal(Signal::KILL)?;
    process::wait_for_ends(&[engine])?;
    expect(&scene.ctl(&["guest-forward", "list"])?, spec_shown)?;
    ensure!(scene.reaches(at)?, "the forward is lost with the engine");
    ensure!(
        scene.ctl(&["guest-forward", "add", "5000:7000"]).is_err(),
        "a port leads to two"
    );
    expect(
        &scene.ctl(&["guest-forward", "remove", spec])?,
        &format!("removed {spec_shown}"),
    )?;
    ensure!(!scene.reaches(at)?, "the removed forward is open");
    Ok(())
}

/// Tests that a program whose port specification cannot be satisfied exits with one error line.
fn refused(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let _taken = TcpListener::bind(here(8080))?;
    for (option, value, why) in [
        (
            "--publish",
            "127.0.0.1:8079-8081",
            "cannot publish 127.0.0.1:8080/tcp: address already in use",
        ),
        (
            "--publish",
            "8080:10.77.0.2:80",
            "that is an address of the gateway, not of the guest",
        ),
        ("--publish", "%none0:8080:80", "no such device"),
        (
            "--guest-forward",
            "10.77.0.15:80",
            "10.77.0.15 is the guest's own address",
        ),
    ] {
        let run = network.run().options(SUBNETS).options([option, value]);
        let output = run.command(["true"]).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success(), "{value} was accepted");
        ensure!(text.lines().count() == 1 && text.contains(why), "{value}: {text}");
    }
    let mut vm = context.program.command()?;
    vm.args([
        "vm",
        "--socket",
        "/tmp/pontoon-none",
        "--protocol",
        "stream",
        "--publish",
        "auto",
    ]);
    let output = vm.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let errors = text.lines().filter(|line| line.starts_with("error: ")).count();
    ensure!(!output.status.success() && errors == 1, "{text}");
    ensure!(
        text.contains("cannot be read from the host (try: port numbers)"),
        "{text}"
    );
    Ok(())
}
