//! A virtual machine with another kernel (a Debian package), which may have features that this machine's kernel
//! lacks, or lack features that it has, and with this machine's files.
//!
//! `pontoon-e2e boot KERNEL COMMAND...` boots the unpacked Debian kernel package in the directory KERNEL in QEMU, and
//! runs the command there as root: in the same working directory, with all programs of this machine, whose files the
//! guest can read and not change. The output is copied to standard output, and the exit status is that of the
//! command. Options precede KERNEL:
//!
//! - `--icount`: QEMU translates the guest's instructions, which distorts times. With this option each instruction of
//!   either virtual CPU takes 1 ns of virtual time: while one of the CPUs is busy, time counts instructions.
//! - `--aarch64`: the machine and its kernel are aarch64's.
//! - `--root DIRECTORY`: the guest's files are those in DIRECTORY, which has programs of the guest's architecture,
//!   instead of this machine's. The working directory is `/`.
//! - `--append WORDS`: further arguments of the kernel.
//! - `--modules NAMES`: further kernel modules, separated by commas.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Child;

use anyhow::{Context as _, Result, bail, ensure};

mod archive;
mod machine;
mod modules;

use archive::Archive;
use machine::Machine;

/// Kernel modules that the virtual machine needs for its disk, then those for the tests.
const MODULES: &[&str] = &[
    "virtio_pci",
    "9p",
    "9pnet_virtio",
    "overlay",
    "veth",
    "tun",
    "vhost_net",
];

/// Line on the console before the command's output.
const BEGIN: &str = "=== BEGIN ===";
/// Start of the line on the console after the command's output; the exit status follows.
const END: &str = "=== END ";

/// Shell script of the guest's first process until its root file system is mounted: this machine's files, read-only,
/// under an overlay for changes.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t devtmpfs none /dev
for module in /modules/*; do insmod $module; done
mkdir -p /host /over /sysroot
mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=524288,ro root /host
mount -t tmpfs none /over
mkdir /over/new /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/new,workdir=/over/work none /sysroot
mount -t proc none /sysroot/proc
mount -t sysfs none /sysroot/sys
mount -t devtmpfs none /sysroot/dev
chmod 666 /sysroot/dev/net/tun
mkdir -p /sysroot/dev/pts /sysroot/dev/shm
mount -t devpts none /sysroot/dev/pts
mount -t tmpfs none /sysroot/dev/shm
mount -t tmpfs none /sysroot/run
ip link set lo up
hostname machine
mkdir /sysroot/machine
cp /bin/busybox /command /second /sysroot/machine
exec switch_root /sysroot /machine/busybox sh /machine/second
";

/// Shell script that runs the command, in the mounted root file system.
const SECOND: &str = "\
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 TERM=dumb
echo
echo '=== BEGIN ==='
sh /machine/command
echo \"=== END $? ===\"
/machine/busybox poweroff -f
";

/// Runs the command in the virtual machine. Returns true if its exit status is 0.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let (machine, command) = Machine::parse(arguments)?;
    ensure!(!command.is_empty(), "no command was given");
    let image = only(&machine.kernel.join("boot"), "vmlinuz-")?;
    let initrd = Initrd::write(&contents(&machine, command)?)?;
    let mut qemu = machine.start(&image, &initrd.0)?;
    let status = relay(&mut qemu);
    qemu.wait()?;
    Ok(status? == 0)
}

/// Returns the initramfs of the virtual machine.
fn contents(machine: &Machine, command: &[String]) -> Result<Archive> {
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "modules", "proc"] {
        archive.directory(directory);
    }
    let busybox = machine.root.join("bin/busybox");
    let busybox = fs::read(&busybox).with_context(|| format!("cannot read {}", busybox.display()))?;
    archive.file("bin/busybox", &busybox);
    let further = machine.modules.iter().map(String::as_str);
    let names: Vec<&str> = MODULES.iter().copied().chain(further).collect();
    for (nth, module) in modules::closure(&machine.kernel, &names)?.iter().enumerate() {
        archive.file(&format!("modules/{nth:03}"), module);
    }
    archive.file("init", INIT.as_bytes());
    archive.file("second", SECOND.as_bytes());
    let here = machine.directory()?;
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    let line = format!(
        "cd {} && exec {}\n",
        quoted(&here.display().to_string()),
        words.join(" ")
    );
    archive.file("command", line.as_bytes());
    Ok(archive)
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Copies the command's output from the console, and returns the command's exit status.
fn relay(qemu: &mut Child) -> Result<u32> {
    let console = qemu.stdout.take().context("QEMU has no pipe")?;
    let mut before = Vec::new();
    let mut begun = false;
    for line in BufReader::new(console).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        match line.split_once(END) {
            Some((_, status)) if begun => {
                let status = status.trim_end_matches(" ===");
                return status
                    .parse()
                    .context("the console has no exit status of the command");
            }
            _ if begun => writeln!(std::io::stdout(), "{line}")?,
            _ if line == BEGIN => begun = true,
            _ => before.push(line.to_owned()),
        }
    }
    match begun {
        true => bail!("the machine ended before the command did"),
        false => bail!("the machine does not boot:\n{}", before.join("\n")),
    }
}

/// Returns the only file in `directory` whose name begins with `prefix`.
fn only(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("no {}", directory.display()))?;
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        })
        .with_context(|| format!("no {prefix}* in {}", directory.display()))
}

/// A temporary file with an initramfs, removed on drop.
struct Initrd(PathBuf);

impl Initrd {
    fn write(archive: &Archive) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("pontoon-e2e.{}.initrd", std::process::id()));
        let initrd = Self(path);
        fs::write(&initrd.0, archive.bytes())?;
        Ok(initrd)
    }
}

impl Drop for Initrd {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn quoted_words_are_one_shell_word() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
