//! The list.

mod addressing;
mod apparmor;
mod batches;
mod calls;
mod compat;
mod confinement;
mod control;
mod decider;
mod dns;
mod doctor;
mod documents;
#[cfg(target_arch = "x86_64")]
mod escapes;
mod events;
mod faults;
mod floods;
mod follow;
mod icmp;
mod idle;
mod input;
mod iperf;
mod lifecycle;
mod limits;
mod load;
mod local_clients;
mod log;
mod loopback_forwards;
mod pacing;
mod passt;
mod pasta;
mod pesto;
mod policy;
mod ports;
mod proxy;
mod publish;
mod qemu;
mod reach;
mod registry;
mod relay;
mod routed;
mod sandbox;
mod shell;
mod soak;
mod solo5;
mod tcp;
mod testpmd;
mod tls;
mod transfer;
mod udp;
mod vhost_net;
mod vm;
mod workers;

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Result, ensure};

use crate::case::{Case, Family, Load};
use crate::network::Network;
use crate::server;

/// Everything that `PONTOON_DISABLE` can disable.
const DISABLE: &str = "peek_off,uso,tso,udp_gso,udp_gro,vnet_hdr,vhost_net";

/// Every case, in the order of this directory.
pub(crate) fn all() -> Vec<Case> {
    let topics = [
        addressing::cases,
        apparmor::cases,
        batches::cases,
        calls::cases,
        compat::cases,
        confinement::cases,
        control::cases,
        decider::cases,
        dns::cases,
        doctor::cases,
        documents::cases,
        #[cfg(target_arch = "x86_64")]
        escapes::cases,
        events::cases,
        faults::cases,
        floods::cases,
        follow::cases,
        icmp::cases,
        idle::cases,
        input::cases,
        iperf::cases,
        lifecycle::cases,
        limits::cases,
        load::cases,
        local_clients::cases,
        loopback_forwards::cases,
        log::cases,
        pacing::cases,
        passt::cases,
        pasta::cases,
        pesto::cases,
        policy::cases,
        ports::cases,
        proxy::cases,
        publish::cases,
        qemu::cases,
        reach::cases,
        registry::cases,
        relay::cases,
        routed::cases,
        sandbox::cases,
        solo5::cases,
        soak::cases,
        tcp::cases,
        testpmd::cases,
        tls::cases,
        transfer::cases,
        udp::cases,
        vhost_net::cases,
        vm::cases,
        workers::cases,
    ];
    let mut all: Vec<Case> = topics.iter().flat_map(|cases| cases()).collect();
    // What moves data, once more as on the oldest kernel.
    let bare = [transfer::cases, udp::cases, tcp::cases]
        .iter()
        .flat_map(|cases| cases())
        .map(|mut case| {
            case.name = format!("bare.{}", case.name);
            case.environment = vec![("PONTOON_DISABLE", DISABLE)];
            case.pontoon_only = true;
            case
        });
    all.extend(bare);
    // What has flows, once more with several workers, but for what measures or goes through every size.
    let attached = lifecycle::cases()
        .into_iter()
        .filter(|case| case.name.contains("attach"));
    let shared = [
        dns::cases,
        icmp::cases,
        local_clients::cases,
        loopback_forwards::cases,
        policy::cases,
        publish::cases,
        tcp::cases,
        udp::cases,
    ]
    .iter()
    .flat_map(|cases| cases())
    .filter(|case| case.load != Load::Alone && !case.name.starts_with("udp.every-size"))
    .chain(attached)
    .map(|mut case| {
        case.name = format!("workers.{}", case.name);
        case.options = workers::OPTIONS.to_vec();
        case.pontoon_only = true;
        case
    });
    all.extend(shared);
    // What decides about flows and records them, once more with two workers.
    let in_run = |case: &Case| !case.name.contains(".vm.") && case.name != "proxy.vm";
    let two = [decider::cases, events::cases, proxy::cases, tls::cases]
        .iter()
        .flat_map(|cases| cases())
        .filter(in_run)
        .map(|mut case| {
            case.name = format!("two-workers.{}", case.name);
            case.options = workers::TWO.to_vec();
            case
        });
    all.extend(two);
    // What has flows, once more by vhost-net, where that is.
    let topics = [
        dns::cases,
        icmp::cases,
        iperf::cases,
        publish::cases,
        tcp::cases,
        udp::cases,
    ];
    let by_vhost = topics.iter().filter(|_| vhost_net::is_there());
    all.extend(by_vhost.flat_map(|cases| cases()).map(|mut case| {
        case.name = format!("vhost.{}", case.name);
        case.options = vhost_net::OPTIONS.to_vec();
        case.pontoon_only = true;
        // Mostly that is where every instruction is translated.
        case.deadline *= 3;
        case
    }));
    all
}

/// Starts a TCP server at the far end of `network`.
fn tcp_server(network: &Network<'_>, family: Family) -> Result<SocketAddr> {
    let address = SocketAddr::new(network.server_address(family), 7000);
    network.server().enter(|| server::tcp::start(address))
}

/// Starts a UDP server at the far end of `network`.
fn udp_server(network: &Network<'_>, family: Family) -> Result<SocketAddr> {
    let address = SocketAddr::new(network.server_address(family), 7000);
    network.server().enter(|| server::udp::start(address))
}

/// `address` as a host of a URL.
fn host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

fn expect(got: &str, wanted: &str) -> Result<()> {
    ensure!(
        got.trim_end() == wanted,
        "got {:?} instead of {wanted:?}",
        got.trim_end()
    );
    Ok(())
}

/// A guest that runs the lines of its standard input.
const OBEDIENT: &str = "echo listening; while read -r line; do eval \"$line\"; done";

/// The number that a variable of the environment asks for, or the usual one.
fn wanted<T: FromStr>(variable: &str, usual: T) -> T {
    let wanted = std::env::var(variable).ok();
    wanted.and_then(|number| number.parse().ok()).unwrap_or(usual)
}

/// A file of the case's own, for the program's standard error.
fn talk() -> Result<std::path::PathBuf> {
    let directory = std::path::Path::new("/mnt");
    tmpfs(directory)?;
    Ok(directory.join("talk"))
}

/// Mounts an empty file system in memory, which everybody may write to, over `directory` in the case's own namespace.
fn tmpfs(directory: &std::path::Path) -> Result<()> {
    use rustix::mount::{MountFlags, mount};
    mount("tmpfs", directory, "tmpfs", MountFlags::empty(), c"mode=1777")?;
    Ok(())
}

/// Puts `text` in the place of a file of the host, in the case's own namespace.
fn replace_file(path: &str, text: &str) -> Result<()> {
    use rustix::mount::mount_bind;
    let directory = std::path::Path::new("/run");
    tmpfs(directory)?;
    let file = directory.join("replaced");
    std::fs::write(&file, text)?;
    mount_bind(&file, path)?;
    Ok(())
}
