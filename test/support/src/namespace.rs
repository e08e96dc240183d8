//! Tests in a network namespace.

use std::io::Write;
use std::process::Command;

const INSIDE: &str = "PONTOON_TEST_INSIDE";

/// Runs the test function `test`, whose full name is `name`, by starting this program again in a new network namespace,
/// as root there. Prints why if the test cannot run.
pub fn run(name: &str, test: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let own = if rustix::process::geteuid().is_root() {
        "-n"
    } else {
        "-Urn"
    };
    let able = Command::new("unshare").args([own, "true"]).output();
    match able {
        Ok(output) if output.status.success() => {}
        Ok(output) => return skipped(name, String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => return skipped(name, &format!("cannot run unshare: {error}")),
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return skipped(name, "there is no /dev/net/tun");
    }
    let output = Command::new("unshare")
        .arg(own)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}"
    );
    // Shown with `--nocapture`.
    eprint!("{printed}");
}

/// Reports a skipped test on standard error, which the test harness does not capture.
pub fn skipped(name: &str, why: &str) {
    let _ = std::io::stderr().write_all(format!("SKIPPED: {name}: {why}\n").as_bytes());
}

/// Runs ip(8).
#[track_caller]
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Sets a kernel parameter of the current namespace.
#[track_caller]
pub fn sysctl(path: &str, value: &str) {
    std::fs::write(format!("/proc/sys/{path}"), value).unwrap();
}
