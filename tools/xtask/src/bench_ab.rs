//! `cargo xtask bench-ab`: compares two revisions in interleaved rounds, by the `pontoon-bench` of this working tree.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{step, workspace};

pub(crate) const USAGE: &str = "cargo xtask bench-ab REV[..REV] [SCENARIO...] [OPTIONS of pontoon bench]";

/// Arguments of cargo that select the program. They hold for revisions in which its package is called `pontoon`, too.
const PRODUCT: &[&str] = &["--bin", "pontoon"];

/// Time limit of a release build with link-time optimisation.
const BUILD: Duration = Duration::from_secs(20 * 60);
/// Time limit of all measurements of both revisions.
const BENCH: Duration = Duration::from_secs(3 * 60 * 60);
/// Time limit of the comparison of the reports.
const COMPARE: Duration = Duration::from_secs(60);

/// Builds and measures the revisions in `arguments`; a single revision is compared with this working tree. Returns
/// true if all steps succeeded.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let (revisions, rest) = arguments.split_first().context(USAGE)?;
    let (old, new) = match revisions.split_once("..") {
        Some((old, new)) => (old, Some(new)),
        None => (revisions.as_str(), None),
    };
    let directory = workspace().join("target/bench-ab");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let old = build_revision(&directory, old)?;
    let target = workspace().join("target");
    let harness = build(workspace(), "pontoon-bench", &["-p", "pontoon-bench"], &target)?;
    let new = match new {
        Some(new) => build_revision(&directory, new)?,
        None => build(workspace(), "pontoon", PRODUCT, &target)?,
    };

    let against = format!("pontoon-old={},pontoon={}", old.display(), new.display());
    let report = directory.join("report.json");
    // The report of an earlier run may be about other revisions.
    let _ = std::fs::remove_file(&report);
    let mut bench = Command::new(&harness);
    bench
        .args(["--against", &against, "--output"])
        .arg(&report)
        .args(rest);
    let measured = step::run("bench", &mut bench, BENCH)?;
    let mut compare = Command::new(&harness);
    compare
        .args(["compare", "--stacks", "pontoon-old,pontoon"])
        .args([&report, &report]);
    Ok(step::run("compare", &mut compare, COMPARE)? && measured)
}

/// Builds `pontoon` of `revision` in a temporary worktree. Returns the path of a copy of the program.
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
    let built = build(&tree, "pontoon", PRODUCT, &directory.join("target"));
    git(&["worktree", "remove", "--force", &path])?;
    std::fs::copy(built?, &program).with_context(|| format!("cannot write {}", program.display()))?;
    Ok(program)
}

/// Builds `program`, which `selection` selects. Returns its path.
fn build(tree: &Path, program: &str, selection: &[&str], target: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--target-dir"])
        .arg(target)
        .args(selection)
        .current_dir(tree);
    if !step::run(
        &format!("build {program} of {}", tree.display()),
        &mut cargo,
        BUILD,
    )? {
        bail!("cannot build {program} of {}", tree.display());
    }
    Ok(target.join("release").join(program))
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
