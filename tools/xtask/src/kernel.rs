//! Kernels of the machines that QEMU runs: Debian's, unpacked and not installed. Nothing of this machine's apt is touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::step;

/// A package of Debian's that depends on the newest kernel of its kind.
struct Package {
    name: &'static str,
    suite: &'static str,
}

/// Made for virtual machines.
const GUESTS: Package = Package {
    name: "linux-image-cloud-amd64",
    suite: "bookworm",
};

/// Has vhost-net, peeks at an offset of a TCP stream and takes segmented datagrams: what the tests in it are about.
const RECENT: Package = Package {
    name: "linux-image-amd64",
    suite: "bookworm-backports",
};

const FETCH: Duration = Duration::from_secs(300);

/// The directory of the guests' kernel, below the build's directory: `vmlinuz`, and its modules for virtio and BBR.
pub(crate) fn directory(target: &Path) -> PathBuf {
    target.join("kernel")
}

/// Fetches the guests' kernel unless it is there.
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

/// A recent kernel with all its modules, as Debian packs them, fetched unless it is there.
pub(crate) fn recent(target: &Path) -> Result<PathBuf> {
    let directory = target.join("kernel-vhost-net");
    once(&RECENT, &directory, |unpacked, all| {
        Ok(fs::rename(unpacked, all)?)
    })?;
    Ok(directory)
}

/// Unpacks the kernel of `package` and has `keep` make `directory` of that: whole, or not at all.
fn once(package: &Package, directory: &Path, keep: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<()> {
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

/// Fetches `package` to `at` and unpacks it there, in `unpacked`.
fn unpack(package: &Package, at: &Path) -> Result<()> {
    let Package { name, suite } = package;
    fs::create_dir_all(at.join("lists/partial"))?;
    fs::create_dir_all(at.join("cache/archives/partial"))?;
    fs::write(
        at.join("sources.list"),
        format!(
            "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {suite} main\n"
        ),
    )?;
    let place = at.display();
    fs::write(
        at.join("apt.conf"),
        format!(
            "Dir::Etc::sourcelist \"{place}/sources.list\"; Dir::Etc::sourceparts \"-\"; \
             Dir::State::lists \"{place}/lists\"; Dir::Cache \"{place}/cache\"; APT::Sandbox::User \"root\";"
        ),
    )?;
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
