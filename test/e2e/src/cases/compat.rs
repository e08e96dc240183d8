//! Cases about the command lines of other programs: `slirp4netns` as RootlessKit, Podman and User Mode Linux use it.

mod api_socket;
mod attach;
mod destinations;
mod life;
mod shell;

use anyhow::{Result, ensure};

use self::api_socket::api_socket;
use self::attach::{bess, configure_by_path, configure_by_pid, existing_tap, new_tap, tap_in_use};
use self::destinations::{destinations, no_loopback};
use self::life::{exit_fd, killed, twenty};
use super::expect;
use super::lifecycle::nothing_left;
use super::shell::Shell;
use crate::case::{Case, Context};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("compat.slirp4netns.existing-tap", 40, existing_tap),
        Case::new("compat.slirp4netns.existing-tap-in-use", 30, tap_in_use),
        Case::new("compat.slirp4netns.configure-by-pid", 30, configure_by_pid),
        Case::new("compat.slirp4netns.configure-by-path", 30, configure_by_path),
        Case::new("compat.slirp4netns.neither-tap-nor-configure", 30, new_tap),
        Case::new("compat.slirp4netns.api-socket", 40, api_socket),
        Case::new("compat.slirp4netns.exit-fd", 30, exit_fd),
        Case::new("compat.slirp4netns.killed", 30, killed),
        Case::new("compat.slirp4netns.destinations", 40, destinations),
        Case::new("compat.slirp4netns.disable-host-loopback", 40, no_loopback),
        Case::new("compat.slirp4netns.user-mode-linux", 30, bess),
        Case::new("compat.slirp4netns.twenty-at-once", 60, twenty),
        Case::new("compat.links", 30, links),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

/// Tests the links by which other programs execute Pontoon, and the parts of the help and the version that they search
/// for.
fn links(context: &Context) -> Result<()> {
    let mut shell = Shell::start(context)?;
    expect(&shell.ask("echo $($PONTOON compat)")?, "passt pasta slirp4netns")?;
    shell.run("mkdir /mnt/bin; $PONTOON compat install /mnt/bin >/dev/null")?;
    shell.run("$PONTOON compat install /mnt/bin >/dev/null")?;
    expect(
        &shell.ask("/mnt/bin/slirp4netns --version | head -1")?,
        "slirp4netns version 1.3.2",
    )?;
    let text = shell.ask("/mnt/bin/pasta --version | head -1")?;
    ensure!(text.starts_with("pasta 20"), "{text}");
    for word in [
        "--netns-type",
        "--enable-ipv6",
        "--cidr",
        "--disable-host-loopback",
        "--api-socket",
        "--enable-sandbox",
        "--enable-seccomp",
    ] {
        shell.run(&format!("/mnt/bin/slirp4netns --help | grep -q -e {word}"))?;
    }
    let text = shell.ask("echo $(PATH=/mnt/bin:$PATH slirp4netns --foo 2>&1 >/dev/null; echo $?)")?;
    expect(&text, "slirp4netns: unrecognized option '--foo' 1")?;
    let text = shell.ask("echo $(/mnt/bin/slirp4netns 99999999 tap0 2>&1; echo $?)")?;
    ensure!(
        text.starts_with("error: cannot open network namespace /proc/99999999/ns/net: ")
            && text.ends_with(" 1"),
        "{text}"
    );
    shell.run("ln -s /bin/true /mnt/other; ! $PONTOON compat install /mnt/missing 2>/dev/null")?;
    shell.run("$PONTOON compat remove /mnt/bin >/dev/null; [ -z \"$(ls /mnt/bin)\" ]")?;
    shell.run("ln -s /bin/true /mnt/bin/slirp4netns; ! $PONTOON compat install /mnt/bin 2>/dev/null")?;
    shell.run("$PONTOON compat remove /mnt/bin >/dev/null; [ -L /mnt/bin/slirp4netns ]")?;
    drop(shell);
    nothing_left()
}
