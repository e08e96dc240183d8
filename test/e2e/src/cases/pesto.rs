//! Cases about the socket of `-c`, by which pesto changes the published ports of passt and pasta. The client is a replay: it sends
//! what pesto sends.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::expect;
use super::lifecycle::nothing_left;
use super::shell::{Shell, wait_for_the_end};
use crate::carrier::{Framing, dial};
use crate::case::{Caller, Case, Context, Family};
use crate::guest::tcp;
use crate::machine::TapGuest;
use crate::network::Network;
use crate::{process, server};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("compat.pesto.passt", 40, passt),
        Case::new("compat.pesto.pasta", 40, pasta).caller(Caller::Root(NESTED)),
        Case::new("compat.pesto.one-at-a-time", 40, one_at_a_time),
        Case::new("compat.pesto.hostile", 60, hostile),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

/// Socket of the protocol.
const PESTO: &str = "/mnt/pesto";

/// Socket of the virtual machine.
const MACHINE: &str = "/mnt/socket";

const PID: &str = "/mnt/pid";

/// Reason for which a case needs root.
const NESTED: &str = "without root, the program is in a user namespace below the test's";

/// Length of a rule.
const RULE: usize = 56;

/// Flag of a rule for the unspecified addresses of both families.
const DUAL_STACK: u8 = 1;

/// Rule as it is in messages.
type Rule = [u8; RULE];

/// Returns the rule of a TCP port of all host addresses.
fn rule(port: u16, to: u16) -> Rule {
    let mut rule = [0; RULE];
    for (at, port) in [(48, port), (50, port), (52, to)] {
        rule[at..at + 2].copy_from_slice(&port.to_be_bytes());
    }
    (rule[54], rule[55]) = (6, DUAL_STACK);
    rule
}

/// Returns the rule of a TCP port of an IPv4 address that leads to another address.
fn rule_to(address: Ipv4Addr, port: u16, target: Ipv4Addr, to: u16) -> Rule {
    let mut rule = rule(port, to);
    rule[..16].copy_from_slice(&address.to_ipv6_mapped().octets());
    rule[16..32].copy_from_slice(&target.to_ipv6_mapped().octets());
    rule[55] = 0;
    rule
}

fn connect() -> Result<UnixStream> {
    let client = UnixStream::connect(PESTO)?;
    client.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(client)
}

/// Connects and receives the rules.
fn rules() -> Result<(UnixStream, Vec<Rule>)> {
    let mut client = connect()?;
    let mut head = [0; 20 + 1 + 128 + 8];
    client.read_exact(&mut head)?;
    ensure!(
        head.starts_with(b"basil:s\0\0\0\0\x02\0\0\0\x80\0\0\0\x10\x01HOST\0"),
        "the greeting is {:?}",
        head.escape_ascii().to_string()
    );
    let count = u32::from_be_bytes([head[153], head[154], head[155], head[156]]);
    let mut rules = vec![[0; RULE]; count as usize];
    for rule in &mut rules {
        client.read_exact(rule)?;
    }
    let mut end = [1];
    client.read_exact(&mut end)?;
    ensure!(end == [0], "there is another table");
    Ok((client, rules))
}

/// Returns the message that replaces the rules.
fn table(rules: &[Rule]) -> Result<Vec<u8>> {
    let count = u32::try_from(rules.len())?.to_be_bytes();
    Ok([&[1], &count[..], rules.as_flattened(), &[0]].concat())
}

/// Changes the rules, and waits until the server closes the connection.
fn change(with: impl FnOnce(&mut Vec<Rule>)) -> Result<()> {
    let (mut client, mut rules) = rules()?;
    with(&mut rules);
    client.write_all(&table(&rules)?)?;
    ensure!(client.read(&mut [0])? == 0, "the server has replied");
    Ok(())
}

/// Sends bytes, and checks that the server closes the connection.
fn is_disconnected(bytes: &[u8]) -> Result<()> {
    let (mut client, _) = rules()?;
    client.write_all(bytes)?;
    // A reset means that the server has not read everything.
    let read = client.read(&mut [0]);
    let is_reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    ensure!(
        matches!(read, Ok(0)) || read.as_ref().is_err_and(is_reset),
        "{read:?}"
    );
    Ok(())
}

/// Checks whether a client of another host is served at a port.
fn is_served(network: &Network<'_>, port: u16) -> Result<bool> {
    let address = SocketAddr::new(network.host_address(Family::V4), port);
    network.server().enter(
        || match TcpStream::connect_timeout(&address, Duration::from_secs(3)) {
            Ok(_) => expect(&tcp::command(address, &["connects", "1"])?, "ok").map(|()| true),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Ok(false),
            Err(error) => Err(error).context("the port neither accepts nor refuses"),
        },
    )
}

/// Starts passt with a rule for port 8080, and a machine with a service at port 80.
fn start(shell: &mut Shell) -> Result<TapGuest> {
    let line = format!("--quiet --no-map-gw --socket {MACHINE} --pid {PID} -c {PESTO} -t 8080:80");
    expect(&shell.passt(&line)?, "status 0")?;
    let guest = TapGuest::at(dial(Path::new(MACHINE), Framing::Stream)?, Framing::Stream)?;
    guest.dhcp4()?;
    let any = SocketAddr::new(Family::V4.unspecified(), 80);
    guest.namespace.enter(|| server::tcp::start(any))?;
    Ok(guest)
}

fn end(context: &Context, mut shell: Shell) -> Result<()> {
    shell.run(&format!("kill $(cat {PID})"))?;
    wait_for_the_end(context)?;
    ensure!(!Path::new(PESTO).exists(), "the socket's file was not removed");
    drop(shell);
    nothing_left()
}

/// Tests ports of a virtual machine that are added and removed while it runs.
fn passt(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    let _guest = start(&mut shell)?;
    let mode = fs::metadata(PESTO)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "the socket's mode is {mode:o}");
    ensure!(rules()?.1 == [rule(8080, 80)], "{:?}", rules()?.1);
    change(|rules| rules.push(rule(8081, 80)))?;
    ensure!(is_served(&network, 8080)? && is_served(&network, 8081)?);
    change(|rules| rules.retain(|old| *old != rule(8080, 80)))?;
    ensure!(!is_served(&network, 8080)? && is_served(&network, 8081)?);
    ensure!(rules()?.1 == [rule(8081, 80)], "{:?}", rules()?.1);
    // A table that cannot be applied as a whole leaves the earlier one.
    let taken = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let taken = std::net::TcpListener::bind(taken)?;
    let port = taken.local_addr()?.port();
    change(|rules| rules.extend([rule(8082, 80), rule(port, 80)]))?;
    ensure!(!is_served(&network, 8082)? && is_served(&network, 8081)?);
    ensure!(rules()?.1 == [rule(8081, 80)], "{:?}", rules()?.1);
    end(context, shell)
}

/// Tests ports of a namespace, also of an address to which it forwards packets, and of another program.
fn pasta(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.daemon(&format!(
        "--quiet --config-net --no-map-gw -t none -u none -c {PESTO} $holder"
    ))?;
    ensure!(rules()?.1.is_empty(), "{:?}", rules()?.1);
    let target = Ipv4Addr::new(10, 9, 9, 9);
    expect(&shell.inside(&format!("ip address add {target}/32 dev lo"))?, "")?;
    shell.serve("tcp:0.0.0.0:80")?;
    let any = Ipv4Addr::UNSPECIFIED;
    change(|rules| rules.extend([rule(8080, 80), rule_to(any, 8081, target, 80)]))?;
    ensure!(is_served(&network, 8080)? && is_served(&network, 8081)?);
    expect(
        &tcp::command(SocketAddr::from(([127, 0, 0, 1], 8080)), &["connects", "1"])?,
        "ok",
    )?;
    change(Vec::clear)?;
    ensure!(!is_served(&network, 8080)? && !is_served(&network, 8081)?);
    // A process of the guest is refused.
    let text = shell.inside(&format!(
        "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect(\\\"{PESTO}\\\"); print(len(s.recv(1)))\""
    ))?;
    ensure!(text == "0" || text.contains("Connection reset"), "{text}");
    shell.run("kill $COPROC_PID $holder; ! wait $holder")?;
    wait_for_the_end(context)?;
    drop(shell);
    nothing_left()
}

/// Tests that a client is served after the one before it, and does not wait for a silent one.
fn one_at_a_time(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    let _guest = start(&mut shell)?;
    let (mut first, _) = rules()?;
    let mut second = connect()?;
    second.set_read_timeout(Some(Duration::from_millis(500)))?;
    ensure!(second.read(&mut [0]).is_err(), "two clients are served");
    first.write_all(&table(&[rule(8085, 80)])?)?;
    drop(first);
    // The second client receives the first one's change.
    second.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut greeting = [0; 158 + RULE];
    second.read_exact(&mut greeting)?;
    ensure!(greeting[157..157 + RULE] == rule(8085, 80), "the rule is missing");
    ensure!(is_served(&network, 8085)?);
    let begin = Instant::now();
    ensure!(rules()?.1 == [rule(8085, 80)]);
    let waited = begin.elapsed();
    ensure!(
        waited < Duration::from_secs(5),
        "a silent client delayed another for {waited:?}"
    );
    end(context, shell)
}

/// Tests clients that violate the protocol, while the machine transfers data: they change nothing, and delay no packet.
fn hostile(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    let guest = start(&mut shell)?;
    let server = super::tcp_server(&network, Family::V4)?;
    let transfers = || {
        let words = ["put", "0", "71", "10000000"];
        let begin = Instant::now();
        expect(&guest.namespace.enter(|| tcp::command(server, &words))?, "ok")?;
        let time = begin.elapsed();
        ensure!(time < Duration::from_secs(10), "10 MB took {time:?}");
        Ok(())
    };
    // Each of these clients waits with half a message, or without one.
    let good = table(&[rule(8081, 80)])?;
    for sent in [&[][..], &good[..1], &good[..5], &good[..40], &good[..61]] {
        let (mut client, _) = rules()?;
        client.write_all(sent)?;
        transfers()?;
        drop(client);
    }
    let count = |count: u32| [&[1][..], &count.to_be_bytes()].concat();
    for (what, bytes) in [
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("all ones", vec![0xff; 300_000]),
        ("256 rules", count(256)),
        ("4 billion rules", count(u32::MAX)),
        ("an empty rule", table(&[[0; RULE]])?),
        ("no such table", [&[3], &good[1..]].concat()),
        ("a rule twice", table(&[rule(8081, 80), rule(8081, 80)])?),
    ] {
        // The server may close the connection before everything is sent.
        let outcome = is_disconnected(&bytes);
        ensure!(outcome.is_ok() || bytes.len() > 100_000, "{what}: {outcome:?}");
        ensure!(rules()?.1 == [rule(8080, 80)], "{what}: the rules have changed");
    }
    // A thousand clients that disconnect at once, and one that does not receive its greeting.
    for _ in 0..1000 {
        drop(UnixStream::connect(PESTO)?);
    }
    transfers()?;
    let silent: Vec<_> = (0..20).map(|_| connect()).collect::<Result<_>>()?;
    transfers()?;
    drop(silent);
    process::wait_until("the next client is served", Duration::from_secs(10), || {
        Ok(rules()?.1 == [rule(8080, 80)])
    })?;
    ensure!(is_served(&network, 8080)? && !is_served(&network, 8081)?);
    drop(guest);
    end(context, shell)
}
