//! A virtual machine: QEMU without acceleration and a stock Debian kernel, with ISC's DHCP client, ethtool and this
//! program in its file system.
//!
//! A shell in the guest reads lines from its second serial port and writes their output there
//! ([`crate::run::RunningProgram::ask`]).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use pontoon_vm_peer::qemu::{Accelerator, BootImage, GuestRoot, KERNEL_ARGUMENTS, QEMU, find};

use crate::carrier::Framing;
use crate::machine::{DHCLIENT, DIRECTORY, UDHCPC};
use crate::run::{self, RunningProgram};

/// Shell script of the guest's first process.
const MAIN: &str = include_str!("qemu/main.sh");

/// Path of this program in the guest.
pub(crate) const OWN: &str = "/bin/pontoon-e2e";

/// Returns the boot image for the tests. [`DIRECTORY`] must exist.
pub(crate) fn image() -> Result<BootImage> {
    image_of(MAIN)
}

/// Returns a boot image whose first process runs the script `main`.
pub(crate) fn image_of(main: &str) -> Result<BootImage> {
    let directory = Path::new(DIRECTORY);
    let root = GuestRoot::new(directory.join("root"))?;
    root.program(Path::new(&run::own_path()), &OWN[1..])?;
    for program in ["dhclient", "ethtool"] {
        root.program(&find(program)?, &format!("bin/{program}"))?;
    }
    for (name, text) in [("main", main), ("udhcpc", UDHCPC), ("dhclient", DHCLIENT)] {
        root.script(name, text)?;
    }
    root.pack(directory.join("initrd"))
}

/// Returns QEMU's options for a network interface whose backend listens at `socket`.
pub(crate) fn interface(socket: &Path, framing: Framing) -> Result<Vec<String>> {
    match framing {
        Framing::Stream => Ok(pontoon_vm_peer::qemu::stream(socket)),
        Framing::VhostUser(pairs) => Ok(pontoon_vm_peer::qemu::vhost_user(socket, pairs)),
        Framing::Packet => bail!("QEMU 7.2 has no packets over a Unix socket that listens"),
    }
}

/// Boots a virtual machine with a network interface, and waits until the guest's shell is ready.
pub(crate) fn boot(image: &BootImage, interface: &[String]) -> Result<RunningProgram> {
    let mut command = Command::new(QEMU);
    command
        .args(pontoon_vm_peer::qemu::machine(Accelerator::Tcg))
        .args(interface)
        .arg("-serial")
        .arg(format!("file:{DIRECTORY}/console"))
        .args(["-serial", "stdio", "-kernel"])
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initrd)
        .args(["-append", KERNEL_ARGUMENTS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    eprintln!("+ {command:?}");
    let mut guest = RunningProgram::of(command.spawn().context("cannot run QEMU")?)?;
    booted(&mut guest)?;
    Ok(guest)
}

/// Waits until the guest's shell is ready.
pub(crate) fn booted(guest: &mut RunningProgram) -> Result<()> {
    let line = guest.line().with_context(console)?;
    ensure!(
        line.ends_with("ready"),
        "instead of `ready`: {line}\n{}",
        console()
    );
    Ok(())
}

/// Returns the console output of the guest's kernel and programs.
pub(crate) fn console() -> String {
    fs::read(Path::new(DIRECTORY).join("console"))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}
