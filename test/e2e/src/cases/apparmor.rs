//! Cases about the AppArmor profile. They exist where the kernel has loaded the profile
//! (`cargo xtask machines apparmor`).

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::doctor::found;
use super::doctor::place::DoctorPlace;
use super::{expect, sandbox, talk};
use crate::case::{Caller, Case, Context};
use crate::network::Network;
use crate::probe::{self, KEY, PROBES};
use crate::process::{self, wait_until};
use crate::run::own_path;

/// List of the loaded profiles. Only root may read it.
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";

/// Label of a process that the profile confines.
const CONFINED: &str = "pontoon (enforce)";

/// Directory whose programs the profile confines.
const DIRECTORY: &str = "/usr/lib/pontoon";

/// Profile that denies user namespaces to the program in a directory of its own (`machines/apparmor.sh`).
const DENIES_NAMESPACES: &str = "pontoon-without-namespaces";

/// The same profile with user namespaces, and the directory of its programs.
const PERMITS_NAMESPACES: &str = "pontoon-with-namespaces";

/// Returns true if the profile with this label is loaded.
fn is_loaded(label: &str) -> bool {
    fs::read_to_string(PROFILES).is_ok_and(|profiles| profiles.lines().any(|line| line == label))
}

pub(super) fn cases() -> Vec<Case> {
    if !is_loaded(CONFINED) {
        return Vec::new();
    }
    let mut cases = vec![
        Case::new("apparmor.labels", 60, labels),
        Case::new("apparmor.aliases", 60, aliases),
        Case::new("apparmor.whole-sandbox", 60, whole_sandbox),
        Case::new("apparmor.capture", 60, capture),
    ];
    if is_loaded(&format!("{DENIES_NAMESPACES} (enforce)")) {
        cases.push(Case::new("apparmor.doctor-names-the-profile", 60, doctor));
    }
    cases.extend(PROBES.iter().map(|probe| {
        let run = |_: &Context| denied(probe.name);
        Case::new(&format!("apparmor.denied.{}", probe.name), 60, run)
    }));
    let root = |case: Case| {
        case.pontoon_only()
            .caller(Caller::Root("only root uses the loaded profile"))
    };
    cases.into_iter().map(root).collect()
}

/// Returns the label of a process.
fn label(process: &str) -> Result<String> {
    let label = fs::read_to_string(format!("/proc/{process}/attr/current"))?;
    Ok(label.trim_end().to_owned())
}

/// Tests that supervisor, init and engine have the profile, and the command has none.
fn labels(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let (mut running, engine) = sandbox::idle(&network, context, &talk()?)?;
    let processes = context.program.processes();
    ensure!(processes.contains(&engine), "the engine is none of the processes");
    ensure!(processes.len() >= 3, "{} processes", processes.len());
    for process in processes.iter().map(|process| process.id().to_string()) {
        expect(&label(&process)?, CONFINED)?;
    }
    expect(&running.ask("cat /proc/self/attr/current")?, "unconfined")
}

/// Tests that the profile is selected for links with the names of other programs, and for the program in
/// /usr/lib/pontoon.
fn aliases(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let binary = context.program.binary.as_deref().context("no program")?;
    let links = Path::new("/run/links");
    super::tmpfs(Path::new("/run"))?;
    fs::create_dir(links)?;
    super::tmpfs(Path::new("/usr/local/bin"))?;
    let install = ["compat", "install", "/usr/local/bin"];
    let installed = Command::new(binary).args(install).output()?;
    ensure!(installed.status.success(), "{installed:?}");
    let moved = format!("{DIRECTORY}/pontoon");
    copy(binary, &moved)?;
    for (name, program) in [("pasta", binary), ("slirp4netns", &moved)] {
        let link = links.join(name);
        std::os::unix::fs::symlink(program, &link)?;
        for link in [link, Path::new("/usr/local/bin").join(name)] {
            supervised(&link)?;
        }
    }
    supervised(Path::new(&moved))
}

/// Executes `program` with the arguments of its name, and tests its label when it has started its processes.
fn supervised(program: &Path) -> Result<()> {
    let arguments: &[&str] = match program.file_name().and_then(OsStr::to_str) {
        Some("pasta") => &["--foreground", "--quiet", "--", "sleep", "60"],
        Some("slirp4netns") => &["--target-type=bess", "/run/socket"],
        _ => &["run", "--", "sleep", "60"],
    };
    let mut running = Command::new(program).args(arguments).spawn()?;
    let id = running.id();
    let started = wait_until("the program has a child", Duration::from_secs(20), || {
        Ok(process::running()
            .iter()
            .any(|process| process.parent() == Some(id)))
    });
    let label = label(&id.to_string());
    running.kill()?;
    running.wait()?;
    started?;
    expect(&label?, CONFINED)
}

/// Tests that the profile refuses no layer of the sandbox.
fn whole_sandbox(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let output = network
        .run()
        .options(["--require-sandbox"])
        .command(["true"])
        .output()?;
    ensure!(output.status.success(), "{}", output.status);
    Ok(())
}

/// Tests that a capture is written to /tmp and not to /etc, and that the error is one line.
fn capture(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    super::tmpfs(Path::new("/tmp"))?;
    let run = |path: &str| network.run().options(["--pcap", path]).command(["true"]).output();
    let permitted = run("/tmp/pontoon.pcapng")?;
    ensure!(permitted.status.success(), "{permitted:?}");
    ensure!(
        fs::metadata("/tmp/pontoon.pcapng")?.len() > 0,
        "the capture is empty"
    );
    let refused = run("/etc/pontoon.pcapng")?;
    ensure!(!refused.status.success(), "{refused:?}");
    ensure!(!Path::new("/etc/pontoon.pcapng").exists(), "the file exists");
    Ok(())
}

/// Tests what `pontoon doctor` finds under a profile that denies user namespaces, and under the one that is its fix.
fn doctor(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let binary = context.program.binary.as_deref().context("no program")?;
    let place = |profile: &str| {
        let directory = format!("/usr/lib/{profile}");
        fs::create_dir_all(&directory)?;
        let program = format!("{directory}/pontoon");
        fs::copy(binary, &program)?;
        DoctorPlace::new(context, &["env", &format!("PONTOON={program}")])
    };
    let mut denied = place(DENIES_NAMESPACES)?;
    let report = denied.examine()?;
    let text = format!("the AppArmor profile {DENIES_NAMESPACES} denies it");
    found(&report, "user-namespaces", "failure", &text)?;
    denied.agrees(&report)?;
    denied.explains(&report, "user-namespaces")?;
    let mut permitted = place(PERMITS_NAMESPACES)?;
    let report = permitted.examine()?;
    report.expect("user-namespaces", "ok")?;
    permitted.agrees(&report)
}

/// Tests that an operation is refused with the profile, and not refused without it.
fn denied(name: &str) -> Result<()> {
    let key = Path::new(KEY);
    fs::create_dir_all(key.parent().context("the key has no directory")?)?;
    fs::write(key, "")?;
    expect(&probed(&own_path(), name)?, "permitted")?;
    let confined = format!("{DIRECTORY}/probe-{name}");
    copy(&own_path(), &confined)?;
    expect(&probed(&confined, name)?, "refused")
}

fn probed(program: &str, name: &str) -> Result<String> {
    let output = probe::command(program, name).output()?;
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Copies a program to a path in [`DIRECTORY`].
fn copy(from: &str, to: &str) -> Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {from}"))?;
    Ok(())
}
