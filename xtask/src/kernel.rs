//! The kernel of the guests that QEMU runs: Debian's, unpacked and not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{need, step};

/// Depends on the newest kernel for virtual machines.
const PACKAGE: &str = "linux-image-cloud-amd64";

const DOWNLOAD: Duration = Duration::from_secs(180);
const UNPACK: Duration = Duration::from_secs(60);

/// Where the kernel is, below the build's directory: `vmlinuz`, and its modules for virtio and BBR.
pub(crate) fn directory(target: &Path) -> PathBuf {
    target.join("kernel")
}

/// Fetches the kernel unless it is there.
pub(crate) fn fetch(target: &Path) -> Result<()> {
    let kernel = directory(target);
    if kernel.join("vmlinuz").exists() {
        return Ok(());
    }
    need::update()?;
    let scratch = target.join("kernel-package");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let mut download = Command::new("apt-get");
    download.args(["download", &newest()?]).current_dir(&scratch);
    run("fetch the guests' kernel", &mut download, DOWNLOAD)?;
    let mut unpack = Command::new("sh");
    unpack
        .args(["-c", "exec dpkg-deb --extract ./*.deb ."])
        .current_dir(&scratch);
    run("unpack the guests' kernel", &mut unpack, UNPACK)?;

    let _ = fs::remove_dir_all(&kernel);
    let chosen = target.join("kernel-chosen");
    let _ = fs::remove_dir_all(&chosen);
    fs::create_dir(&chosen)?;
    choose(&scratch, &chosen)?;
    for file in ["vmlinuz", "virtio_net.ko"] {
        ensure!(chosen.join(file).exists(), "{PACKAGE} has no {file}");
    }
    fs::rename(&chosen, &kernel)?;
    Ok(fs::remove_dir_all(&scratch)?)
}

/// Copies kernel and modules out of an unpacked package.
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

/// The package that [`PACKAGE`] stands for.
fn newest() -> Result<String> {
    let output = Command::new("apt-cache")
        .args(["depends", PACKAGE])
        .output()
        .context("cannot run apt-cache")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let name = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let name = name.with_context(|| format!("no package {PACKAGE} (try, as root: apt-get update)"))?;
    Ok(format!("linux-image-{name}"))
}

fn run(name: &str, command: &mut Command, deadline: Duration) -> Result<()> {
    if !step::run(name, command, deadline)? {
        bail!("{name}: failed");
    }
    Ok(())
}
