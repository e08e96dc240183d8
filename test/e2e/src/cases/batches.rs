//! Cases about UDP datagrams that are sent in one call (UDP_SEGMENT).

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use pontoon_netns::ip;

use super::{expect, udp_server};
use crate::case::{Case, Context, Family};
use crate::guest::udp::BATCH;
use crate::network::Network;
use crate::process::wait_until;
use crate::run::{RunningProgram, own_path};
use crate::strace::{self, Strace};
use crate::sys;

/// Payload of a datagram in bytes, for which all links of these cases have room.
const SIZE: u16 = 1200;

/// Number of sends of a flow whose batches are measured.
const MEASURED: usize = 50;
/// Number of sends of a flow whose sends fail.
const REFUSED: usize = 5;

pub(super) fn cases() -> Vec<Case> {
    Case::both("batches.beside-refused-sends", 30, beside_refusals)
        .map(Case::pontoon_only)
        .into_iter()
        .map(|case| Case {
            environment: strace::OPEN.to_vec(),
            ..case
        })
        .collect()
}

/// Tests that sends of some flows that fail with EMSGSIZE, EINVAL or EIO do not reduce the batches of other flows.
fn beside_refusals(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    network.set_mtu(0, 1400)?;
    let nowhere = family.pick([203, 0, 113, 1].into(), "2001:db8:ffff::1".parse()?);
    let nowhere = SocketAddr::new(nowhere, 7000);
    // A blackhole route makes each send fail with EINVAL.
    ip(&format!("route add blackhole {}", nowhere.ip()))?;
    let echo = udp_server(&network, family)?;
    let receiver = network
        .server()
        .enter(|| Ok(UdpSocket::bind(SocketAddr::new(echo.ip(), 7001))?))?;
    receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
    sys::coalesce_receives(&receiver)?;
    super::tmpfs(Path::new("/mnt"))?;
    let mut guest = network.run().command(["sh"]).spawn()?;

    // Makes host and guest resolve the addresses of their neighbours before the measurement.
    expect(
        &guest.ask(&format!("{} guest udp peer {echo}", own_path()))?,
        "ok",
    )?;
    let before = mean_batch(&mut guest, 4000, &receiver)?;
    ensure!(
        before >= 10.0,
        "{before} datagrams together: there is little to lose"
    );

    // The kernel returns EIO if neither device nor route can segment, which is rare, so strace injects the error.
    let options = [
        "-Z",
        "-e",
        "trace=sendmsg",
        "-e",
        "inject=sendmsg:error=EIO:when=1",
    ];
    let strace = Strace::attach(context.program.engine()?, &options, Path::new("/mnt/refused"))?;
    send(&mut guest, 5000, echo, SIZE, REFUSED, true)?;
    send(&mut guest, 5001, nowhere, SIZE, REFUSED, true)?;
    // Datagrams larger than the MTU of the link.
    send(&mut guest, 5002, echo, 1472, REFUSED, false)?;
    send(&mut guest, 5003, echo, 1472, REFUSED, true)?;
    for errno in ["EMSGSIZE", "EINVAL", "EIO"] {
        wait_until(
            &format!("a send is refused with {errno}"),
            Duration::from_secs(5),
            || Ok(strace.written()?.contains(&format!("= -1 {errno} "))),
        )?;
    }
    strace.finish()?;

    for (port, what) in [(4000, "the same flow"), (4001, "a new flow")] {
        let after = mean_batch(&mut guest, port, &receiver)?;
        eprintln!("{before} datagrams together, afterwards {after} of {what}");
        ensure!(
            (after / before - 1.0).abs() <= 0.05,
            "{before} datagrams together, afterwards {after} of {what}"
        );
    }
    Ok(())
}

/// Makes the guest send [`BATCH`] datagrams `count` times.
fn send(
    guest: &mut RunningProgram,
    port: u16,
    to: SocketAddr,
    size: u16,
    count: usize,
    df: bool,
) -> Result<()> {
    let line = format!(
        "{} guest udp segments {port} {to} {size} {count} {df}",
        own_path()
    );
    expect(&guest.ask(&line)?, "ok")
}

/// Returns the mean number of a flow's datagrams that arrive in one receive call (UDP_GRO).
fn mean_batch(guest: &mut RunningProgram, port: u16, receiver: &UdpSocket) -> Result<f64> {
    let to = receiver.local_addr()?;
    std::thread::scope(|scope| {
        let received = scope.spawn(|| receive(receiver));
        send(guest, port, to, SIZE, MEASURED, true)?;
        received.join().unwrap_or_else(|_| bail!("a thread panicked"))
    })
}

fn receive(receiver: &UdpSocket) -> Result<f64> {
    let wanted = BATCH * MEASURED;
    let mut buffer = vec![0; 1 << 16];
    let (mut datagrams, mut receives) = (0, 0_u32);
    while datagrams < wanted {
        match sys::uninterrupted(|| receiver.recv(&mut buffer)) {
            Ok(len) => (datagrams, receives) = (datagrams + len / usize::from(SIZE), receives + 1),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(
        datagrams >= wanted / 2,
        "{datagrams} of {wanted} datagrams arrived"
    );
    Ok(datagrams as f64 / f64::from(receives))
}
