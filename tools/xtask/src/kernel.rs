//! `cargo xtask kernel`: downloads and unpacks Debian's kernels for the virtual machines of the tests. They are not
//! installed, and this machine's apt configuration is not changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::debian::{DEBIAN_12, DEBIAN_12_AARCH64, Debian};
use crate::step;

/// A Debian package that depends on the newest kernel of its kind.
struct DebianPackage {
    name: &'static str,
    debian: Debian,
}

/// The kernel for virtual machines (`cloud`), which the tests' guests boot.
const GUESTS: DebianPackage = DebianPackage {
    name: "linux-image-cloud-amd64",
    debian: DEBIAN_12,
};

/// A recent kernel with vhost-net, SO_PEEK_OFF for TCP and UDP segmentation, for tests of these features.
const RECENT: DebianPackage = DebianPackage {
    name: "linux-image-amd64",
    debian: Debian {
        suite: "bookworm-backports",
        ..DEBIAN_12
    },
};

/// The kernel of Debian 12, Linux 6.1, which has no SO_PEEK_OFF for TCP.
const OLD: DebianPackage = DebianPackage {
    name: "linux-image-amd64",
    debian: DEBIAN_12,
};

/// The kernel of Debian 12 for aarch64.
const OLD_AARCH64: DebianPackage = DebianPackage {
    name: "linux-image-arm64",
    debian: DEBIAN_12_AARCH64,
};

const FETCH: Duration = Duration::from_secs(300);

/// Returns the directory of the guests' kernel in the build directory: `vmlinuz`, and modules for virtio and BBR.
pub(crate) fn directory(target: &Path) -> PathBuf {
    target.join("kernel")
}

/// Downloads the guests' kernel unless its directory exists.
pub(crate) fn fetch(target: &Path) -> Result<()> {
    once(&GUESTS, &directory(target), |unpacked, chosen| {
        fs::create_dir(chosen)?;
        choose(unpacked, chosen)?;
        for file in ["vmlinuz", "virtio_net.ko"] {
            ensure!(chosen.join(file).exists(), "{} has no {file}", GUESTS.name);
        }
        Ok(())
    })
}

/// Downloads a recent kernel with all its modules unless its directory exists. Returns the directory.
pub(crate) fn recent(target: &Path) -> Result<PathBuf> {
    whole(&RECENT, target.join("kernel-vhost-net"))
}

/// Downloads the kernel of Debian 12 with all its modules unless its directory exists. Returns the directory.
pub(crate) fn old(target: &Path) -> Result<PathBuf> {
    whole(&OLD, target.join("kernel-debian-12"))
}

/// Downloads the kernel of Debian 12 for aarch64 with all its modules unless its directory exists. Returns the directory.
pub(crate) fn old_aarch64(target: &Path) -> Result<PathBuf> {
    whole(&OLD_AARCH64, target.join("kernel-debian-12-aarch64"))
}

fn whole(package: &DebianPackage, directory: PathBuf) -> Result<PathBuf> {
    once(package, &directory, |unpacked, all| {
        Ok(fs::rename(unpacked, all)?)
    })?;
    Ok(directory)
}

/// Downloads and unpacks the kernel of `package`, and calls `keep` to fill `directory`, which is created completely
/// or not at all.
fn once(
    package: &DebianPackage,
    directory: &Path,
    keep: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let scratch = directory.with_extension("download");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    unpack(package, &scratch.canonicalize()?)?;
    let kept = scratch.join("kept");
    keep(&scratch.join("unpacked"), &kept)?;
    fs::rename(kept, directory)?;
    Ok(fs::remove_dir_all(&scratch)?)
}

/// Downloads `package` into the directory `at`, and unpacks it in `at/unpacked`.
fn unpack(package: &DebianPackage, at: &Path) -> Result<()> {
    let DebianPackage { name, debian } = package;
    let suite = debian.suite;
    debian.configure(at)?;
    let mut fetch = Command::new("sh");
    fetch
        .args([
            "-ec",
            "apt-get update
            package=$(apt-cache depends \"$0\" | sed -n 's/^ *Depends: \\(linux-image-.*\\)/\\1/p')
            apt-get download \"$package\"
            dpkg-deb --extract \"$package\"_*.deb unpacked",
            name,
        ])
        .env("APT_CONFIG", "apt.conf")
        .current_dir(at);
    if !step::run(&format!("fetch {name} of {suite}"), &mut fetch, FETCH)? {
        bail!("cannot fetch {name} of {suite}");
    }
    Ok(())
}

/// Copies the kernel and its modules for virtio and BBR from an unpacked package.
fn choose(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            choose(&entry.path(), to)?;
            continue;
        }
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let wanted =
            |module: &str| module.starts_with("virtio") || module.contains("failover") || module == "tcp_bbr";
        if name.starts_with("vmlinuz-") {
            fs::copy(entry.path(), to.join("vmlinuz"))?;
        } else if name.strip_suffix(".ko").is_some_and(wanted) {
            fs::copy(entry.path(), to.join(name))?;
        }
    }
    Ok(())
}
