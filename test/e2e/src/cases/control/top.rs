//! Cases about `pontoon top`, in a terminal of tmux.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{ControlScene, SOCKET};
use crate::case::{Case, Context};
use crate::process;

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("control.top", 30, top)]
}

/// Runs tmux with these arguments, and returns its output.
fn tmux(words: &[&str]) -> Result<String> {
    let mut command = Command::new("tmux");
    process::output(
        command
            .args(["-u", "-f", "/dev/null", "-S", "/run/tmux"])
            .args(words),
    )
}

/// Waits until the terminal shows all texts of `wanted`, and returns its contents.
fn until_seen(wanted: &[&str]) -> Result<String> {
    let mut screen = String::new();
    let what = format!("{wanted:?} on the screen");
    process::wait_until(&what, Duration::from_secs(10), || {
        screen = tmux(&["capture-pane", "-p"])?;
        Ok(wanted.iter().all(|text| screen.contains(text)))
    })
    .inspect_err(|_| eprintln!("{screen}"))?;
    Ok(screen)
}

/// Tests that `pontoon top` lists a flow while it exists, redraws when the terminal's size changes, reports that an
/// instance has exited, and exits on a key.
fn top(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    let remote = scene.server.to_string();
    let line = format!("$E2E guest tcp {remote} rr 100000000 >/dev/null 2>&1 &");
    scene.guest.send_line(&line)?;
    let mut command = context.program.command()?;
    command.args(["top", "--control", SOCKET]);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.display().to_string()).collect();
    let session = ["new-session", "-d", "-x", "80", "-y", "24", "--"];
    let words = words.iter().map(String::as_str);
    tmux(&session.into_iter().chain(words).collect::<Vec<_>>())?;

    let screen = until_seen(&[&remote, " open ", "1 flows", "q quit"])?;
    ensure!(
        screen.lines().count() == 24 && screen.lines().all(|line| line.chars().count() <= 80),
        "{screen}"
    );
    let row = screen
        .lines()
        .find(|line| line.contains(&remote))
        .unwrap_or_default();
    ensure!(row.starts_with("tcp "), "{screen}");
    tmux(&["send-keys", "a"])?;
    until_seen(&["by age"])?;
    tmux(&["resize-window", "-x", "100", "-y", "10"])?;
    let screen = until_seen(&[&remote, "by age"])?;
    ensure!(screen.lines().count() == 10, "{screen}");

    drop(scene);
    until_seen(&["cannot connect to /run/control", "; retrying", &remote])?;
    tmux(&["send-keys", "q"])?;
    process::wait_until("pontoon top has exited", Duration::from_secs(5), || {
        Ok(tmux(&["has-session"]).is_err())
    })?;
    Ok(())
}
