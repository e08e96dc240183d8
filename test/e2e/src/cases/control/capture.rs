//! Cases about captures of frames (`pontoon ctl capture`), which tcpdump and tshark read.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::{ControlScene, SOCKET};
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
        Case::new("control.capture-bulk", 30, bulk),
        Case::new("control.capture-engine-killed", 30, engine_killed),
        Case::new("control.capture-on-a-full-disk", 30, full_disk),
        Case::new(
            "control.capture-from-the-start-engine-killed",
            30,
            engine_killed_from_the_start,
        ),
    ]
}

/// Tests that a capture contains as many frames as the counters report, by the count of this program and of tcpdump,
/// and does not interrupt the traffic.
fn started_and_stopped(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
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
        // The SYNs of 51 connections.
        ensure!(count(&["tcp[tcpflags] == tcp-syn"])? == 51);
        ensure!(count(&["tcp[tcpflags] == tcp-syn|tcp-ack"])? == 51);
        ensure!(scene.ctl(&["capture", "stop"]).is_err(), "stopped twice");
    }
    Ok(())
}

/// Tests that a full file system ends the capture with a reason in its state, and does not delay the traffic.
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
    let mut scene = ControlScene::new(context)?;
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
    let len = fs::metadata(FULL)?.len();
    ensure!(
        len == number(&ended, "bytes"),
        "{len} bytes are in the file: {ended}"
    );
    // The last frame in the file is complete.
    fs::copy(FULL, FILE)?;
    ensure!(count(&[])? == number(&ended, "frames"), "{ended}");
    ensure!(scene.reaches()?, "the guest does not reach the server");
    Ok(())
}

/// Tests that `--capture` records the guest's first frames, and that the file is complete when the program has
/// exited.
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

/// Tests that a capture ends at its limits, and that its state contains the reason.
fn limits(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    let line = format!(
        "$E2E guest tcp {} put 0 1 30000000 >/dev/null && echo done",
        scene.server
    );
    // The engine has set the limit as RLIMIT_FSIZE as well, in case that an attacker controls it.
    let engine = context.program.engine()?;
    let file_size = || -> Result<String> {
        let limits = fs::read_to_string(format!("/proc/{}/limits", engine.id()))?;
        let line = limits.lines().find(|line| line.starts_with("Max file size"));
        let soft = line.and_then(|line| line.split_whitespace().nth(3));
        Ok(soft.unwrap_or_default().to_owned())
    };
    expect(&file_size()?, "0")?;
    for (limit, why) in [
        ("size=20k", "the size limit was reached"),
        ("time=300ms", "the time limit was reached"),
    ] {
        scene.ctl(&["capture", "start", &format!("{FILE},snap=200,{limit}")])?;
        let kernel = if limit == "size=20k" { "20000" } else { "unlimited" };
        expect(&file_size()?, kernel)?;
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
    ensure!(scene.reaches()?, "the guest does not reach the server");
    Ok(())
}

/// Bytes of a transfer. The capture's buffer has room for a transfer in both directions even if nothing is written
/// meanwhile.
const BULK: u64 = 7_000_000;

/// Display filter of tshark for malformed frames, and for connections from which frames are missing.
const FAULTS: &str = "_ws.malformed || _ws.expert.severity == error || tcp.analysis.lost_segment || tcp.analysis.ack_lost_segment";

/// Tests that tshark finds all large frames of a transfer in each direction, complete and without errors.
fn bulk(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    scene.ctl(&["capture", "start", FILE])?;
    for words in ["put 0 1", "fetch 0 2"] {
        let line = format!("$E2E guest tcp {} {words} {BULK}", scene.server);
        expect(&scene.guest.ask(&line)?, "ok")?;
    }
    let ended = stop(&scene)?;
    ensure!(number(&ended, "dropped") == 0, "{ended}");

    let fields = ["frame.len", "frame.cap_len", "tcp.dstport"];
    let fields = fields.map(|field| ["-e", field]).concat();
    let text = tshark(&[&["-T", "fields"], &fields[..]].concat())?;
    let frames = text.lines().count() as u64;
    ensure!(frames == number(&ended, "frames"), "{frames} frames: {ended}");
    let mut largest = [0; 2];
    for line in text.lines() {
        let mut words = line.split('\t');
        let (len, kept) = (words.next().unwrap_or_default(), words.next());
        ensure!(kept == Some(len), "a frame in the capture is truncated: {line:?}");
        let up = words.next() == Some(&scene.server.port().to_string());
        largest[usize::from(up)] = len.parse::<u32>()?.max(largest[usize::from(up)]);
    }
    eprintln!("{frames} frames, the largest of {largest:?} bytes, down and up");
    ensure!(
        largest.iter().all(|len| *len > 32_768),
        "no large frames: {largest:?}"
    );
    expect(&tshark(&["-Y", FAULTS])?, "")
}

/// Tests that a restarted engine continues the capture: the file contains complete frames of both engines, though the
/// first engine was killed while it wrote.
fn engine_killed(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    scene.ctl(&["capture", "start", FILE])?;
    ensure!(scene.reaches()?, "the guest does not reach the server");
    let line = format!(
        "$E2E guest tcp {} put 0 1 1000000000 >/dev/null 2>&1 &",
        scene.server
    );
    scene.guest.send_line(&line)?;
    process::wait_until("the capture file has grown", Duration::from_secs(5), || {
        Ok(fs::metadata(FILE)?.len() > 1_000_000)
    })?;
    kill_engine(&scene)?;
    ensure!(scene.reaches()?, "the guest does not reach the server");
    ensure!(shown()?["running"] == true, "{}", shown()?);
    let ended = stop(&scene)?;
    let after = number(&ended, "frames");
    let (frames, connects) = (count(&[])?, count(&["tcp[tcpflags] == tcp-syn"])?);
    eprintln!("{frames} frames, {after} of the second engine's; {connects} connects");
    ensure!(ended["ended"] == "it was stopped", "{ended}");
    ensure!(
        after > 3 && frames > after + 10,
        "{frames} frames, {after} of the second engine's"
    );
    ensure!(connects == 3, "{connects} connects");
    ensure!(
        tshark(&[])?.lines().count() as u64 == frames,
        "tshark counts others"
    );
    Ok(())
}

/// Tests that a restarted engine continues a capture that was started by `--capture`.
fn engine_killed_from_the_start(context: &Context) -> Result<()> {
    let mut scene = ControlScene::with(context, &["--pcap", FILE])?;
    for engines in 1..=2 {
        ensure!(scene.reaches()?, "the guest does not reach the server");
        let what = "the engine has written the connect to the file";
        process::wait_until(what, Duration::from_secs(10), || {
            Ok(count(&["tcp[tcpflags] == tcp-syn"]).is_ok_and(|connects| connects == engines))
        })?;
        kill_engine(&scene)?;
    }
    ensure!(scene.reaches()?, "the guest does not reach the server");
    let ControlScene { mut guest, .. } = scene;
    guest.send_line("exit 0")?;
    guest.finish()?;
    let connects = count(&["tcp[tcpflags] == tcp-syn"])?;
    ensure!(connects == 3, "{connects} connects");
    Ok(())
}

/// Kills the engine, and waits until its successor captures.
fn kill_engine(scene: &ControlScene<'_>) -> Result<()> {
    let engine = scene.context.program.engine()?;
    engine.signal(Signal::KILL)?;
    process::wait_for_ends(&[engine])?;
    // The supervisor replies in order, so earlier requests were processed before this reply.
    scene.ctl(&["flows"])?;
    Ok(())
}

/// Returns the number of frames that have passed the link in both directions, by the engine's counters.
fn passed(scene: &ControlScene<'_>) -> Result<u64> {
    let stats: Value = serde_json::from_str(&scene.ctl(&["stats", "--json"])?)?;
    let counters = &stats["total"]["counters"];
    Ok(number(counters, "frames_up") + number(counters, "frames_down"))
}

fn stop(scene: &ControlScene<'_>) -> Result<Value> {
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

/// Returns the number of frames in the file that match a filter of tcpdump.
fn count(filter: &[&str]) -> Result<u64> {
    let frames = read("tcpdump", &[&["-t"], filter].concat())?;
    Ok(frames.lines().count() as u64)
}

/// Returns the output of tshark for the file. A protocol that is registered for the server's port is not decoded.
fn tshark(options: &[&str]) -> Result<String> {
    read("tshark", &[&["--disable-protocol", "gryphon"], options].concat())
}

/// Returns the output of a program for the file. Fails if the program reports an error.
fn read(program: &str, options: &[&str]) -> Result<String> {
    // As root, tcpdump and tshark change to another user, which may not exist in the user namespace.
    let mut reader = Command::new("unshare");
    reader.args(["--user", "--map-user=1000", "--map-group=1000", program]);
    let output = reader.args(["-n", "-r", FILE]).args(options).output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    let fine = talk.lines().all(|line| line.starts_with("reading from file "));
    ensure!(output.status.success() && fine, "{program}: {talk}");
    Ok(String::from_utf8(output.stdout)?)
}
