//! A machine at native speed: a network namespace whose interface is a tap, which our own virtio driver joins to the
//! queues of a vhost-user device.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pontoon_sys::tun::{self, TapOffload};
use pontoon_vhost_driver::{Machine, Options, Pair, carry};

use crate::args;
use crate::network::ip_with;

/// How long the device may take to listen, and then to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Receive buffers that hold any frame: the tap takes each by one write.
const BUFFER: u32 = 70_000;

/// Of what a device may offer, all but checksums, segmentation (virtio 1.2, section 5.1.3), and the log of what it writes.
const BARE: u64 = !(0x1f | 0x7f << 7 | 1 << 26 | 0x7 << 54);

/// Everything but the log.
const ALL: u64 = !(1 << 26);

/// The tap is the caller's network namespace's, where it has the right to configure interfaces.
///
/// # Errors
/// The device is not there or refuses, the tap cannot be made, the command cannot be run.
pub(crate) fn run(arguments: &args::Machine) -> Result<ExitStatus> {
    let all = TapOffload {
        vnet_hdr: true,
        tso: true,
        uso: true,
    };
    let tap = tun::open("eth0", all, 1)?.queues.remove(0);
    ip_with(
        &format!(
            "link set lo up
             link set eth0 mtu {} txqueuelen 4000 up
             address add 10.0.2.15/24 dev eth0
             route add default via 10.0.2.2",
            arguments.mtu
        ),
        &[],
    )?;
    let (machine, pairs) = connect(&arguments.socket, if arguments.bare { BARE } else { ALL })?;
    let [program, words @ ..] = &arguments.command[..] else {
        anyhow::bail!("no command");
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let carrying = scope.spawn(|| carry(&tap, &machine, pairs, &over));
        let status = Command::new(program).args(words).status();
        over.store(true, Ordering::Relaxed);
        let carried = carrying
            .join()
            .map_err(|_| anyhow::anyhow!("the driver panicked"))?;
        carried.context("the driver")?;
        status.with_context(|| format!("cannot run {}", program.display()))
    })
}

/// Connects to the device when it listens.
fn connect(socket: &Path, features: u64) -> Result<(Machine, Vec<Pair>)> {
    let begun = Instant::now();
    let stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(_) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_micros(500)),
            Err(error) => return Err(error).context("no device listens"),
        }
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    let options = Options {
        features,
        pairs: 1,
        queue_size: 256,
        buffer: BUFFER,
    };
    Ok(Machine::connect(stream, &options)?)
}
