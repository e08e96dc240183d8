//! Second build of the same commit, with the source tree, cargo's home directory and the build directory at other paths.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::build::{self, Build};
use super::{Revision, Target, archives, git, output_of};
use crate::{target, workspace};

/// Checks that the working tree is that of a commit.
///
/// # Errors
///
/// It has changes.
pub(super) fn require_commit() -> Result<()> {
    let changes = output_of(git(workspace(), &["status", "--porcelain"]))?;
    ensure!(
        changes.is_empty(),
        "the working tree has changes, so that two builds cannot be compared (try: git stash)"
    );
    Ok(())
}

/// Builds the commit again, and compares all files. Returns true if they are equal; prints those that differ.
///
/// # Errors
///
/// The second build fails.
pub(super) fn compare(revision: &Revision, targets: &[&'static Target], output: &Path) -> Result<bool> {
    let scratch = target().join("dist-second-build");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let scratch = scratch.canonicalize()?;
    let source = scratch.join("source-of-the-second-build");
    let path = source.display().to_string();
    output_of(git(workspace(), &["worktree", "prune"]))?;
    output_of(git(
        workspace(),
        &["worktree", "add", "--force", "--detach", &path, &revision.commit],
    ))?;
    let second = scratch.join("packages");
    let built = build_in(&scratch, &source, revision, targets, &second);
    output_of(git(workspace(), &["worktree", "remove", "--force", &path]))?;
    built?;
    let differing = differing(output, &second)?;
    for name in &differing {
        eprintln!(
            "differs: {} {}",
            output.join(name).display(),
            second.join(name).display()
        );
    }
    if differing.is_empty() {
        eprintln!("--- both builds of {} are equal", revision.commit);
        fs::remove_dir_all(&scratch)?;
    }
    Ok(differing.is_empty())
}

fn build_in(
    scratch: &Path,
    source: &Path,
    revision: &Revision,
    targets: &[&'static Target],
    output: &Path,
) -> Result<()> {
    fs::create_dir_all(output)?;
    let build = Build {
        source: source.to_owned(),
        target_directory: scratch.join("build"),
        cargo_home: linked_home(scratch)?,
        epoch: revision.epoch,
    };
    archives::write(&build, targets, output)
}

/// Returns a directory of links to the contents of cargo's home directory.
fn linked_home(scratch: &Path) -> Result<PathBuf> {
    let home = scratch.join("cargo-home");
    fs::create_dir_all(&home)?;
    for entry in fs::read_dir(build::cargo_home()?)? {
        let entry = entry?;
        symlink(entry.path(), home.join(entry.file_name()))?;
    }
    Ok(home)
}

/// Returns the names of files that differ, or that one of the directories lacks.
fn differing(first: &Path, second: &Path) -> Result<Vec<String>> {
    let mut diff = Command::new("diff");
    diff.args(["--brief", "--recursive"]).args([first, second]);
    let output = diff.output().context("cannot run diff")?;
    ensure!(
        output.status.code().is_some_and(|code| code < 2),
        "cannot compare the builds: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    // `Files A and B differ`, or `Only in DIRECTORY: NAME`.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = |line: &str| {
        let path = match line.strip_prefix("Files ") {
            Some(files) => files.split(" and ").next(),
            None => line.rsplit(": ").next(),
        };
        let name = Path::new(path.unwrap_or(line)).file_name();
        name.map_or_else(|| line.to_owned(), |name| name.to_string_lossy().into_owned())
    };
    Ok(text.lines().map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_differ_or_are_missing_are_named() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (name, one, two) in [("same", "1", "1"), ("other", "1", "2")] {
            fs::write(first.path().join(name), one).unwrap();
            fs::write(second.path().join(name), two).unwrap();
        }
        fs::write(second.path().join("more"), "").unwrap();
        let mut names = differing(first.path(), second.path()).unwrap();
        names.sort();
        assert_eq!(names, ["more", "other"]);
    }
}
