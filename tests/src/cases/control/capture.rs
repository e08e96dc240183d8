//! Captures, as tcpdump reads them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::{SOCKET, Scene};
use crate::case::{Case, Context, Family};
use crate::cases::{expect, tcp_server, tmpfs, workers};
use crate::network::Network;
use crate::process;

const FILE: &str = "/run/capture.pcapng";

pub(super) fn cases() -> Vec<Case> {
    let mut by_several = Case::new("control.capture.workers", 30, started_and_stopped);
    by_several.options = workers::OPTIONS.to_vec();
    vec![
        Case::new("control.capture", 30, started_and_stopped),
        by_several,
        Case::new("control.capture-from-the-start", 30, from_the_start),
        Case::new("control.capture-limits", 30, limits),
        Case::new("control.capture-engine-killed", 30, engine_killed),
        Case::new("control.capture-on-a-full-disk", 30, full_disk),
    ]
}

/// As many frames are in the file as passed, as both we and tcpdump count them, and data goes on meanwhile.
fn started_and_stopped(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context)?;
    for round in 0..3 {
        let before = passed(&scene)?;
        expect(
            &scene.ctl(&["capture", "start", FILE])?,
            &format!("capturing into {FILE}"),
        )?;
        let begun = passed(&scene)?;
        ensure!(
            scene.ctl(&["capture", "start", "/run/other"]).is_err(),
            "two at a time"
        );
        let line = format!(
            "$E2E guest tcp {0} put 0 1 3000000 >/dev/null && $E2E guest tcp {0} connects 50 >/dev/null && echo done",
            scene.server
        );
        expect(&scene.guest.ask(&line)?, "done")?;
        let ending = passed(&scene)?;
        let ended = stop(&scene)?;
        let after = passed(&scene)?;
        let frames = number(&ended, "frames");
        let dropped = number(&ended, "dropped");
        eprintln!("round {round}: {ended}");
        ensure!(dropped == 0, "{dropped} frames were dropped");
        ensure!(
            (ending - begun..=after - before).contains(&frames),
            "{frames} frames instead of {} to {}",
            ending - begun,
            after - before
        );
        ensure!(fs::metadata(FILE)?.len() == number(&ended, "bytes"));
        ensure!(count(&[])? == frames, "tcpdump counts {}", count(&[])?);
        // Of 51 connections and their ends, both ways.
        ensure!(count(&["tcp[tcpflags] == tcp-syn"])? == 51);
        ensure!(count(&["tcp[tcpflags] == tcp-syn|tcp-ack"])? == 51);
        ensure!(scene.ctl(&["capture", "stop"]).is_err(), "stopped twice");
    }
    Ok(())
}

/// A file system without room ends the capture, which says so, and nobody waits for it.
fn full_disk(context: &Context) -> Result<()> {
    use rustix::mount::{MountFlags, mount};
    const FULL: &str = "/mnt/capture.pcapng";
    mount(
        "tmpfs",
        "/mnt",
        "tmpfs",
        MountFlags::empty(),
        c"mode=1777,size=64k",
    )?;
    let mut scene = Scene::new(context)?;
    scene.ctl(&["capture", "start", FULL])?;
    let line = format!(
        "$E2E guest tcp {} put 0 1 30000000 >/dev/null && echo done",
        scene.server
    );
    expect(&scene.guest.ask(&line)?, "done")?;
    process::wait_until("the capture has ended", Duration::from_secs(5), || {
        Ok(shown()?["running"] == false)
    })?;
    let ended = shown()?;
    eprintln!("{ended}");
    let why = ended["ended"].as_str().unwrap_or_default();
    ensure!(why.starts_with("cannot write: No space left"), "{ended}");
    ensure!(fs::metadata(FULL)?.len() <= 64 << 10, "the file is too large");
    ensure!(scene.reaches()?, "the server is not reached");
    Ok(())
}

/// What the guest does first is in it, and the file is whole when the program has ended.
fn from_the_start(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let server = tcp_server(&network, Family::V4)?;
    let run = network.run().options(["--pcap", &format!("{FILE},snap=60")]);
    run.shell(&format!("$E2E guest tcp {server} peer >/dev/null"))
        .text()?;
    for flags in ["tcp-syn", "tcp-syn|tcp-ack"] {
        let filter = format!("tcp[tcpflags] == {flags}");
        ensure!(count(&[&filter])? == 1, "{flags}: {}", count(&[&filter])?);
    }
    ensure!(count(&["greater 1"])? == count(&[])?, "frames without a length");
    Ok(())
}

/// It ends by itself where it was told to, and says so.
fn limits(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context)?;
    let line = format!(
        "$E2E guest tcp {} put 0 1 30000000 >/dev/null && echo done",
        scene.server
    );
    for (limit, why) in [
        ("size=20k", "the file was to grow no larger"),
        ("time=300ms", "it was to take no longer"),
    ] {
        scene.ctl(&["capture", "start", &format!("{FILE},snap=200,{limit}")])?;
        expect(&scene.guest.ask(&line)?, "done")?;
        process::wait_until("the capture has ended", Duration::from_secs(5), || {
            Ok(shown()?["running"] == false)
        })?;
        let ended = shown()?;
        ensure!(ended["ended"] == why, "{ended}");
        ensure!(count(&[])? == number(&ended, "frames"), "{ended}");
        ensure!(
            limit != "size=20k" || fs::metadata(FILE)?.len() <= 20_000,
            "the file is too large"
        );
    }
    ensure!(scene.ctl(&["capture", "start", "/dev/null"]).is_err());
    ensure!(scene.ctl(&["capture", "start", "/none/file"]).is_err());
    ensure!(scene.reaches()?, "the server is not reached");
    Ok(())
}

/// The capture ends with the engine, which is told, and another one may begin.
fn engine_killed(context: &Context) -> Result<()> {
    let mut scene = Scene::new(context)?;
    scene.ctl(&["capture", "start", FILE])?;
    context.program.engine()?.signal(Signal::KILL)?;
    process::wait_until("the capture has ended", Duration::from_secs(5), || {
        Ok(shown()?["ended"] == "the engine died")
    })?;
    scene.ctl(&["capture", "start", FILE])?;
    ensure!(scene.reaches()?, "the server is not reached");
    let frames = number(&stop(&scene)?, "frames");
    ensure!(frames > 3 && count(&[])? == frames, "{frames} frames");
    Ok(())
}

/// Frames that passed, both ways.
fn passed(scene: &Scene<'_>) -> Result<u64> {
    let stats: Value = serde_json::from_str(&scene.ctl(&["stats", "--json"])?)?;
    let counters = &stats["total"]["counters"];
    Ok(number(counters, "frames_up") + number(counters, "frames_down"))
}

fn stop(scene: &Scene<'_>) -> Result<Value> {
    Ok(serde_json::from_str(&scene.ctl(&["capture", "stop", "--json"])?)?)
}

fn shown() -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "--fail",
        "--unix-socket",
        SOCKET,
        "http://pontoon/v1/capture",
    ]);
    Ok(serde_json::from_str(&process::output(&mut curl)?)?)
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_default()
}

/// Frames that pass a filter, as tcpdump reads the file, which it must not find fault with.
fn count(filter: &[&str]) -> Result<u64> {
    // Whom it takes for root it wants to be somebody else, and a namespace may have nobody else.
    let mut tcpdump = Command::new("unshare");
    tcpdump.args(["--user", "--map-user=1000", "--map-group=1000", "tcpdump"]);
    let output = tcpdump.args(["-n", "-t", "-r", FILE]).args(filter).output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    let fine = talk.lines().all(|line| line.starts_with("reading from file "));
    ensure!(output.status.success() && fine, "tcpdump: {talk}");
    let frames = output.stdout.split(|byte| *byte == b'\n').count() - 1;
    Ok(frames as u64)
}
