//! Cases about `pontoon vm` with QEMU and a Debian kernel.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rustix::mount::mount_bind;
use rustix::process::Signal;

use super::{expect, tcp_server, vm};
use crate::carrier::{Framing, dial};
use crate::case::{Case, Context, Family};
use crate::counters::{self, Counters};
use crate::guest::tcp;
use crate::machine::{self, DIRECTORY, RunningVm};
use crate::network::Network;
use crate::page::{PAGES, Page};
use crate::process;
use crate::qemu::{self, OWN};
use crate::run::RunningProgram;
use crate::server;

const VHOST_USER: Framing = Framing::VhostUser(1);

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [Framing::Stream, VHOST_USER]
        .into_iter()
        .flat_map(|framing| {
            let case = |name: &str, seconds, run: fn(&Context, Framing) -> Result<()>| {
                let name = format!("qemu.{framing}.{name}");
                Case::new(&name, seconds, move |context| run(context, framing))
            };
            [
                case("as-documented", 40, documented),
                case("addresses-and-content", 150, everything),
                case("guest-reboots", 90, reboots),
            ]
        })
        .collect();
    cases.push(Case::new("qemu.stream.pontoon-restarts", 60, stream_restarts));
    cases.push(Case::new("qemu.vhost-user.pontoon-restarts", 60, vhost_restarts));
    cases.push(Case::new("qemu.vhost-user.two-queues", 90, two_queues));
    cases
        .into_iter()
        .map(|case| case.alone().pontoon_only())
        .collect()
}

/// Shell command of the guest that runs busybox's DHCP client.
const UDHCPC: &str = "udhcpc -i eth0 -n -q -f -t 10 -T 1 -O mtu -s /udhcpc 2>/dev/console | grep ^dhcp4 \
    || echo failed";

/// Shell command of the guest that waits for an IPv6 address from a router advertisement.
const SLAAC: &str = "turns=0; until ip -6 route show default | grep -q via || [ $turns = 100 ]; do sleep 0.1; \
    turns=$((turns + 1)); done; \
    ip -6 address show dev eth0 scope global | grep -v tentative | awk '/inet6/ { print $2; exit }' | grep . || echo none";

/// Shell command of the guest that runs ISC's DHCPv6 client.
const DHCLIENT: &str = "dhclient -6 -1 -lf /tmp/leases6 -pf /tmp/dhclient6 -sf /dhclient -e OUTPUT=/tmp/dhcp6 eth0 \
    </dev/null >/dev/console 2>&1; cat /tmp/dhcp6 || echo failed";

/// Shell command of the guest that counts which of four offloads are active: checksums in both directions, and TCP
/// segmentation over IPv4 and IPv6.
const OFFLOADS: &str = "ethtool -k eth0 | tee /dev/console | grep -c -e '^rx-checksumming: on' \
    -e '^tx-checksumming: on' -e 'tx-tcp-segmentation: on' -e 'tx-tcp6-segmentation: on'";

/// Shell command of the guest that counts which of four queues have carried more than a few frames.
const QUEUES: &str = "ethtool -S eth0 | tee /dev/console \
    | awk '/[rt]x_queue_[01]_packets/ { used += $2 > 100 } END { print used }'";

/// Runs a TCP client in the guest, and checks that its result is `ok`.
fn client(guest: &mut RunningProgram, server: SocketAddr, words: &str) -> Result<()> {
    let got = guest.ask(&format!(
        "{OWN} guest tcp {server} {words} 2>/dev/console || echo failed"
    ))?;
    expect(&got, "ok").with_context(|| format!("{words} at {server}"))
}

/// Tests the command lines of `docs/vm.md`, with files of the names used there, and a guest that configures its network
/// and exits.
fn documented(context: &Context, framing: Framing) -> Result<()> {
    let network = vm::prepare(context)?;
    // The image of the guest's file system has the name that the page uses.
    let image = qemu::image_of(&format!(
        "#!/bin/sh\nexec >/dev/console 2>&1\n{UDHCPC}\nip route get {}\npoweroff -f\n",
        network.server_address(Family::V4)
    ))?;
    let pontoon = context
        .program
        .binary
        .as_deref()
        .context("there is no program under test")?;
    for (file, name) in [(Path::new(pontoon), "pontoon"), (&image.kernel, "vmlinuz")] {
        fs::copy(file, Path::new(DIRECTORY).join(name))?;
    }
    super::tmpfs(Path::new("/tmp"))?;
    // On machines that are virtual themselves QEMU 7.2 may abort with KVM.
    if Path::new("/dev/kvm").exists() {
        mount_bind("/dev/null", "/dev/kvm")?;
    }
    let name = format!("qemu.{framing}.as-documented");
    let mut blocks = PAGES
        .iter()
        .map(Page::blocks)
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten();
    let block = blocks.find(|block| block.is_run_by(&name));
    let lines = block.context("no page has a block for this case")?.script();
    let path = std::env::var("PATH")?;
    let text = process::output(
        Command::new("sh")
            .args(["-c", &lines])
            .current_dir(DIRECTORY)
            .env("PATH", format!("{DIRECTORY}:{path}")),
    )?;
    ensure!(
        text.contains(vm::DHCP4) && text.contains("via 10.0.2.2"),
        "{text}"
    );
    Ok(())
}

/// Tests addresses, DNS, transfers, many connections and a published port.
fn everything(context: &Context, framing: Framing) -> Result<()> {
    let (network, vm) = vm::start(context, framing, &["-p", "8080:80"])?;
    let interface = qemu::interface(&vm.socket, framing)?;
    let mut guest = qemu::boot(&qemu::image()?, &interface)?;
    all(&network, &mut guest).with_context(qemu::console)?;
    if framing == VHOST_USER {
        expect(&guest.ask(OFFLOADS)?, "4").with_context(qemu::console)?;
    }
    Ok(())
}

fn all(network: &Network<'_>, guest: &mut RunningProgram) -> Result<()> {
    expect(&guest.ask(UDHCPC)?, vm::DHCP4)?;
    let slaac = guest.ask(SLAAC)?;
    ensure!(
        slaac.starts_with("fd70:6f6e:746f:0:") && slaac.ends_with("/64"),
        "SLAAC gave {slaac:?}"
    );
    expect(&guest.ask(DHCLIENT)?, vm::DHCP6)?;
    let names = guest.ask(&format!(
        "nslookup some.test {} | grep -c -e {} -e {}",
        vm::DNS,
        server::dns::A,
        server::dns::AAAA
    ))?;
    expect(&names, "2")?;

    for family in [Family::V4, Family::V6] {
        let server = tcp_server(network, family)?;
        for words in ["put 0 91 100000000", "fetch 0 92 100000000", "connects 1000"] {
            let begun = std::time::Instant::now();
            client(guest, server, words)?;
            eprintln!("{words}: {:.2} s", begun.elapsed().as_secs_f64());
        }
    }

    expect(
        &guest.ask(&format!("{OWN} guest serve tcp:[::]:80 &"))?,
        "listening",
    )?;
    for family in [Family::V4, Family::V6] {
        let to = SocketAddr::new(network.host_address(family), 8080);
        for words in [["put", "0", "93", "10000000"], ["fetch", "0", "94", "10000000"]] {
            expect(&network.server().enter(|| tcp::command(to, &words))?, "ok")?;
        }
    }
    Ok(())
}

/// Tests that a guest that reboots, and the guest of another QEMU process, get their network again.
fn reboots(context: &Context, framing: Framing) -> Result<()> {
    let (network, vm) = vm::start(context, framing, &[])?;
    let image = qemu::image()?;
    let interface = qemu::interface(&vm.socket, framing)?;
    let server = tcp_server(&network, Family::V4)?;
    for boots in [2, 1] {
        let mut guest = qemu::boot(&image, &interface)?;
        for boot in 0..boots {
            if boot > 0 {
                guest.send_line("reboot -f")?;
                qemu::booted(&mut guest)?;
            }
            begins(&mut guest, server).with_context(qemu::console)?;
        }
    }
    Ok(())
}

/// Tests a stream to a QEMU that listens. As a client of a stream, QEMU reconnects only from version 8.0 on.
fn stream_restarts(context: &Context) -> Result<()> {
    let network = vm::prepare(context)?;
    let socket = Path::new(DIRECTORY).join("qemu");
    let listens = |option: &String| option.replace("server=off", "server=on");
    let interface = qemu::interface(&socket, Framing::Stream)?;
    let interface: Vec<String> = interface.iter().map(listens).collect();
    let mut guest = qemu::boot(&qemu::image()?, &interface)?;
    restarts(context, &network, &mut guest, || {
        let connection = dial(&socket, Framing::Stream)?;
        let options = vm::with_names(&network, &[]);
        RunningVm::start_with(&context.program, connection, Framing::Stream, &options)
    })
}

fn vhost_restarts(context: &Context) -> Result<()> {
    let network = vm::prepare(context)?;
    let serve = || RunningVm::start(&context.program, VHOST_USER, &vm::with_names(&network, &[]));
    let vm = serve()?;
    let mut guest = qemu::boot(&qemu::image()?, &qemu::interface(&vm.socket, VHOST_USER)?)?;
    let mut first = Some(vm);
    restarts(context, &network, &mut guest, || match first.take() {
        Some(vm) => Ok(vm),
        None => serve(),
    })
}

/// Tests that a running guest has its network again after a restart of `pontoon vm`, however the earlier process has
/// ended.
fn restarts(
    context: &Context,
    network: &Network<'_>,
    guest: &mut RunningProgram,
    mut serve: impl FnMut() -> Result<RunningVm>,
) -> Result<()> {
    let server = tcp_server(network, Family::V4)?;
    let mut vm = serve()?;
    begins(guest, server).with_context(qemu::console)?;
    for signal in [Signal::KILL, Signal::TERM] {
        let processes = context.program.processes();
        vm.signal(signal)?;
        vm.wait()?;
        process::wait_for_ends(&processes)?;
        vm = serve()?;
        client(guest, server, "put 0 97 10000000").with_context(qemu::console)?;
    }
    Ok(())
}

/// Tests two virtual CPUs, each with a pair of queues, between which busy threads of the guest move.
fn two_queues(context: &Context) -> Result<()> {
    let framing = Framing::VhostUser(2);
    let (network, mut vm) = vm::start(context, framing, &["--workers", "2", counters::LOGGED])?;
    let mut guest = qemu::boot(&qemu::image()?, &qemu::interface(&vm.socket, framing)?)?;
    let server = tcp_server(&network, Family::V4)?;
    let why = || format!("{}{}", qemu::console(), machine::talked());
    expect(&guest.ask(UDHCPC)?, vm::DHCP4).with_context(why)?;
    for words in ["put 0 98 50000000", "fetch 0 99 50000000", "connects 1000"] {
        let moved = format!(
            "{OWN} guest tcp {server} {words} >/tmp/printed 2>/dev/console & client=$!; \
             while [ -e /proc/$client/exe ]; do for mask in 1 2; do \
             taskset -p $mask $client >/dev/null 2>&1; sleep 0.05; done; done; wait $client; cat /tmp/printed"
        );
        expect(&guest.ask(&moved)?, "ok")
            .with_context(|| words.to_string())
            .with_context(why)?;
    }
    expect(&guest.ask(QUEUES)?, "4").with_context(why)?;
    drop(guest);
    vm.signal(Signal::TERM)?;
    ensure!(vm.wait()?.success(), "the exit status of pontoon vm is not 0");
    let counters = Counters::read(&machine::talk())?;
    let count = counters.count("handed_over");
    ensure!(count > 0, "no frame was handed over");
    counters.expect("tcp_unknown", 0)
}

/// Checks that the guest gets an address, and transfers bytes in both directions.
fn begins(guest: &mut RunningProgram, server: SocketAddr) -> Result<()> {
    expect(&guest.ask(UDHCPC)?, vm::DHCP4)?;
    client(guest, server, "put 0 95 20000000")?;
    client(guest, server, "fetch 0 96 20000000")
}
