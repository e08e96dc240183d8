//! Cases about a vhost-user front-end and driver of another project: DPDK's testpmd, which sends as fast as possible.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::vm;
use crate::carrier::Framing;
use crate::case::{Case, Context, Family, Outcome};
use crate::machine::DIRECTORY;
use crate::sys;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::may_skip("testpmd.floods", 60, floods)
            .alone()
            .pontoon_only(),
    ]
}

const TESTPMD: &str = "dpdk-testpmd";

const DATAGRAMS: u32 = 200_000;

/// UDP payload in bytes, for frames of 64 bytes.
const LEN: usize = 22;

/// Time without a datagram after which the flood counts as ended.
const PATIENCE: Duration = Duration::from_secs(10);

fn floods(context: &Context) -> Result<Outcome> {
    let Ok(testpmd) = pontoon_vm_peer::qemu::find(TESTPMD) else {
        return Ok(Outcome::Skipped(format!("needs {TESTPMD} (Debian: dpdk-dev)")));
    };
    let (network, vm) = vm::start(context, Framing::VhostUser(1), &[])?;
    let sink = SocketAddr::new(network.server_address(Family::V4), 9999);
    let socket = network.server().enter(|| Ok(UdpSocket::bind(sink)?))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut command = flood(&testpmd, &vm.socket, sink);
    eprintln!("+ {command:?}");
    let mut flood = command.spawn().context("cannot run testpmd")?;
    let received = receive(&socket, network.host_address(Family::V4));
    flood.kill()?;
    flood.wait()?;
    eprintln!("{:.0} datagrams a second", received?);
    Ok(Outcome::Passed)
}

/// Returns the command of testpmd, without huge pages, on two CPUs, one of which testpmd needs for its console.
fn flood(testpmd: &Path, socket: &Path, to: SocketAddr) -> Command {
    let device = format!(
        "--vdev=net_virtio_user0,path={},mac=52:54:00:12:34:56,queues=1,queue_size=256",
        socket.display()
    );
    let addresses = format!("--tx-ip={},{}", Ipv4Addr::new(10, 0, 2, 15), to.ip());
    let mut command = Command::new(testpmd);
    command
        .env("RUNTIME_DIRECTORY", DIRECTORY)
        .args([
            "--no-huge",
            "-m",
            "256",
            "--no-pci",
            "--no-telemetry",
            "--no-shconf",
        ])
        .args(["-l", "0-1"])
        .arg(device)
        .args([
            "--",
            "--no-mlockall",
            "--total-num-mbufs=8192",
            "--no-lsc-interrupt",
        ])
        .args([
            "--stats-period=1",
            "--auto-start",
            "--forward-mode=txonly",
            "--txpkts=64",
        ])
        .args([addresses, format!("--tx-udp=4000,{}", to.port())])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// Receives [`DATAGRAMS`] datagrams from the address `from`. Returns their rate per second.
fn receive(socket: &UdpSocket, from: IpAddr) -> Result<f64> {
    let mut buffer = [0; 2048];
    let mut begin = Instant::now();
    for number in 0..DATAGRAMS {
        let (len, peer) = sys::uninterrupted(|| socket.recv_from(&mut buffer))
            .with_context(|| format!("after {number} datagrams"))?;
        ensure!(len == LEN, "datagram {number} has {len} bytes");
        ensure!(peer.ip() == from, "datagram {number} is from {peer}");
        if number == 0 {
            begin = Instant::now();
        }
    }
    Ok(f64::from(DATAGRAMS) / begin.elapsed().as_secs_f64())
}
