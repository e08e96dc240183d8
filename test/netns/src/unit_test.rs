//! Runs unit tests in a network namespace of their own. Errors make the test fail.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::Command;

const INSIDE: &str = "PONTOON_TEST_INSIDE";

/// Runs the test function `test`, whose full name is `name`, by starting this test program again as root of a new
/// user and network namespace. Prints the reason if namespaces cannot be created.
pub fn run(name: &str, test: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let namespaces = if rustix::process::geteuid().is_root() {
        "-n"
    } else {
        "-Urn"
    };
    let probe = Command::new("unshare").args([namespaces, "true"]).output();
    match probe {
        Ok(output) if output.status.success() => {}
        Ok(output) => return skipped(name, String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => return skipped(name, &format!("cannot run unshare: {error}")),
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return skipped(name, "there is no /dev/net/tun");
    }
    let output = Command::new("unshare")
        .arg(namespaces)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    // The test harness captures this output unless `--nocapture` is given.
    eprint!("{text}");
}

/// Prints that a test was skipped, directly to the process's standard error, which the test harness does not capture.
pub fn skipped(name: &str, why: &str) {
    let _ = std::io::stderr().write_all(format!("SKIPPED: {name}: {why}\n").as_bytes());
}

/// Runs each of `lines` as a command of ip(8), and panics if one fails.
#[track_caller]
pub fn ip(lines: &str) {
    crate::ip(lines).unwrap();
}

/// Writes a sysctl of the current network namespace, and panics on an error.
#[track_caller]
pub fn sysctl(path: &str, value: &str) {
    crate::sysctl(path, value).unwrap();
}
