//! Cases about published ports.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use anyhow::{Result, ensure};
use pontoon_netns::add_address;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use super::{expect, host};
use crate::case::{Case, Context, Family};
use crate::guest::{tcp, udp};
use crate::network::Network;
use crate::run::RunningProgram;

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        Case::both("publish.tcp-client-is-seen", 20, client_is_seen),
        Case::both("publish.tcp-content-both-ways", 30, content),
        Case::both("publish.tcp-closes-and-resets", 30, closes),
        Case::both("publish.range", 20, range),
        Case::both("publish.bound-address", 20, bound_address),
        Case::both("publish.1000-connects", 30, thousand),
        Case::both("publish.udp", 20, udp_port),
        Case::both("publish.udp-reply-has-the-requested-source", 20, two_addresses),
    ]
    .into_iter()
    .flatten()
    .collect();
    cases.push(Case::new(
        "publish.same-client-port-on-two-loopback-addresses",
        20,
        same_port,
    ));
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// Starts a guest that serves port 80, with `--publish` as given.
fn guest(network: &Network<'_>, protocol: &str, family: Family, publish: &str) -> Result<RunningProgram> {
    let address = SocketAddr::new(family.unspecified(), 80);
    network
        .run()
        .options(["--publish", publish])
        .guest(["serve", &format!("{protocol}:{address}")])
        .spawn()?
        .listening()
}

/// Returns the guest's response to a client in the second namespace.
fn ask(network: &Network<'_>, to: SocketAddr, words: &[&str]) -> Result<String> {
    network.server().enter(|| tcp::command(to, words))
}

fn client_is_seen(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let _guest = guest(&network, "tcp", family, "8080:80")?;
    let seen = ask(
        &network,
        SocketAddr::new(network.host_address(family), 8080),
        &["peer"],
    )?;
    expect(&seen, &network.server_address(family).to_string())
}

fn content(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let _guest = guest(&network, "tcp", family, "8080:80")?;
    let to = SocketAddr::new(network.host_address(family), 8080);
    expect(&ask(&network, to, &["put", "0", "21", "67108864"])?, "ok")?;
    expect(&ask(&network, to, &["fetch", "0", "22", "67108864"])?, "ok")?;
    // A client on the host itself, whose loopback appears to the guest as its gateway.
    let here = SocketAddr::new(family.loopback(), 8080);
    expect(&tcp::command(here, &["put", "0", "23", "1048576"])?, "ok")
}

fn closes(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let _guest = guest(&network, "tcp", family, "8080:80")?;
    let to = SocketAddr::new(network.host_address(family), 8080);
    expect(&ask(&network, to, &["half-ours", "24", "8388608"])?, "ok")?;
    expect(&ask(&network, to, &["half-theirs", "25", "8388608"])?, "ok")?;
    expect(&ask(&network, to, &["reset-theirs"])?, "ok")?;
    expect(&ask(&network, to, &["reset-ours"])?, "reset")
}

fn range(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let servers = (9000..=9009).map(|port| format!("tcp:{}", SocketAddr::new(family.unspecified(), port)));
    let words = ["serve".to_string()].into_iter().chain(servers);
    let _guest = network
        .run()
        .options(["--publish", "8000-8009:9000-9009"])
        .guest(words)
        .spawn()?
        .listening()?;
    for port in 8000..=8009 {
        ask(
            &network,
            SocketAddr::new(network.host_address(family), port),
            &["peer"],
        )?;
    }
    ask(
        &network,
        SocketAddr::new(network.host_address(family), 8010),
        &["refused"],
    )?;
    Ok(())
}

fn bound_address(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let address = network.host_address(family);
    let _guest = guest(&network, "tcp", family, &format!("{}:8080:80", host(address)))?;
    ask(&network, SocketAddr::new(address, 8080), &["peer"])?;
    tcp::command(SocketAddr::new(family.loopback(), 8080), &["refused"])?;
    Ok(())
}

fn thousand(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let _guest = guest(&network, "tcp", family, "8080:80")?;
    expect(
        &ask(
            &network,
            SocketAddr::new(network.host_address(family), 8080),
            &["connects", "1000"],
        )?,
        "ok",
    )
}

/// Tests clients at 127.0.0.1:4000 and 127.0.0.2:4000 at the same time. To the guest both have the gateway's address,
/// so one of them must have another port.
fn same_port(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let _guest = guest(&network, "tcp", Family::V4, "8080:80")?;
    let mut clients = [client([127, 0, 0, 1].into())?, client([127, 0, 0, 2].into())?];
    for (client, text) in clients.iter_mut().zip(["one", "two"]) {
        client.write_all(format!("echo\n{text}").as_bytes())?;
    }
    for (client, text) in clients.iter_mut().zip(["one", "two"]) {
        let mut got = [0; 3];
        client.read_exact(&mut got)?;
        ensure!(got == text.as_bytes(), "got {got:?} instead of {text}");
    }
    Ok(())
}

/// Connects to the published port from port 4000 of `from`.
fn client(from: IpAddr) -> Result<TcpStream> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    bind(&socket, &SocketAddr::new(from, 4000))?;
    connect(&socket, &SocketAddr::from(([127, 0, 0, 1], 8080)))?;
    Ok(socket.into())
}

fn udp_port(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let _guest = guest(&network, "udp", family, "5353:80/udp")?;
    let server = SocketAddr::new(network.host_address(family), 5353).to_string();
    expect(
        &network.server().enter(|| udp::command(&["sizes", &server]))?,
        "ok",
    )?;
    let here = SocketAddr::new(family.loopback(), 5353).to_string();
    expect(&udp::command(&["peer", &here])?, "ok")
}

/// Tests a UDP port that is published on two addresses: each client receives its response from the address to which
/// it has sent.
fn two_addresses(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let first = network.host_address(family);
    let (second, width) = match first {
        IpAddr::V4(_) => ("198.51.100.4", 24),
        IpAddr::V6(_) => ("2001:db8:1::4", 64),
    };
    add_address("net0", &format!("{second}/{width}"))?;
    let _guest = guest(&network, "udp", family, "5353:80/udp")?;
    for address in [first, second.parse()?, first] {
        let server = SocketAddr::new(address, 5353).to_string();
        expect(
            &network.server().enter(|| udp::command(&["peer", &server]))?,
            "ok",
        )?;
    }
    Ok(())
}
