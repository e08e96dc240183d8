//! Cases about the end of `slirp4netns`, and what it leaves.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::case::{Context, Family};
use crate::cases::lifecycle::nothing_left;
use crate::cases::shell::Shell;
use crate::cases::{expect, tcp_server};
use crate::machine::DIRECTORY;
use crate::network::Network;
use crate::process;

/// Tests that the program exits with status 0 when the other end of the exit descriptor is closed.
pub(super) fn exit_fd(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.run("mkfifo /mnt/exit; { sleep 1000 >/mnt/exit & }; keeper=$!")?;
    shell.slirp("-c -e 4 -a /mnt/api $holder tap0 4</mnt/exit")?;
    expect(
        &shell.inside(&format!("$E2E guest tcp {server} connects 3"))?,
        "ok",
    )?;
    expect(&shell.ask("kill $keeper; wait $slirp; echo $?")?, "0")?;
    ensure!(!Path::new("/mnt/api").exists(), "the socket is left");
    shell.finish()
}

/// Tests that only the file of the socket is left after SIGKILL, which RootlessKit sends when it ends.
pub(super) fn killed(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.tap()?;
    for _ in 0..2 {
        // The second instance replaces the socket file of the first.
        shell.slirp("-a /mnt/api $holder tap0")?;
        expect(&shell.api(r#"{"execute":"list_hostfwd"}"#)?, r#"{"entries":[]}"#)?;
        let request =
            r#"{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_port":8080,"guest_port":80}}"#;
        expect(&shell.api(request)?, r#"{"return":{"id":1}}"#)?;
        shell.end("KILL")?;
        process::wait_until(
            "no process of the program is left",
            Duration::from_secs(2),
            || Ok(context.program.processes().is_empty()),
        )?;
        ensure!(Path::new("/mnt/api").exists(), "the socket's file is gone");
        ensure!(
            UnixStream::connect("/mnt/api").is_err(),
            "a process listens at the socket"
        );
        // The kernel closes sockets that were in a message when the process was killed by a worker of its own.
        process::wait_until("the published port is free", Duration::from_secs(2), || {
            Ok(TcpListener::bind("0.0.0.0:8080").is_ok())
        })?;
    }
    shell.finish()
}

/// Tests that twenty instances can start at the same time, and that they leave neither processes nor socket files.
pub(super) fn twenty(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    for _ in 0..20 {
        shell.holder()?;
        shell.run("holders=\"$holders $holder\"")?;
    }
    shell.run("mkfifo /mnt/ready; exec 8<>/mnt/ready")?;
    shell.run(
        "for holder in $holders; do $SLIRP -c -r 3 -a /mnt/api$holder $holder tap0 3>&8 >/dev/null & done",
    )?;
    for _ in 0..20 {
        expect(&shell.ask("read -r -u 8; echo $REPLY")?, "1")?;
    }
    for place in 1..=20 {
        shell.run(&format!("set -- $holders; holder=${{{place}}}"))?;
        expect(
            &shell.inside(&format!("$E2E guest tcp {server} connects 1"))?,
            "ok",
        )?;
    }
    // Each instance exits when its namespace is removed.
    shell.run("kill $holders; wait")?;
    let left = std::fs::read_dir(DIRECTORY)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let sockets: Vec<_> = left.filter(|name| name.starts_with("api")).collect();
    ensure!(sockets.is_empty(), "left: {sockets:?}");
    drop(shell);
    nothing_left()
}
