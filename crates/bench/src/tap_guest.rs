//! A machine at tap_guest speed: a network namespace whose interface is a tap, which our own virtio driver joins to the
//! queues of a vhost-user device, or which is carried over a stream.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use pontoon_carrier::{Faults, Faulty, Framing};
use pontoon_sys::tun::{self, TapOffload, VNET_HDR_LEN};
use pontoon_vhost_driver::{Machine, Options, Pair};

use crate::args;
use crate::network::ip_with;

/// How long the backend may take to listen, and then to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Receive buffers that hold any frame: the tap takes each by one write.
const BUFFER: u32 = 70_000;

/// Of what a device may offer, all but checksums, segmentation (virtio 1.2, section 5.1.3), and the log of what it writes.
const BARE: u64 = !(0x1f | 0x7f << 7 | 1 << 26 | 0x7 << 54);

/// Everything but the log.
const ALL: u64 = !(1 << 26);

/// What a machine's frames go by.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum GuestLink {
    /// Queues, with what the device offers.
    Driver,
    /// Queues, without checksum and segmentation offload.
    BareDriver,
    /// A stream, checksums unfinished.
    Stream,
    /// The same; 1 % of the frames each way are lost, 0.5 % doubled, 0.5 % swapped.
    LossyStream,
}

/// The tap is the caller's network namespace's, where it has the right to configure interfaces.
///
/// # Errors
/// Nobody serves, or the device refuses; the tap cannot be made, the command cannot be run.
pub(crate) fn run(arguments: &args::TapGuest) -> Result<ExitStatus> {
    let segments = matches!(arguments.guest_link, GuestLink::Driver | GuestLink::BareDriver);
    let offload = TapOffload {
        vnet_hdr: true,
        tso: segments,
        uso: segments,
    };
    let tap = tun::open("eth0", offload, 1)?.queues.remove(0);
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
    let backend = Backend::new(connect(&arguments.socket)?, arguments.guest_link)?;
    let [program, words @ ..] = &arguments.command[..] else {
        anyhow::bail!("no command");
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let carrying = scope.spawn(|| backend.carry(&tap, &over));
        let status = Command::new(program).args(words).status();
        over.store(true, Ordering::Relaxed);
        let carried = carrying
            .join()
            .map_err(|_| anyhow::anyhow!("what carries the tap panicked"))?;
        carried.context("carrying the tap")?;
        status.with_context(|| format!("cannot run {}", program.display()))
    })
}

/// Connects to the backend when it listens.
fn connect(socket: &Path) -> Result<UnixStream> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(_) if begun.elapsed() < TIMEOUT => thread::sleep(Duration::from_micros(500)),
            Err(error) => return Err(error).context("nobody listens"),
        }
    }
}

/// BackendKind serves the machine.
enum Backend {
    Queues(Machine, Vec<Pair>),
    Stream(UnixStream, Faults),
}

impl Backend {
    fn new(stream: UnixStream, guest_link: GuestLink) -> Result<Self> {
        let features = match guest_link {
            GuestLink::Driver => ALL,
            GuestLink::BareDriver => BARE,
            GuestLink::Stream => return Ok(Self::Stream(stream, Faults::NONE)),
            GuestLink::LossyStream => return Ok(Self::Stream(stream, Faults::LOSSY)),
        };
        stream.set_read_timeout(Some(TIMEOUT))?;
        let options = Options {
            features,
            pairs: 1,
            queue_size: 256,
            buffer: BUFFER,
        };
        let (machine, pairs) = Machine::connect(stream, &options)?;
        Ok(Self::Queues(machine, pairs))
    }

    fn carry(self, tap: &OwnedFd, over: &AtomicBool) -> Result<()> {
        match self {
            Self::Queues(machine, pairs) => Ok(pontoon_vhost_driver::carry(tap, &machine, pairs, over)?),
            Self::Stream(stream, faults) => {
                let faults = &mut [0, 1].map(|direction| Faulty::new(faults, direction));
                let header = VNET_HDR_LEN as usize;
                Ok(pontoon_carrier::carry(
                    tap,
                    header,
                    &stream,
                    Framing::Stream,
                    faults,
                    over,
                )?)
            }
        }
    }
}
