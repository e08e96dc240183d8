//! What stacks have in common whose guest is a machine: QEMU, and what it boots.

use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pontoon_qemu::{Accelerator, Image, KERNEL_ARGUMENTS, QEMU, Root};

use super::{Place, Started};
use crate::host::Host;

/// What the guest runs: brings its addresses up, and runs the program that the kernel's arguments name.
const MAIN: &str = include_str!("machine/main.sh");

/// Where this program is in the guest.
const CLIENT: &str = "/bin/pontoon";

/// The gateway, which stands for the host's loopback.
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));
const DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3));

/// Addresses as in `main.sh`.
pub(super) const PLACE: Place = Place {
    server: GATEWAY,
    resolver: DNS,
    published: IpAddr::V4(Ipv4Addr::LOCALHOST),
};

/// The largest MTU that passt and pontoon take.
pub(super) const BEST_MTU: u16 = 65520;

/// How long it may take to boot: seconds, without acceleration.
pub(super) const BOOT: Duration = Duration::from_secs(40);

/// How long it may take until somebody listens.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs a machine until it, or standard input, ends.
const UNTIL_END: &str = "exec 3<&0; \"$@\" </dev/null 3<&- & machine=$!; exec >/dev/null; \
    { cat <&3; kill $machine; } & wait $machine";

/// QEMU, and how it runs machines here.
pub(super) struct Machine {
    qemu: PathBuf,
    accelerator: Accelerator,
}

impl Machine {
    /// # Errors
    /// Something is missing that is needed to boot.
    pub(super) fn find() -> Result<Self> {
        pontoon_qemu::kernel()?;
        for program in ["busybox", "cpio"] {
            pontoon_qemu::find(program)?;
        }
        let qemu = pontoon_qemu::find(QEMU)?;
        Ok(Self {
            accelerator: accelerator(&qemu)?,
            qemu,
        })
    }

    pub(super) fn version(&self) -> Result<String> {
        let how = match self.accelerator {
            Accelerator::Kvm => "KVM",
            Accelerator::Tcg => "no acceleration",
        };
        Ok(format!("{}, {how}", super::version(&self.qemu)?))
    }

    /// Boots a machine with an interface, and has it run `program`.
    pub(super) fn start(
        &self,
        host: &Host,
        interface: &[String],
        mtu: u16,
        program: &[OsString],
        helpers: Vec<Child>,
    ) -> Result<Started> {
        let image = image(host)?;
        let mut command = super::unprivileged("sh");
        command
            .args(["-c", UNTIL_END, "sh"])
            .arg(&self.qemu)
            .args(pontoon_qemu::machine(self.accelerator))
            .args(interface)
            .args(["-serial", "null", "-serial", "stdio", "-kernel"])
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initrd)
            .arg("-append")
            .arg(kernel_arguments(host, mtu, program)?);
        Ok(Started {
            guest: super::spawn(&mut command)?,
            helpers,
        })
    }
}

/// KVM, if it is there, and this user's, and QEMU's CPU goes with it, which not every machine's does that is virtual itself.
fn accelerator(qemu: &Path) -> Result<Accelerator> {
    let mut command = super::unprivileged(qemu);
    command
        .args(pontoon_qemu::machine(Accelerator::Kvm))
        .args(["-S", "-monitor", "stdio"]);
    let mut trial = super::spawn(&mut command)?;
    if let Some(mut monitor) = trial.stdin.take() {
        // One that has ended already is found out below.
        let _ = monitor.write_all(b"quit\n");
    }
    Ok(if trial.wait_with_output()?.status.success() {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    })
}

/// How it is started, for people.
pub(super) fn command(interface: &[String]) -> String {
    format!("{QEMU} ... {} (CLIENT in the machine)", interface.join(" "))
}

/// How a machine's frames go to who serves it.
#[derive(Clone, Copy)]
pub(super) enum Link {
    Stream,
    VhostUser,
}

impl Link {
    /// Options of an interface that is served at `socket`.
    pub(super) fn interface(self, socket: &Path) -> Vec<String> {
        match self {
            Self::Stream => pontoon_qemu::stream(socket),
            Self::VhostUser => pontoon_qemu::vhost_user(socket, 1),
        }
    }
}

/// Behind `--`: arguments of the guest's first process.
fn kernel_arguments(host: &Host, mtu: u16, program: &[OsString]) -> Result<String> {
    let mut line = format!("{KERNEL_ARGUMENTS} -- {mtu}");
    for word in program {
        let word = if word == host.client.as_os_str() {
            CLIENT
        } else {
            word.to_str().context("a word that is not UTF-8")?
        };
        ensure!(!word.contains(char::is_whitespace), "a word with a space: {word}");
        line = format!("{line} {word}");
    }
    Ok(line)
}

/// Made once, where every user may read it.
fn image(host: &Host) -> Result<Image> {
    let directory = &host.enclosure.programs;
    let kernel = host
        .enclosure
        .publish(&pontoon_qemu::kernel()?.join("vmlinuz"), "vmlinuz")?;
    let initrd = directory.join("initrd");
    if !initrd.exists() {
        let root = Root::new(directory.join("machine"))?;
        root.program(&host.client, &CLIENT[1..])?;
        root.script("main", MAIN)?;
        root.pack(initrd.clone())?;
    }
    Ok(Image { kernel, initrd })
}

/// Starts who serves the machine at the socket `path`, and waits until it listens.
pub(super) fn serve(command: &mut Command, path: &Path) -> Result<Child> {
    let mut helper = super::spawn(command)?;
    let begun = Instant::now();
    while !path.exists() {
        if helper.try_wait()?.is_some() || begun.elapsed() > PATIENCE {
            let name = command.get_program().display();
            anyhow::bail!("{name} does not listen: {}", super::give_up(helper));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(helper)
}
