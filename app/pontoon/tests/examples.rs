//! Tests that run the examples as programs.

// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Output};

/// Runs an example with these arguments.
fn example(name: &str, arguments: &[&str]) -> Output {
    // Cargo builds the examples with the tests of the package, unless it runs this test only.
    let mut directories = std::env::current_exe().unwrap();
    directories.pop();
    let built = directories.with_file_name("examples").join(name);
    let mut command = match built.exists() {
        true => Command::new(built),
        false => {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["run", "--quiet", "--profile", "test", "--package", "pontoon"]);
            cargo.args(["--example", name, "--"]);
            cargo
        }
    };
    command.args(arguments).output().unwrap()
}

#[test]
fn backend_exchanges_frames() {
    let output = example("backend", &[]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn sandbox_refuses_what_is_not_allowed_and_prints_records() {
    let namespaces = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "true"])
        .output();
    if !namespaces.is_ok_and(|output| output.status.success()) {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: sandbox: namespaces cannot be created"
        );
        return;
    }
    let script = "curl -sS -m 5 http://192.0.2.77/; cat /etc/resolv.conf; exit 3";
    let output = example("sandbox", &["--allow", "192.0.2.1", "--", "sh", "-c", script]);
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stdout.starts_with("nameserver "), "{stdout}");
    for expected in [
        r#""type":"start""#,
        r#""type":"refused","protocol":"tcp""#,
        r#""remote":"192.0.2.77:80","reason":"unlisted""#,
        r#""type":"end""#,
    ] {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}
