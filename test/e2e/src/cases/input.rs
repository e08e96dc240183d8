//! Cases about invalid options: one line that describes the error, an exit status other than 0, and no process left.

use std::net::TcpListener;
use std::path::Path;

use anyhow::{Result, ensure};
use pontoon_netns::ip;

use crate::case::{Caller, Case, Context};
use crate::network::Network;
use crate::process;

pub(super) fn cases() -> Vec<Case> {
    // Name of the case, options, and a text that the error line must contain.
    let lines: [(&str, &'static [&'static str], &'static str); 12] = [
        ("input.unknown-option", &["--no-such-option"], "--no-such-option"),
        ("input.mtu-too-small", &["--mtu", "10"], "10"),
        ("input.mtu-too-large", &["--mtu", "70000"], "70000"),
        ("input.not-a-subnet", &["--ipv4", "10.0.0.0/33"], "10.0.0.0/33"),
        ("input.not-a-port", &["--publish", "99999:1"], "99999"),
        ("input.not-a-range", &["--publish", "10-5:10-5"], "10-5"),
        ("input.ranges-differ", &["--publish", "10-20:30-35"], "10-20"),
        (
            "input.not-a-resolver",
            &["--dns", "not-an-address"],
            "not-an-address",
        ),
        ("input.not-a-pacing", &["--io", "never"], "never"),
        ("input.no-such-process", &["--attach", "4194000"], "4194000"),
        (
            "input.no-such-namespace",
            &["--attach", "/no/such/file"],
            "/no/such/file",
        ),
        ("input.not-a-namespace", &["--attach", "/dev/null"], "/dev/null"),
    ];
    let mut cases: Vec<Case> = lines
        .into_iter()
        .map(|(name, options, names)| Case::new(name, 20, move |context| refused(context, options, names)))
        .collect();
    cases.push(Case::new("input.taken-port", 20, taken_port));
    cases.push(Case::new("input.no-tun-device", 20, no_tun));
    cases.push(
        Case::new("input.user-namespaces-disabled", 20, no_user_namespaces)
            .caller(Caller::User("root needs no user namespace")),
    );
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// Tests that the program refuses these options with one line that contains `names`.
fn refused(context: &Context, options: &[&str], names: &str) -> Result<()> {
    let network = Network::new(context)?;
    let attach = options.contains(&"--attach");
    let mut command = context.program.command()?;
    command.arg("run").args(options);
    if !attach {
        command.args(["--", "true"]);
    }
    let output = command.output()?;
    drop(network);
    let talk = String::from_utf8_lossy(&output.stderr);
    eprint!("{talk}");
    ensure!(!output.status.success(), "the program accepted the options");
    ensure!(output.status.code().is_some(), "{}", output.status);
    ensure!(
        output.stdout.is_empty(),
        "talk on standard output: {:?}",
        String::from_utf8_lossy(&output.stdout)
    );
    ensure!(talk.lines().count() == 1, "the error is not one line:\n{talk}");
    ensure!(
        talk.contains(names),
        "the error does not contain {names}:\n{talk}"
    );
    ensure!(
        process::running().is_empty(),
        "processes are left: {:?}",
        process::running()
    );
    Ok(())
}

fn taken_port(context: &Context) -> Result<()> {
    ip("link set lo up")?;
    let _taken = TcpListener::bind("0.0.0.0:8080")?;
    refused(context, &["--publish", "8080:80"], "8080")
}

fn no_tun(context: &Context) -> Result<()> {
    super::tmpfs(Path::new("/dev/net"))?;
    refused(context, &[], "/dev/net/tun")
}

/// Tests a user who may not create user namespaces. The limit of one namespace is used by the test itself, to become
/// an ordinary user.
fn no_user_namespaces(context: &Context) -> Result<()> {
    std::fs::write("/proc/sys/user/max_user_namespaces", "1")?;
    refused(context, &[], "max_user_namespaces")
}
