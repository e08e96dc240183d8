//! Programs that the tests execute, and the Debian packages that contain them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::step;

/// Pairs of program and Debian package.
const NEEDED: &[(&str, &str)] = &[
    ("bwrap", "bubblewrap"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("curl", "curl"),
    ("dhclient", "isc-dhcp-client"),
    ("dig", "bind9-dnsutils"),
    ("ethtool", "ethtool"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("iperf3", "iperf3"),
    ("newuidmap", "uidmap"),
    ("nsenter", "util-linux"),
    ("openssl", "openssl"),
    ("ping", "iputils-ping"),
    ("pip3", "python3-pip"),
    ("nft", "nftables"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("script", "bsdutils"),
    ("setpriv", "util-linux"),
    ("smcrouted", "smcroute"),
    ("strace", "strace"),
    ("sysctl", "procps"),
    ("tcpdump", "tcpdump"),
    ("tmux", "tmux"),
    ("traceroute", "traceroute"),
    ("tshark", "tshark"),
    ("unshare", "util-linux"),
    ("useradd", "passwd"),
    ("xz", "xz-utils"),
];

/// The search path (`PATH`) of the end-to-end tests, the same for every user.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Installs missing packages, and permits all users to open `/dev/net/tun`.
///
/// # Errors
///
/// Without root, if anything is missing: the message contains the command that root has to execute.
pub(crate) fn install() -> Result<()> {
    let missing = missing();
    if !missing.is_empty() {
        let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
        packages.sort_unstable();
        packages.dedup();
        if !rustix::process::geteuid().is_root() {
            for (program, package) in &missing {
                eprintln!("missing: {program} (Debian package {package})");
            }
            bail!(
                "programs are missing (try, as root: apt-get install {})",
                packages.join(" ")
            );
        }
        apt_get(&["update"])?;
        apt_get(
            &[
                &["install", "--yes", "--no-install-recommends"],
                packages.as_slice(),
            ]
            .concat(),
        )?;
    }
    open_tun()
}

fn missing() -> Vec<(&'static str, &'static str)> {
    let found = |program: &str| {
        PATH.split(':')
            .any(|directory| Path::new(directory).join(program).is_file())
    };
    NEEDED
        .iter()
        .copied()
        .filter(|(program, _)| !found(program))
        .collect()
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    let name = format!("apt-get {}", arguments[0]);
    if !step::run(&name, &mut command, Duration::from_secs(300))? {
        bail!("{name} failed");
    }
    Ok(())
}

/// Permits every user to open `/dev/net/tun`, as udev's rules do. Without udev the device is accessible to root only.
fn open_tun() -> Result<()> {
    let tun = Path::new("/dev/net/tun");
    let mode = std::fs::metadata(tun).map_or(0, |tun| tun.permissions().mode() & 0o777);
    if mode & 0o006 == 0o006 {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "{} cannot be opened by all users, mode {mode:o} (try, as root: chmod 666 {})",
            tun.display(),
            tun.display()
        );
    }
    eprintln!("chmod 666 {}", tun.display());
    std::fs::set_permissions(tun, PermissionsExt::from_mode(0o666))?;
    Ok(())
}
