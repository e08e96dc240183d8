//! QEMU, and the boot image of its guest, for all stacks whose guest is a virtual machine.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pontoon_vm_peer::qemu::{Accelerator, BootImage, GuestRoot, KERNEL_ARGUMENTS, QEMU};

use super::StackProcesses;
use crate::host::Host;

/// Shell script of the guest's first process: configures the interface, and runs the program of the kernel's
/// arguments.
const MAIN: &str = include_str!("machine/main.sh");

/// Path of the load client in the guest's file system.
const CLIENT: &str = "/bin/pontoon";

/// Time limit for the guest to boot, which takes seconds without hardware acceleration.
pub(super) const BOOT: Duration = Duration::from_secs(40);

/// Shell script that runs a machine until the machine exits or standard input is closed.
const UNTIL_END: &str = "exec 3<&0; \"$@\" </dev/null 3<&- & machine=$!; exec >/dev/null; \
    { cat <&3; kill $machine; } & wait $machine";

/// The installed QEMU, and the accelerator that works on this machine.
pub(super) struct QemuMachine {
    qemu: PathBuf,
    accelerator: Accelerator,
}

impl QemuMachine {
    /// Finds QEMU.
    ///
    /// # Errors
    /// A program or file that is needed to boot is missing.
    pub(super) fn find() -> Result<Self> {
        pontoon_vm_peer::qemu::kernel()?;
        for program in ["busybox", "cpio"] {
            pontoon_vm_peer::qemu::find(program)?;
        }
        let qemu = pontoon_vm_peer::qemu::find(QEMU)?;
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

    /// Boots a machine with a network interface and runs `program` in it.
    pub(super) fn start(
        &self,
        host: &Host,
        interface: &[String],
        mtu: u16,
        program: &[OsString],
        helpers: Vec<Child>,
    ) -> Result<StackProcesses> {
        let image = image(host)?;
        let mut command = super::unprivileged("sh");
        command
            .args(["-c", UNTIL_END, "sh"])
            .arg(&self.qemu)
            .args(pontoon_vm_peer::qemu::machine(self.accelerator))
            .args(interface)
            .args(["-serial", "null", "-serial", "stdio", "-kernel"])
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initrd)
            .arg("-append")
            .arg(kernel_arguments(host, mtu, program)?);
        Ok(StackProcesses {
            guest: super::spawn(&mut command)?,
            helpers,
        })
    }
}

/// Returns KVM if this user may open it and QEMU's CPU model works with it, which nested virtualisation may prevent;
/// otherwise TCG.
fn accelerator(qemu: &Path) -> Result<Accelerator> {
    let mut command = super::unprivileged(qemu);
    command
        .args(pontoon_vm_peer::qemu::machine(Accelerator::Kvm))
        .args(["-S", "-monitor", "stdio"]);
    let mut trial = super::spawn(&mut command)?;
    if let Some(mut monitor) = trial.stdin.take() {
        // The write fails if QEMU has exited already; its status is checked below.
        let _ = monitor.write_all(b"quit\n");
    }
    Ok(if trial.wait_with_output()?.status.success() {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    })
}

/// Returns the command that starts the machine, for the report.
pub(super) fn command(interface: &[String]) -> String {
    format!("{QEMU} ... {} (CLIENT in the machine)", interface.join(" "))
}

/// Returns the arguments of the guest's kernel; the kernel passes those after `--` to the first process.
fn kernel_arguments(host: &Host, mtu: u16, program: &[OsString]) -> Result<String> {
    let mut line = format!("{KERNEL_ARGUMENTS} -- {mtu}");
    for word in program {
        let word = if word == host.client.as_os_str() {
            CLIENT
        } else {
            word.to_str().context("an argument is not UTF-8")?
        };
        ensure!(
            !word.contains(char::is_whitespace),
            "an argument contains a space: {word}"
        );
        line = format!("{line} {word}");
    }
    Ok(line)
}

/// Builds the boot image on the first call, in a file that every user may read.
fn image(host: &Host) -> Result<BootImage> {
    let directory = &host.sandbox_ns.programs;
    let kernel = host
        .sandbox_ns
        .install_program(&pontoon_vm_peer::qemu::kernel()?.join("vmlinuz"), "vmlinuz")?;
    let initrd = directory.join("initrd");
    if !initrd.exists() {
        let root = GuestRoot::new(directory.join("machine"))?;
        root.program(&host.client, &CLIENT[1..])?;
        root.script("main", MAIN)?;
        root.pack(initrd.clone())?;
    }
    Ok(BootImage { kernel, initrd })
}
