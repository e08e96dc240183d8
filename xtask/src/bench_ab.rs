//! `cargo xtask bench-ab`: two revisions side by side, interleaved, with this tree's harness.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{step, workspace};

pub(crate) const USAGE: &str = "cargo xtask bench-ab REV[..REV] [SCENARIO...] [OPTIONS of pontoon bench]";

/// A release build with link-time optimisation.
const BUILD: Duration = Duration::from_secs(20 * 60);
const BENCH: Duration = Duration::from_secs(3 * 60 * 60);
const MOMENT: Duration = Duration::from_secs(60);

/// Whether everything was built and measured. `arguments` begin with the revision; a second one stands in this tree's
/// place.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let (revisions, rest) = arguments.split_first().context(USAGE)?;
    let (old, new) = match revisions.split_once("..") {
        Some((old, new)) => (old, Some(new)),
        None => (revisions.as_str(), None),
    };
    let directory = workspace().join("target/bench-ab");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let old = build_revision(&directory, old)?;
    let new = new.map(|new| build_revision(&directory, new)).transpose()?;
    let harness = build(workspace(), &workspace().join("target"))?;

    let against = format!(
        "pontoon-old={},pontoon={}",
        old.display(),
        new.as_ref().unwrap_or(&harness).display()
    );
    let report = directory.join("report.json");
    // One of an earlier run, of other revisions.
    let _ = std::fs::remove_file(&report);
    let mut bench = Command::new(&harness);
    bench
        .args(["bench", "--against", &against, "--output"])
        .arg(&report)
        .args(rest);
    let measured = step::run("bench", &mut bench, BENCH)?;
    let mut compare = Command::new(&harness);
    compare
        .args(["bench", "compare", "--stacks", "pontoon-old,pontoon"])
        .args([&report, &report]);
    Ok(step::run("compare", &mut compare, MOMENT)? && measured)
}

/// Builds `revision` in a worktree of its own, which is gone afterwards, and returns a copy of the program.
fn build_revision(directory: &Path, revision: &str) -> Result<PathBuf> {
    let id = git(&[
        "rev-parse",
        "--verify",
        "--short=12",
        &format!("{revision}^{{commit}}"),
    ])?;
    let program = directory.join(format!("pontoon-{id}"));
    if program.exists() {
        return Ok(program);
    }
    let tree = directory.join(format!("tree-{id}"));
    let path = tree.display().to_string();
    git(&["worktree", "add", "--force", "--detach", &path, &id])?;
    let built = build(&tree, &directory.join("target"));
    git(&["worktree", "remove", "--force", &path])?;
    std::fs::copy(built?, &program).with_context(|| format!("cannot write {}", program.display()))?;
    Ok(program)
}

/// Builds the program of a source tree and returns its path.
fn build(tree: &Path, target: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "-p", "pontoon", "--target-dir"])
        .arg(target)
        .current_dir(tree);
    if !step::run(&format!("build {}", tree.display()), &mut cargo, BUILD)? {
        bail!("cannot build {}", tree.display());
    }
    Ok(target.join("release/pontoon"))
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(workspace())
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("git {}: {}", arguments.join(" "), why.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
