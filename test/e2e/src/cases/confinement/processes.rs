//! Cases about processes of the host, which the command must not signal, and about its own signals.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::case::Context;
use crate::cases::lifecycle::jobs::words;
use crate::cases::{expect, tmpfs};
use crate::network::Network;

/// Commands that kill, stop and renice their process group. The second is continued by a process of another group.
const SIGNALLING: [&str; 3] = [
    "kill -KILL 0",
    r#"(setsid sh -c "sleep 0.5; kill -CONT -1" &); sleep 0.2; kill -STOP 0"#,
    "renice -n 19 -g 0",
];

/// Tests that the command cannot signal or renice a process of the caller's process group, with and without a terminal.
pub(super) fn process_group(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    for signalling in SIGNALLING {
        let line = format!(
            "sleep 1000 & {} -- sh -c '{signalling}' > /dev/null; cut -d ' ' -f 3,19 /proc/$!/stat; kill -KILL $!",
            words(context)?
        );
        for caller in [
            Command::new("setsid").args(["--wait", "sh", "-c", &line]),
            Command::new("script").args(["-qec", &line, "/dev/null"]),
        ] {
            let output = caller.stdin(Stdio::null()).output()?;
            expect(String::from_utf8_lossy(&output.stdout).trim_end(), "S 0")
                .with_context(|| format!("{signalling} by {caller:?}"))?;
        }
    }
    Ok(())
}

/// Tests that the command cannot make processes of the host visible by removing mounts.
pub(super) fn host_proc(context: &Context) -> Result<()> {
    const SECONDS: &str = "98765";
    let network = Network::new(context)?;
    let mut process = Command::new("sleep").arg(SECONDS).spawn()?;
    let text = network.run().guest(["uncover-proc", SECONDS]).text();
    process.kill()?;
    process.wait()?;
    expect(&text?, "covered")?;
    // Programs inside can make a PID namespace, and mount its proc.
    let inner = "unshare --user --map-root-user --pid --fork --mount-proc sh -c 'echo /proc/[0-9]*'";
    expect(&network.run().shell(inner).text()?, "/proc/1")
}

/// Tests that the command ignores the same signals with and without options for which the program ignores one.
pub(super) fn signal_dispositions(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let ignored = |options: &[&str]| {
        let run = network.run().options(options);
        run.command(["grep", "-E", "SigIgn|SigBlk", "/proc/self/status"])
            .text()
    };
    let plain = ignored(&[])?;
    for options in [["--log-file", "/run/log"], ["--audit", "/run/audit"]] {
        let text = ignored(&options)?;
        ensure!(text == plain, "{options:?}: {text} instead of {plain}");
    }
    Ok(())
}
