//! Checks of the systemd units: a clean system is booted by systemd-nspawn, and `services.sh` starts each unit in it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{Target, archives, check, output_of};
use crate::step;

const SCRIPT: &str = include_str!("services.sh");

/// The unit that runs the script when the system has booted.
const UNIT: &str = "[Service]\nType=oneshot\nExecStart=/bin/sh /check/services.sh\n";

/// Packages of the system, the oldest that is supported.
const SYSTEM: check::System = check::System {
    name: "services",
    suite: "bookworm",
    packages: "curl,dbus,dbus-user-session,iproute2,libpam-systemd,systemd,systemd-sysv,uidmap",
};

/// System calls of Landlock, which systemd-nspawn forbids by default.
const LANDLOCK: &str = "landlock_create_ruleset landlock_add_rule landlock_restrict_self";

const LIMIT: Duration = Duration::from_secs(5 * 60);

/// Starts the units of the .deb for `target`, in a system below `scratch`.
pub(super) fn run(output: &Path, target: &Target, scratch: &Path) -> Result<()> {
    let root = SYSTEM.unpack(scratch)?;
    let mut install = Command::new("dpkg-deb");
    install
        .arg("--extract")
        .arg(archives::deb_path(output, target))
        .arg(&root);
    output_of(install)?;
    let units = root.join("etc/systemd/system");
    let wanted = units.join("multi-user.target.wants");
    fs::create_dir_all(&wanted)?;
    fs::write(units.join("check.service"), UNIT)?;
    symlink("../check.service", wanted.join("check.service"))?;
    let inside = root.join("check");
    fs::create_dir_all(&inside)?;
    fs::write(inside.join("services.sh"), SCRIPT)?;
    let log = scratch.join("services.log");
    let mut boot = Command::new("systemd-nspawn");
    boot.args(["--quiet", "--register=no", "--keep-unit", "--private-network"])
        .arg("--capability=all")
        .arg(format!("--system-call-filter={LANDLOCK}"))
        .arg("--directory")
        .arg(&root)
        .arg("--boot")
        .env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1")
        .stdout(fs::File::create(&log)?)
        .stderr(fs::OpenOptions::new().append(true).open(&log)?);
    let booted = step::run("boot a system with the services", &mut boot, LIMIT)?;
    let printed = fs::read_to_string(inside.join("output")).unwrap_or_default();
    eprint!("{printed}");
    if !booted {
        bail!("systemd-nspawn failed: see {}", log.display());
    }
    let result = fs::read_to_string(inside.join("result")).context("a check has failed")?;
    ensure!(result.trim() == "passed", "a check has failed");
    Ok(())
}
