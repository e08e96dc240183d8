//! `pontoon vm` with QEMU and a Debian kernel.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use pontoon_qemu::stream;
use rustix::mount::mount_bind;
use rustix::process::Signal;

use super::{expect, tcp_server, vm};
use crate::carrier::{Framing, dial};
use crate::case::{Case, Context, Family};
use crate::guest::tcp;
use crate::machine::{DIRECTORY, Vm};
use crate::network::Network;
use crate::process;
use crate::qemu::{self, OWN};
use crate::run::Running;
use crate::server;

pub(super) fn cases() -> Vec<Case> {
    [
        Case::new("qemu.stream.as-documented", 40, documented),
        Case::new("qemu.stream.addresses-and-content", 150, everything),
        Case::new("qemu.stream.guest-reboots", 90, reboots),
        Case::new("qemu.stream.pontoon-restarts", 60, restarts),
    ]
    .map(|case| case.alone().pontoon_only())
    .into()
}

/// DHCP from busybox, in the guest.
const UDHCPC: &str = "udhcpc -i eth0 -n -q -f -t 10 -T 1 -O mtu -s /udhcpc 2>/dev/console | grep ^dhcp4 \
    || echo failed";

/// An IPv6 address from the router's advertisement.
const SLAAC: &str = "turns=0; until ip -6 route show default | grep -q via || [ $turns = 100 ]; do sleep 0.1; \
    turns=$((turns + 1)); done; \
    ip -6 address show dev eth0 scope global | grep -v tentative | awk '/inet6/ { print $2; exit }' | grep . || echo none";

/// ISC's client for IPv6.
const DHCLIENT: &str = "dhclient -6 -1 -lf /tmp/leases6 -pf /tmp/dhclient6 -sf /dhclient -e SAID=/tmp/dhcp6 eth0 \
    </dev/null >/dev/console 2>&1; cat /tmp/dhcp6 || echo failed";

/// What people read, with the command lines that they copy.
const MANUAL: &str = include_str!("../../../docs/vm.md");

/// A client in the guest, and its answer.
fn client(guest: &mut Running, server: SocketAddr, words: &str) -> Result<()> {
    let got = guest.ask(&format!(
        "{OWN} guest tcp {server} {words} 2>/dev/console || echo failed"
    ))?;
    expect(&got, "ok").with_context(|| format!("{words} at {server}"))
}

/// The lines of the manual, with files of the names that they have, and a guest that looks for its network and ends.
fn documented(context: &Context) -> Result<()> {
    let network = vm::prepare(context)?;
    // The guest's file system is there under its own name.
    let image = qemu::image_of(&format!(
        "#!/bin/sh\nexec >/dev/console 2>&1\n{UDHCPC}\nip route get {}\npoweroff -f\n",
        network.server_address(Family::V4)
    ))?;
    let pontoon = context.program.binary.as_deref().context("no program")?;
    for (file, name) in [(Path::new(pontoon), "pontoon"), (&image.kernel, "vmlinuz")] {
        fs::copy(file, Path::new(DIRECTORY).join(name))?;
    }
    super::tmpfs(Path::new("/tmp"))?;
    // Machines that are virtual themselves may have a KVM that QEMU 7.2 ends at.
    if Path::new("/dev/kvm").exists() {
        mount_bind("/dev/null", "/dev/kvm")?;
    }
    let block = MANUAL
        .split("```")
        .find(|block| block.contains("--protocol stream "));
    let lines = block.and_then(|block| block.strip_prefix("sh\n"));
    let path = std::env::var("PATH")?;
    let said = process::output(
        Command::new("sh")
            .args(["-c", lines.context("no command line")?])
            .current_dir(DIRECTORY)
            .env("PATH", format!("{DIRECTORY}:{path}")),
    )?;
    ensure!(
        said.contains(vm::DHCP4) && said.contains("via 10.0.2.2"),
        "{said}"
    );
    Ok(())
}

/// Addresses, names, transfers, many connections and a published port.
fn everything(context: &Context) -> Result<()> {
    let (network, vm) = vm::start(context, Framing::Stream, &["-p", "8080:80"])?;
    let mut guest = qemu::boot(&qemu::image()?, &stream(&vm.socket))?;
    all(&network, &mut guest).with_context(qemu::console)
}

fn all(network: &Network<'_>, guest: &mut Running) -> Result<()> {
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

/// A guest that reboots, and the guest of another QEMU, get their network again.
fn reboots(context: &Context) -> Result<()> {
    let (network, vm) = vm::start(context, Framing::Stream, &[])?;
    let image = qemu::image()?;
    let interface = stream(&vm.socket);
    let server = tcp_server(&network, Family::V4)?;
    for boots in [2, 1] {
        let mut guest = qemu::boot(&image, &interface)?;
        for boot in 0..boots {
            if boot > 0 {
                guest.tell("reboot -f")?;
                qemu::booted(&mut guest)?;
            }
            begins(&mut guest, server).with_context(qemu::console)?;
        }
    }
    Ok(())
}

/// A guest that stays gets its network back from the next run, however the one before ended. QEMU listens here: as a client
/// it connects anew from version 8.0 on.
fn restarts(context: &Context) -> Result<()> {
    let network = vm::prepare(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let socket = Path::new(DIRECTORY).join("qemu");
    let listens = |option: &String| option.replace("server=off", "server=on");
    let interface: Vec<String> = stream(&socket).iter().map(listens).collect();
    let mut guest = qemu::boot(&qemu::image()?, &interface)?;
    let serve = || -> Result<Vm> {
        let connection = dial(&socket, Framing::Stream)?;
        let options = vm::with_names(&network, &[]);
        Vm::start_with(&context.program, connection, Framing::Stream, &options)
    };
    let mut vm = serve()?;
    begins(&mut guest, server).with_context(qemu::console)?;
    for signal in [Signal::KILL, Signal::TERM] {
        let processes = context.program.processes();
        vm.signal(signal)?;
        vm.wait()?;
        process::wait_for_ends(&processes)?;
        vm = serve()?;
        client(&mut guest, server, "put 0 97 10000000").with_context(qemu::console)?;
    }
    Ok(())
}

/// A guest gets an address, and bytes both ways.
fn begins(guest: &mut Running, server: SocketAddr) -> Result<()> {
    expect(&guest.ask(UDHCPC)?, vm::DHCP4)?;
    client(guest, server, "put 0 95 20000000")?;
    client(guest, server, "fetch 0 96 20000000")
}
