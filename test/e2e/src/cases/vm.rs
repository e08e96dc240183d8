//! Cases about `pontoon vm` with a namespace in place of a virtual machine, whose tap is carried over a socket.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::net::{RecvFlags, SocketFlags, recv, socketpair};
use rustix::process::Signal;

use super::{expect, tcp_server, udp_server};
use crate::carrier::{Framing, dial};
use crate::case::{Case, Context, Family};
use crate::counters::{self, Counters};
use crate::guest::{tcp, udp};
use crate::lint;
use crate::machine::{self, DIRECTORY, RunningVm, TapGuest};
use crate::network::Network;
use crate::process;
use crate::server;
use crate::sys;
use pontoon_vm_peer::tap_bridge::Faults;

const GIB: u64 = 1 << 30;

/// IPv4 address of the guest's resolver.
pub(super) const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);

/// Expected output of a DHCPv4 client: address, gateway, resolver, MTU.
pub(super) const DHCP4: &str = "dhcp4 10.0.2.15/24 10.0.2.2 10.0.2.3 1500";

/// Expected output of a DHCPv6 client: address, resolver.
pub(super) const DHCP6: &str = "dhcp6 fd70:6f6e:746f::15 fd70:6f6e:746f::3";

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Framing::ALL
        .into_iter()
        .flat_map(|framing| {
            let case = |name: &str, seconds, run: fn(&Context, Framing) -> Result<()>| {
                let name = format!("vm.{framing}.{name}");
                Case::new(&name, seconds, move |context| run(context, framing))
            };
            [
                case("addresses-and-names", 30, addresses),
                case("content-and-closes", 60, content),
                case("datagrams", 60, datagrams),
                case("published-ports", 40, published),
                case("one-guest-after-the-other", 40, one_after_the_other),
                case("one-off", 20, one_off),
                case("pontoon-restarts", 40, restarts),
                case("handed-over-socket", 30, handed_over),
                case("engine-killed", 30, engine_killed),
                case("handed-over-and-engine-killed", 30, handed_over_and_killed),
            ]
        })
        .collect();
    cases.push(Case::new("vm.stream.lossy-link", 120, lossy).alone());
    cases.push(Case::new("vm.stream.metrics", 20, metrics));
    cases.push(Case::new(
        "vm.stream.guests-with-invalid-data",
        60,
        many_nonsensical,
    ));
    cases.push(Case::new("vm.vhost-user.two-queues", 60, two_queues));
    cases.push(Case::new("vm.vhost-user.datagrams-in-one-frame", 30, segments));
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// Returns a network with a DNS server at its far end, and `pontoon vm` running on its host.
pub(super) fn start<'a>(
    context: &'a Context,
    framing: Framing,
    options: &[&str],
) -> Result<(Network<'a>, RunningVm)> {
    let network = prepare(context)?;
    let vm = RunningVm::start(&context.program, framing, &with_names(&network, options))?;
    Ok((network, vm))
}

pub(super) fn prepare(context: &Context) -> Result<Network<'_>> {
    let network = Network::new(context)?;
    super::tmpfs(Path::new(DIRECTORY))?;
    let resolver = SocketAddr::new(network.server_address(Family::V4), 53);
    network.server().enter(|| server::dns::start(resolver))?;
    Ok(network)
}

/// Returns `options` with the option for the resolver in front.
pub(super) fn with_names(network: &Network<'_>, options: &[&str]) -> Vec<String> {
    let resolver = network.server_address(Family::V4).to_string();
    ["--dns", &resolver]
        .into_iter()
        .chain(options.iter().copied())
        .map(str::to_string)
        .collect()
}

/// Returns a guest that has configured its IPv4 and IPv6 address.
fn guest(vm: &RunningVm, faults: Faults) -> Result<TapGuest> {
    let guest = TapGuest::of(vm, faults)?;
    guest.dhcp4()?;
    guest.slaac()?;
    Ok(guest)
}

/// Tests that the metrics follow Prometheus' conventions, and that no guest is counted before one has connected.
fn metrics(context: &Context) -> Result<()> {
    let (_network, vm) = start(context, Framing::Stream, &["--metrics", "127.0.0.1:9100"])?;
    let scrape = || {
        let curl = ["-sS", "--fail", "http://127.0.0.1:9100/metrics"];
        process::output(Command::new("curl").args(curl))
    };
    lint::check(&scrape()?)?;
    let _guest = guest(&vm, Faults::NONE)?;
    let metrics = scrape()?;
    lint::check(&metrics)?;
    ensure!(
        !metrics.contains("pontoon_frames_up_total{worker=\"0\"} 0\n"),
        "{metrics}"
    );
    Ok(())
}

fn addresses(context: &Context, framing: Framing) -> Result<()> {
    let (_network, vm) = start(context, framing, &[])?;
    let guest = TapGuest::of(&vm, Faults::NONE)?;
    expect(&guest.dhcp4()?, DHCP4)?;
    let IpAddr::V6(address) = guest.slaac()? else {
        anyhow::bail!("not an IPv6 address");
    };
    let prefix = [0xfd70, 0x6f6e, 0x746f, 0];
    ensure!(
        address.segments()[..4] == prefix,
        "{address} is of another prefix"
    );
    expect(&guest.dhcp6()?, DHCP6)?;
    for (kind, wanted) in [
        ("A", server::dns::A.to_string()),
        ("AAAA", server::dns::AAAA.to_string()),
    ] {
        let server = format!("@{DNS}");
        let got = guest.namespace.enter(|| {
            process::output(Command::new("dig").args([
                server.as_str(),
                "+short",
                "+tries=2",
                "some.test",
                kind,
            ]))
        })?;
        expect(&got, &wanted)?;
    }
    Ok(())
}

fn content(context: &Context, framing: Framing) -> Result<()> {
    let (network, vm) = start(context, framing, &[])?;
    let guest = guest(&vm, Faults::NONE)?;
    for family in [Family::V4, Family::V6] {
        let server = tcp_server(&network, family)?;
        let all: [(&[&str], &str); 9] = [
            (&["put", "0", "31", "100000000"], "ok"),
            (&["fetch", "0", "32", "100000000"], "ok"),
            // The server, and in the next line the guest, reads more slowly than the link.
            (&["put", "1", "33", "30000000"], "ok"),
            (&["fetch", "1", "34", "30000000"], "ok"),
            (&["half-ours", "35", "8388608"], "ok"),
            (&["half-theirs", "36", "8388608"], "ok"),
            (&["reset-ours"], "reset"),
            (&["reset-theirs"], "ok"),
            (&["connects", "1000"], "ok"),
        ];
        for (words, wanted) in all {
            let got = guest
                .namespace
                .enter(|| tcp::command(server, words))
                .with_context(|| format!("{} over {}", words.join(" "), family.suffix()))?;
            expect(&got, wanted)?;
        }
    }
    Ok(())
}

fn datagrams(context: &Context, framing: Framing) -> Result<()> {
    let (network, vm) = start(context, framing, &[])?;
    let guest = guest(&vm, Faults::NONE)?;
    for family in [Family::V4, Family::V6] {
        let server = udp_server(&network, family)?.to_string();
        for words in [&["sizes", &server][..], &["fragmented", &server, "3"]] {
            let got = guest.namespace.enter(|| udp::command(words))?;
            expect(&got, "ok")?;
        }
    }
    Ok(())
}

fn published(context: &Context, framing: Framing) -> Result<()> {
    let (network, vm) = start(context, framing, &["-p", "8080:80", "-p", "8053:53/udp"])?;
    let guest = guest(&vm, Faults::NONE)?;
    guest.dhcp6()?;
    // The unspecified IPv6 address accepts both families.
    let any = Family::V6.unspecified();
    guest.namespace.enter(|| {
        server::tcp::start(SocketAddr::new(any, 80))?;
        server::udp::start(SocketAddr::new(any, 53))
    })?;
    for family in [Family::V4, Family::V6] {
        let tcp = SocketAddr::new(network.host_address(family), 8080);
        let udp = SocketAddr::new(network.host_address(family), 8053).to_string();
        network.server().enter(|| {
            expect(&tcp::command(tcp, &["put", "0", "41", "30000000"])?, "ok")?;
            expect(&tcp::command(tcp, &["fetch", "0", "42", "30000000"])?, "ok")?;
            expect(&udp::command(&["peer", &udp])?, "ok")
        })?;
    }
    Ok(())
}

/// Tests guests one after the other: the connections of a guest that disconnects are closed, and the next guest
/// begins without flows. A second guest at the same time is refused.
fn one_after_the_other(context: &Context, framing: Framing) -> Result<()> {
    let (network, vm) = start(context, framing, &[])?;
    let server = tcp_server(&network, Family::V4)?;
    for name in ["first", "second", "third"] {
        let guest = guest(&vm, Faults::NONE)?;
        let other = dial(&vm.socket, framing)?;
        let read = recv(&other, &mut [0_u8; 1], RecvFlags::empty());
        ensure!(matches!(read, Ok((_, 0))), "a second guest reads {read:?}");
        let held = guest.namespace.enter(|| {
            let mut held = tcp::request(server, &format!("hold {name}"))?;
            held.read_exact(&mut [0; 5])?;
            expect(&tcp::command(server, &["put", "0", "51", "10000000"])?, "ok")?;
            Ok(held)
        })?;
        drop(guest);
        let mut report = network
            .server()
            .enter(|| tcp::request(server, &format!("report {name}")))?;
        expect(&std::io::read_to_string(&mut report)?, "reset")?;
        drop(held);
    }
    Ok(())
}

/// Tests guests that send invalid data and are disconnected, as fast as they can connect: the number of log lines is
/// limited, and the next valid guest is served.
fn many_nonsensical(context: &Context) -> Result<()> {
    const GUESTS: usize = 2000;
    const MOST_LINES: usize = 1100;
    let (_network, vm) = start(context, Framing::Stream, &[counters::LOGGED])?;
    for _ in 0..GUESTS {
        let mut nonsense = UnixStream::from(dial(&vm.socket, Framing::Stream)?);
        // The connection may be refused while an earlier guest is connected.
        let _ = nonsense.write_all(&[0xff; 8]);
        let _ = nonsense.read(&mut [0]);
    }
    drop(guest(&vm, Faults::NONE)?);
    let talked = machine::talked();
    let of_nonsense = talked
        .lines()
        .filter(|line| line.contains("protocol error of the guest"))
        .count();
    let lines = talked.lines().filter(|line| !line.starts_with("debug")).count();
    eprintln!("{lines} lines, {of_nonsense} of guests that speak something else");
    ensure!(
        of_nonsense > 100,
        "few guests were understood to be strange: {of_nonsense}"
    );
    ensure!(lines <= MOST_LINES, "{lines} lines were logged");
    Ok(())
}

fn one_off(context: &Context, framing: Framing) -> Result<()> {
    let (_network, mut vm) = start(context, framing, &["--one-off"])?;
    drop(guest(&vm, Faults::NONE)?);
    let status = vm.wait()?;
    ensure!(status.success(), "pontoon vm: {status}");
    ensure!(!vm.socket.exists(), "the file of the socket was not removed");
    Ok(())
}

/// Tests that a running guest has its network again after a restart of `pontoon vm`, however the earlier process has
/// ended.
fn restarts(context: &Context, framing: Framing) -> Result<()> {
    let (network, mut vm) = start(context, framing, &[])?;
    let server = tcp_server(&network, Family::V4)?;
    let guest = guest(&vm, Faults::NONE)?;
    for signal in [Signal::KILL, Signal::TERM] {
        expect(
            &guest
                .namespace
                .enter(|| tcp::command(server, &["fetch", "0", "61", "10000000"]))?,
            "ok",
        )?;
        let processes = context.program.processes();
        vm.signal(signal)?;
        let status = vm.wait()?;
        ensure!(
            status.success() == (signal == Signal::TERM),
            "pontoon vm after {signal:?}: {status}"
        );
        process::wait_for_ends(&processes)?;
        vm = RunningVm::start(&context.program, framing, &with_names(&network, &[]))?;
    }
    expect(
        &guest
            .namespace
            .enter(|| tcp::command(server, &["put", "0", "62", "10000000"]))?,
        "ok",
    )
}

fn handed_over(context: &Context, framing: Framing) -> Result<()> {
    let network = prepare(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let flags = SocketFlags::CLOEXEC;
    let family = rustix::net::AddressFamily::UNIX;
    let (ours, theirs) = socketpair(family, framing.socket_type(), flags, None)?;
    let mut vm = RunningVm::start_with(&context.program, ours, framing, &with_names(&network, &[]))?;
    let guest = TapGuest::at(theirs, framing)?;
    expect(&guest.dhcp4()?, DHCP4)?;
    let words = ["put", "0", "71", "10000000"];
    expect(&guest.namespace.enter(|| tcp::command(server, &words))?, "ok")?;
    drop(guest);
    let status = vm.wait()?;
    ensure!(status.success(), "pontoon vm: {status}");
    Ok(())
}

/// Tests two queues. Each burst of the guest uses the other queue, so most frames arrive at a worker that does not
/// own their flow.
fn two_queues(context: &Context) -> Result<()> {
    let framing = Framing::VhostUser(2);
    let (network, mut vm) = start(
        context,
        framing,
        &["--workers", "2", "-p", "8080:80", counters::LOGGED],
    )?;
    let guest = guest(&vm, Faults::NONE)?;
    for family in [Family::V4, Family::V6] {
        let server = tcp_server(&network, family)?;
        for words in [
            &["put", "0", "91", "100000000"][..],
            &["fetch", "0", "92", "100000000"],
            &["connects", "1000"],
        ] {
            expect(&guest.namespace.enter(|| tcp::command(server, words))?, "ok")?;
        }
        let server = udp_server(&network, family)?.to_string();
        expect(
            &guest.namespace.enter(|| udp::command(&["sizes", &server]))?,
            "ok",
        )?;
    }
    guest
        .namespace
        .enter(|| server::tcp::start(SocketAddr::new(Family::V4.unspecified(), 80)))?;
    let published = SocketAddr::new(network.host_address(Family::V4), 8080);
    expect(
        &network
            .server()
            .enter(|| tcp::command(published, &["put", "0", "93", "30000000"]))?,
        "ok",
    )?;
    vm.signal(Signal::TERM)?;
    ensure!(vm.wait()?.success(), "the exit status of pontoon vm is not 0");
    let counters = Counters::read(&machine::talk())?;
    let count = counters.count("handed_over");
    ensure!(count >= 1000, "{count} frames were handed over");
    counters.expect("link_malformed", 0)
}

/// Tests that datagrams of one length that are sent in one call cross the link in one frame, and are received in one
/// call, in both directions.
fn segments(context: &Context) -> Result<()> {
    const SIZE: u16 = 1200;
    const TOGETHER: usize = 40;
    const ROUNDS: usize = 10;
    let (network, mut vm) = start(context, Framing::VhostUser(1), &[counters::LOGGED])?;
    let guest = guest(&vm, Faults::NONE)?;
    for family in [Family::V4, Family::V6] {
        let address = SocketAddr::new(network.server_address(family), 7001);
        let server = network.server().enter(|| Ok(UdpSocket::bind(address)?))?;
        let client = guest.namespace.enter(|| {
            let socket = UdpSocket::bind(SocketAddr::new(family.unspecified(), 0))?;
            socket.connect(address)?;
            Ok(socket)
        })?;
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(Duration::from_secs(2)))?;
            sys::segment_sends(socket, SIZE)?;
            sys::coalesce_receives(socket)?;
        }
        for round in 0..ROUNDS {
            let sent: Vec<u8> = (0..TOGETHER * usize::from(SIZE))
                .map(|at| (at / 7 + round) as u8)
                .collect();
            client.send(&sent)?;
            let from = arrives(&server, &sent)?;
            server.send_to(&sent, from)?;
            arrives(&client, &sent)?;
        }
    }
    vm.signal(Signal::TERM)?;
    ensure!(vm.wait()?.success(), "the exit status of pontoon vm is not 0");
    let counters = Counters::read(&machine::talk())?;
    let datagrams = (2 * ROUNDS * TOGETHER) as u64;
    for name in ["frames_up", "frames_down"] {
        let frames = counters.count(name);
        ensure!(
            frames < datagrams / 2,
            "{frames} {name} for {datagrams} datagrams"
        );
    }
    Ok(())
}

/// Receives the bytes `sent`, of which several datagrams may be received together. Returns the sender's address.
fn arrives(socket: &UdpSocket, sent: &[u8]) -> Result<SocketAddr> {
    let mut buffer = vec![0; 1 << 16];
    let mut came = Vec::new();
    let mut calls = 0;
    loop {
        let (len, from) = sys::uninterrupted(|| socket.recv_from(&mut buffer))?;
        came.extend_from_slice(&buffer[..len]);
        calls += 1;
        if came.len() >= sent.len() {
            ensure!(came == sent, "the received bytes differ from those sent");
            ensure!(calls <= 4, "the datagrams arrived in {calls} receive calls");
            return Ok(from);
        }
    }
}

/// Tests that after a kill of the engine clients of published ports and the guest are served by another engine, and
/// that a connection on which the guest only receives is reset.
fn engine_killed(context: &Context, framing: Framing) -> Result<()> {
    let (network, vm) = start(context, framing, &["--require-sandbox", "-p", "8080:80"])?;
    let server = tcp_server(&network, Family::V4)?;
    let guest = guest(&vm, Faults::NONE)?;
    let mut held = guest.namespace.enter(|| {
        server::tcp::start(SocketAddr::new(Family::V4.unspecified(), 80))?;
        let mut held = tcp::request(server, "hold engine-killed")?;
        held.read_exact(&mut [0; 5])?;
        Ok(held)
    })?;
    context.program.engine()?.signal(Signal::KILL)?;
    let published = SocketAddr::new(network.host_address(Family::V4), 8080);
    let words = ["put", "0", "91", "10000000"];
    expect(&network.server().enter(|| tcp::command(published, &words))?, "ok")?;
    held.set_read_timeout(Some(Duration::from_secs(5)))?;
    let end = sys::uninterrupted(|| held.read(&mut [0]));
    ensure!(
        matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset),
        "the connection that it had: {end:?}"
    );
    let words = ["fetch", "0", "92", "10000000"];
    expect(&guest.namespace.enter(|| tcp::command(server, &words))?, "ok")
}

/// Tests a kill of the engine on a socket that the caller has passed. On a message socket frames continue. On a
/// stream they do not, as the start of the next frame is unknown, nor with vhost-user, as only the killed engine has
/// mapped the guest's memory.
fn handed_over_and_killed(context: &Context, framing: Framing) -> Result<()> {
    let network = prepare(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let family = rustix::net::AddressFamily::UNIX;
    let (ours, theirs) = socketpair(family, framing.socket_type(), SocketFlags::CLOEXEC, None)?;
    let mut vm = RunningVm::start_with(&context.program, ours, framing, &with_names(&network, &[]))?;
    let guest = TapGuest::at(theirs, framing)?;
    expect(&guest.dhcp4()?, DHCP4)?;
    context.program.engine()?.signal(Signal::KILL)?;
    match framing {
        Framing::Packet => {
            let words = ["put", "0", "93", "10000000"];
            expect(&guest.namespace.enter(|| tcp::command(server, &words))?, "ok")?;
        }
        Framing::Stream | Framing::VhostUser(_) => {
            let status = vm.wait()?;
            ensure!(status.code() == Some(1), "pontoon vm: {status}");
        }
    }
    Ok(())
}

/// Tests that a link that loses, duplicates and reorders frames in both directions loses no data of TCP.
fn lossy(context: &Context) -> Result<()> {
    let (network, vm) = start(context, Framing::Stream, &["--mtu", "65520"])?;
    let guest = TapGuest::of(&vm, Faults::LOSSY)?;
    expect(&guest.dhcp4()?, &DHCP4.replace("1500", "65520"))?;
    let server = tcp_server(&network, Family::V4)?;
    for (word, seed) in [("put", "81"), ("fetch", "82")] {
        let begin = Instant::now();
        let bytes = GIB.to_string();
        let words = [word, "0", seed, &bytes];
        expect(&guest.namespace.enter(|| tcp::command(server, &words))?, "ok")?;
        let gbit = GIB as f64 * 8e-9 / begin.elapsed().as_secs_f64();
        eprintln!("{word}: {gbit:.2} Gbit/s");
    }
    Ok(())
}
