//! The virtual machine: its architecture, clock, files and kernel, and the options of QEMU for them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Memory of the virtual machine in MiB.
const MEGABYTES: &str = "2048";

/// Usage of `pontoon-e2e boot`.
const USAGE: &str = "usage: pontoon-e2e boot [--icount] [--aarch64] [--root DIRECTORY] [--append WORDS] \
                     [--modules NAMES] KERNEL COMMAND...";

/// A virtual machine before it is started.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Machine {
    clock: Clock,
    architecture: Architecture,
    /// Directory with the guest's files.
    pub(super) root: PathBuf,
    /// Further arguments of the kernel.
    append: String,
    /// Kernel modules beside those that every machine has.
    pub(super) modules: Vec<String>,
    /// Directory with the unpacked kernel package.
    pub(super) kernel: PathBuf,
}

/// Clock source of the virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    Host,
    Instructions,
}

/// Architecture of the virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Architecture {
    X86_64,
    Aarch64,
}

impl Clock {
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["-accel", "tcg,thread=multi", "-smp", "2"],
            Self::Instructions => &[
                "-accel",
                "tcg,thread=single",
                "-smp",
                "2",
                "-icount",
                "shift=0,sleep=off",
            ],
        }
    }
}

impl Architecture {
    /// Returns the name of the QEMU program.
    fn qemu(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 => "qemu-system-aarch64",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &["-machine", "q35", "-cpu", "max"],
            // Pointer authentication, which newer processors have, is slow to translate.
            Self::Aarch64 => &["-machine", "virt,gic-version=3", "-cpu", "cortex-a72"],
        }
    }

    /// Returns the name of the first serial port, which is the console.
    fn console(self) -> &'static str {
        match self {
            Self::X86_64 => "ttyS0",
            Self::Aarch64 => "ttyAMA0",
        }
    }
}

impl Machine {
    /// Parses the options and the kernel's directory; returns the machine and the command.
    pub(super) fn parse(arguments: &[String]) -> Result<(Self, &[String])> {
        let mut machine = Self {
            clock: Clock::Host,
            architecture: Architecture::X86_64,
            root: "/".into(),
            append: String::new(),
            modules: Vec::new(),
            kernel: PathBuf::new(),
        };
        let mut rest = arguments;
        loop {
            match rest {
                [flag, after @ ..] if flag == "--icount" => {
                    machine.clock = Clock::Instructions;
                    rest = after;
                }
                [flag, after @ ..] if flag == "--aarch64" => {
                    machine.architecture = Architecture::Aarch64;
                    rest = after;
                }
                [flag, value, after @ ..] if flag.starts_with("--") => {
                    machine.set(flag, value)?;
                    rest = after;
                }
                [kernel, command @ ..] => {
                    machine.kernel = kernel.into();
                    return Ok((machine, command));
                }
                [] => bail!(USAGE),
            }
        }
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<()> {
        match flag {
            "--root" => self.root = value.into(),
            "--append" => self.append = value.to_owned(),
            "--modules" => self.modules = value.split(',').map(str::to_owned).collect(),
            _ => bail!("unknown option {flag}\n{USAGE}"),
        }
        Ok(())
    }

    /// Returns the working directory of the command.
    pub(super) fn directory(&self) -> Result<PathBuf> {
        match self.root.parent() {
            None => Ok(std::env::current_dir()?),
            Some(_) => Ok("/".into()),
        }
    }

    /// Starts QEMU, with a pipe from the guest's console.
    pub(super) fn start(&self, image: &Path, initrd: &Path) -> Result<Child> {
        let program = self.architecture.qemu();
        let mut qemu = Command::new(program);
        let files = format!(
            "local,id=root,path={},security_model=none,readonly=on,multidevs=remap",
            self.root.display()
        );
        let console = self.architecture.console();
        let append = format!(
            "console={console} quiet loglevel=1 panic=-1 mitigations=off {}",
            self.append
        );
        qemu.args(self.clock.options())
            .args(self.architecture.options())
            .args(["-m", MEGABYTES, "-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-serial", "stdio", "-monitor", "none"])
            .args(["-fsdev", &files])
            .args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"])
            .arg("-kernel")
            .arg(image)
            .arg("-initrd")
            .arg(initrd)
            .args(["-append", &append])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        qemu.spawn().with_context(|| format!("cannot run {program}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_precede_the_kernel_and_the_command() {
        let arguments = words("--aarch64 --root /arm --modules dummy,ipip --icount /kernel ip --version");
        let (machine, command) = Machine::parse(&arguments).unwrap();
        assert_eq!(machine.architecture, Architecture::Aarch64);
        assert_eq!(machine.clock, Clock::Instructions);
        assert_eq!(machine.modules, ["dummy", "ipip"]);
        assert_eq!(machine.kernel, Path::new("/kernel"));
        assert_eq!(command, ["ip", "--version"]);
        assert_eq!(machine.directory().unwrap(), Path::new("/"));
        let (machine, _) = Machine::parse(&arguments[6..]).unwrap();
        assert_eq!(machine.directory().unwrap(), std::env::current_dir().unwrap());
    }

    #[test]
    fn unknown_options_and_a_missing_kernel_are_errors() {
        for line in ["--icount", "--root", "--memory 1 /kernel true"] {
            Machine::parse(&words(line)).unwrap_err();
        }
    }
}
