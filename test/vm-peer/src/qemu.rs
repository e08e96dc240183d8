//! Virtual machines for tests and measurements. QEMU boots a stock Debian kernel (`cargo xtask kernel`) with an
//! initrd that contains busybox and the caller's files.
//!
//! The guest's init script loads the virtio modules, brings `lo` and `eth0` up, and executes the caller's script
//! `main` with the kernel arguments after `--`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail};

/// Name of the QEMU program.
pub const QEMU: &str = "qemu-system-x86_64";

/// Memory of a machine, in MiB.
const MEMORY_MIB: u16 = 512;

/// The method by which QEMU executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Hardware virtualisation (KVM).
    Kvm,
    /// Translation of the instructions (TCG), which works on every host.
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

/// Returns QEMU's options for a machine without network interface and without default devices.
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

/// QEMU's `-smp` option for a machine that could have a second processor. Without it QEMU before 8.1 without KVM
/// omits memory barriers (fixed by its commit c914d46d0a64), and occasionally a notification between driver and
/// device is lost in both directions, after which the queue stalls.
const BARRIERS: &str = "cpus=1,maxcpus=2";

/// QEMU's device for the guest's interface, with the network backend `net`. Its option ROM is disabled, as it could
/// only boot from the network.
const INTERFACE: &str = "virtio-net-pci,netdev=net,mac=52:54:00:12:34:56,romfile=";

/// Arguments of the guest's kernel. `--` and arguments of `main` may follow.
pub const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 mitigations=off";

/// Shell script of the guest's first process.
const INIT: &str = include_str!("qemu/init.sh");

/// Kernel modules for a virtio-net interface on PCI, in the order of their dependencies, and for BBR. Some may be
/// built into the kernel.
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

/// Returns QEMU's options for an interface with the network backend `netdev`, in the syntax of `-netdev`, which must
/// have the id `net`.
#[must_use]
pub fn interface(netdev: &str) -> Vec<String> {
    ["-netdev", netdev, "-device", INTERFACE]
        .map(str::to_owned)
        .into()
}

/// Returns QEMU's options for an interface whose frames are sent over the listening Unix socket at `path`.
#[must_use]
pub fn stream(path: &Path) -> Vec<String> {
    interface(&format!(
        "stream,id=net,server=off,addr.type=unix,addr.path={}",
        path.display()
    ))
}

/// Returns QEMU's options for a vhost-user interface with `pairs` queue pairs, whose device listens on the Unix
/// socket at `path`. The machine has as many processors as pairs.
///
/// Without KVM, QEMU 7.2 crashes if such an interface has MSI-X (`msix_set_vector_notifiers` uses descriptors that
/// exist with KVM only), so it has one interrupt line.
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

/// A directory with the guest's file system, before it is packed into an initrd.
#[derive(Debug)]
pub struct GuestRoot {
    directory: PathBuf,
    kernel: PathBuf,
}

impl GuestRoot {
    /// Creates `directory`, which must not exist, with the basic files.
    ///
    /// # Errors
    /// The kernel or busybox is missing, or the directory cannot be written.
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

    /// Copies a program to `name`, with its shared libraries.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn program(&self, program: &Path, name: &str) -> Result<()> {
        let to = self.directory.join(name);
        fs::copy(program, to).with_context(|| format!("cannot copy {}", program.display()))?;
        // ldd fails for a statically linked program.
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

    /// Writes an executable script to `name`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn script(&self, name: &str, text: &str) -> Result<()> {
        let path = self.directory.join(name);
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?)
    }

    /// Packs all files into `initrd`, and removes the directory.
    ///
    /// # Errors
    /// cpio is missing, or the disk is full.
    pub fn pack(self, initrd: PathBuf) -> Result<BootImage> {
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
        Ok(BootImage {
            kernel: self.kernel.join("vmlinuz"),
            initrd,
        })
    }
}

/// Paths of the files from which a guest boots.
#[derive(Debug)]
pub struct BootImage {
    /// Path of the guest's kernel (`vmlinuz`).
    pub kernel: PathBuf,
    /// Path of the guest's initrd.
    pub initrd: PathBuf,
}

/// Returns the directory with `vmlinuz` and modules that `cargo xtask kernel` creates: beside this program, or beside
/// its build directory.
///
/// # Errors
/// The directory does not exist.
pub fn kernel() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("kernel"))
        .find(|directory| directory.join("vmlinuz").exists())
        .context("there is no kernel for guests (try: cargo xtask kernel)")
}

/// Returns the path of a program on `PATH`.
///
/// # Errors
/// The program is not on `PATH`.
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
