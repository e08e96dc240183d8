//! Programs that the tests execute, and the Debian packages that contain them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::step;

/// Pairs of program and Debian package that the tests need.
pub(crate) const NEEDED: &[(&str, &str)] = &[
    ("bwrap", "bubblewrap"),
    ("busybox", "busybox-static"),
    ("clang", "clang"),
    ("cpio", "cpio"),
    ("curl", "curl"),
    ("danted", "dante-server"),
    ("dhclient", "isc-dhcp-client"),
    ("dig", "bind9-dnsutils"),
    ("dropbear", "dropbear-bin"),
    ("ethtool", "ethtool"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("iperf3", "iperf3"),
    ("jq", "jq"),
    ("newuidmap", "uidmap"),
    ("nsenter", "util-linux"),
    ("openssl", "openssl"),
    ("ping", "iputils-ping"),
    ("python3", "python3"),
    ("pip3", "python3-pip"),
    ("pkg-config", "pkg-config"),
    ("nft", "nftables"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("script", "bsdutils"),
    ("setpriv", "util-linux"),
    ("smcrouted", "smcroute"),
    ("squid", "squid"),
    ("strace", "strace"),
    ("sysctl", "procps"),
    ("tcpdump", "tcpdump"),
    ("tmux", "tmux"),
    ("traceroute", "traceroute"),
    ("tshark", "tshark"),
    ("unshare", "util-linux"),
    ("update-ca-certificates", "ca-certificates"),
    ("useradd", "passwd"),
    ("valgrind", "valgrind"),
    ("wget", "wget"),
    ("xz", "xz-utils"),
];

/// The search path (`PATH`) of the end-to-end tests, the same for every user.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Installs the packages of `needed` whose programs are missing, and permits all users to open `/dev/net/tun`.
///
/// # Errors
///
/// Without root, if anything is missing: the message contains the command that root has to execute.
pub(crate) fn install(needed: &[(&'static str, &'static str)]) -> Result<()> {
    let missing = missing(needed);
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

fn missing(needed: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    let found = |program: &str| {
        PATH.split(':')
            .any(|directory| Path::new(directory).join(program).is_file())
    };
    needed
        .iter()
        .copied()
        .filter(|(program, _)| !found(program))
        .collect()
}

/// Creates the directory `at` with an apt configuration of its own, `apt.conf`, for `kinds` (`deb`, `deb-src`) of
/// Debian's packages of `suites`. This machine's apt configuration is not changed.
pub(crate) fn configure_apt(at: &Path, suites: &[&str], kinds: &[&str]) -> Result<()> {
    std::fs::create_dir_all(at.join("lists/partial"))?;
    std::fs::create_dir_all(at.join("cache/archives/partial"))?;
    let mut sources = String::new();
    for suite in suites {
        for kind in kinds {
            sources.push_str(&format!(
                "{kind} [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
                 http://deb.debian.org/debian {suite} main\n"
            ));
        }
    }
    std::fs::write(at.join("sources.list"), sources)?;
    let place = at.display();
    let configuration = format!(
        "Dir::Etc::sourcelist \"{place}/sources.list\"; Dir::Etc::sourceparts \"-\"; \
         Dir::State::lists \"{place}/lists\"; Dir::Cache \"{place}/cache\"; APT::Sandbox::User \"root\";"
    );
    Ok(std::fs::write(at.join("apt.conf"), configuration)?)
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
