//! People: machines for tests and measurements. QEMU boots a stock Debian kernel (`cargo xtask kernel`) with a file system
//! in memory: busybox, and what the caller puts there.
//!
//! The guest's first process loads virtio's modules, brings `lo` and `eth0` up, and becomes the caller's script `main`,
//! whose arguments are the kernel's behind `--`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail};

/// The program.
pub const QEMU: &str = "qemu-system-x86_64";

/// Of a machine's memory.
const MEMORY_MIB: u16 = 512;

/// How guests' instructions are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By the processor.
    Kvm,
    /// By QEMU, which every machine can do.
    Tcg,
}

impl Accelerator {
    fn option(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi",
        }
    }
}

/// Options of a machine without an interface, and with nothing that was not asked for.
#[must_use]
pub fn machine(accelerator: Accelerator) -> Vec<String> {
    let memory = MEMORY_MIB.to_string();
    let accelerator = ["-accel", accelerator.option(), "-cpu", "max"];
    [
        "-machine",
        "q35",
        "-m",
        &memory,
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-smp",
        BARRIERS,
    ]
    .into_iter()
    .chain(accelerator)
    .map(str::to_owned)
    .collect()
}

/// Room for a second processor. Without it and without KVM, QEMU before 8.1 leaves memory barriers out (its commit
/// c914d46d0a64), and now and then neither side of a queue hears the other's notification: nothing moves any more.
const BARRIERS: &str = "cpus=1,maxcpus=2";

/// The guest's interface, on the network device `net`. Its firmware could only boot from the network.
const INTERFACE: &str = "virtio-net-pci,netdev=net,mac=52:54:00:12:34:56,romfile=";

/// What a guest's kernel is told. `--` and arguments of `main` may follow.
pub const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 mitigations=off";

/// What the guest runs first.
const INIT: &str = include_str!("qemu/init.sh");

/// Modules of a virtio network interface on PCI in the order of their needs, and BBR; a kernel may have some built in.
const MODULES: [&str; 9] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "tcp_bbr",
];

/// Options of an interface on QEMU's own network device, as `-netdev` has it, named `net`.
#[must_use]
pub fn interface(netdev: &str) -> Vec<String> {
    ["-netdev", netdev, "-device", INTERFACE]
        .map(str::to_owned)
        .into()
}

/// Options of an interface whose frames go over the Unix socket at `path`, where somebody listens.
#[must_use]
pub fn stream(path: &Path) -> Vec<String> {
    interface(&format!(
        "stream,id=net,server=off,addr.type=unix,addr.path={}",
        path.display()
    ))
}

/// Options of an interface whose queues lie in memory that is shared with whoever listens on the Unix socket at `path`:
/// `pairs` of queues, and as many processors.
///
/// Without KVM, QEMU 7.2 ends with a fault where such an interface has MSI-X (`msix_set_vector_notifiers` looks for
/// descriptors that only KVM has), so it has one interrupt line.
#[must_use]
pub fn vhost_user(path: &Path, pairs: usize) -> Vec<String> {
    let memory = format!("memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on");
    let socket = format!("socket,id=socket,path={},reconnect=1", path.display());
    let queues = format!("vhost-user,id=net,chardev=socket,queues={pairs}");
    let several = if pairs > 1 { "on" } else { "off" };
    let options = [
        ["-object", &memory],
        ["-machine", "memory-backend=memory"],
        ["-chardev", &socket],
        ["-smp", &format!("cpus={pairs},maxcpus={}", pairs.max(2))],
        ["-netdev", &queues],
        ["-device", &format!("{INTERFACE},vectors=0,mq={several}")],
    ];
    options
        .as_flattened()
        .iter()
        .map(|word| (*word).to_owned())
        .collect()
}

/// A guest's file system in the making.
#[derive(Debug)]
pub struct Root {
    directory: PathBuf,
    kernel: PathBuf,
}

impl Root {
    /// Begins one in `directory`, which must not exist.
    ///
    /// # Errors
    /// There is no kernel or no busybox, or the directory cannot be written to.
    pub fn new(directory: PathBuf) -> Result<Self> {
        let kernel = kernel()?;
        fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let root = Self { directory, kernel };
        for name in ["bin", "dev", "etc", "modules", "proc", "sys", "tmp", "var/run"] {
            fs::create_dir_all(root.directory.join(name))?;
        }
        root.program(&find("busybox")?, "bin/busybox")?;
        root.script("init", INIT)?;
        for (order, module) in MODULES.iter().enumerate() {
            let file = root.kernel.join(format!("{module}.ko"));
            if file.exists() {
                fs::copy(file, root.directory.join(format!("modules/{order}-{module}.ko")))?;
            }
        }
        Ok(root)
    }

    /// Copies a program to `name`, with the libraries that it was linked with.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn program(&self, program: &Path, name: &str) -> Result<()> {
        let to = self.directory.join(name);
        fs::copy(program, to).with_context(|| format!("cannot copy {}", program.display()))?;
        // A program without libraries makes ldd fail.
        let libraries = run(Command::new("ldd").arg(program))?;
        let text = String::from_utf8_lossy(&libraries.stdout);
        let paths: BTreeSet<&str> = text
            .split_whitespace()
            .filter(|word| word.starts_with('/') && !word.ends_with(':'))
            .collect();
        for path in paths {
            let to = self.directory.join(&path[1..]);
            fs::create_dir_all(to.parent().context("a library has no directory")?)?;
            fs::copy(path, to).with_context(|| format!("cannot copy {path}"))?;
        }
        Ok(())
    }

    /// Writes a script that can be run.
    ///
    /// # Errors
    /// The file system's.
    pub fn script(&self, name: &str, text: &str) -> Result<()> {
        let path = self.directory.join(name);
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?)
    }

    /// Packs all of it into `initrd`, and removes the directory.
    ///
    /// # Errors
    /// There is no cpio, or no room.
    pub fn pack(self, initrd: PathBuf) -> Result<Image> {
        let pack = "cd \"$1\" && find . | cpio --quiet -o -H newc >\"$2\"";
        let mut command = Command::new("sh");
        command.args(["-c", pack, "sh"]).arg(&self.directory).arg(&initrd);
        let output = run(&mut command)?;
        if !output.status.success() {
            bail!(
                "cannot pack a guest's files: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        fs::remove_dir_all(&self.directory)?;
        Ok(Image {
            kernel: self.kernel.join("vmlinuz"),
            initrd,
        })
    }
}

/// What is needed to boot.
#[derive(Debug)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The file system in memory.
    pub initrd: PathBuf,
}

/// The directory with `vmlinuz` and modules that `cargo xtask kernel` makes: beside this program, or beside the directory
/// that it was built in.
///
/// # Errors
/// It is not there.
pub fn kernel() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("kernel"))
        .find(|directory| directory.join("vmlinuz").exists())
        .context("there is no kernel for guests (try: cargo xtask kernel)")
}

/// A program on `PATH`.
///
/// # Errors
/// It is not there.
pub fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
        .with_context(|| format!("{program} is not on PATH (try: install it)"))
}

fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().display().to_string();
    command.output().with_context(|| format!("cannot run {name}"))
}
