//! Tests that need a network of their own.

use std::io::Write;
use std::process::Command;

const INSIDE: &str = "PONTOON_TEST_INSIDE";

/// Runs `test`, which is the test of that full name, by running this program once more in a network namespace of its
/// own, where the caller is root. Where that cannot be, says so and why.
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
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    // For whoever asks the harness to show what passing tests say.
    eprint!("{said}");
}

/// Says past the test harness, which keeps what passing tests print to itself, that a test was not run.
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

/// Sets a kernel parameter of this namespace.
#[track_caller]
pub fn sysctl(path: &str, value: &str) {
    std::fs::write(format!("/proc/sys/{path}"), value).unwrap();
}
