//! libvirt and QEMU, which start passt for a virtual machine: Debian packages with everything that they depend on, as a root
//! directory of the cases, and the kernel of the machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Result;

use crate::clients::programs::{SUITE, once};
use crate::debian::{DEBIAN_12, Debian};
use crate::{kernel, target};

/// Packages that are unpacked with all packages that they depend on: libvirt, QEMU, and what the scripts execute.
const UNPACKED: &[&str] = &[
    "bash",
    "coreutils",
    "curl",
    "dash",
    "findutils",
    "gawk",
    "grep",
    "libvirt-clients",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "mount",
    "procps",
    "qemu-system-x86",
    "sed",
    "socat",
    "util-linux",
];

/// Downloads what the cache directory lacks. Returns the versions of the packages.
pub(crate) fn install(cache: &Path) -> Result<String> {
    let directory = format!("machine-{SUITE}");
    let debian = Debian {
        suite: SUITE,
        ..DEBIAN_12
    };
    let root = cache.join(&directory);
    debian.unpack(&root, UNPACKED)?;
    once(cache, &directory, "machine", |_| Ok(()))?;
    link_kernel(cache)?;
    Ok(fs::read_to_string(root.join("versions"))?)
}

/// Downloads the kernel of the machines unless it exists, and makes the link `machine-kernel` to its directory.
pub(crate) fn link_kernel(cache: &Path) -> Result<()> {
    // The cases see the cache directory at another path.
    let kernel = kernel::old(&target())?.canonicalize()?;
    let link = cache.join("machine-kernel");
    let _ = fs::remove_file(&link);
    Ok(symlink(kernel, link)?)
}
