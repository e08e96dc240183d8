//! `cargo xtask dist`: builds static programs and packages: .deb, .rpm, tarball, separate line tables, a list of the
//! components (CycloneDX) and SHA256SUMS; and packages of the library for C. `--check` installs them in clean systems, and `--twice` builds them a second
//! time, in another place, and compares the files.

mod archives;
mod build;
mod check;
mod components;
mod library;
mod services;
mod tools;
mod tree;
mod twice;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{step, target, workspace};
use build::Build;

pub(crate) const USAGE: &str =
    "cargo xtask dist [--target TARGET]... [--library] [--output DIR] [--check] [--twice]";

/// Targets for which packages are built: the C library is linked statically.
const TARGETS: &[Target] = &[
    Target {
        triple: "x86_64-unknown-linux-musl",
        architecture: "x86_64",
    },
    Target {
        triple: "aarch64-unknown-linux-musl",
        architecture: "aarch64",
    },
];

/// Time limit of the build of the library's crates.
const CRATES: Duration = Duration::from_secs(15 * 60);

/// A target of the packages.
#[derive(Debug)]
pub(super) struct Target {
    /// The name that rustc uses.
    triple: &'static str,
    /// The architecture as in `std::env::consts::ARCH`.
    architecture: &'static str,
}

/// Arguments of the command line.
#[derive(Debug, Default)]
struct Arguments {
    targets: Vec<&'static Target>,
    /// True if only the packages of the library for C are built.
    library: bool,
    output: Option<PathBuf>,
    check: bool,
    twice: bool,
}

/// Builds the packages. Returns false if a check has failed.
///
/// # Errors
///
/// A program is missing and cannot be installed, a build fails, or the output directory cannot be written.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let arguments = parse(arguments)?;
    if arguments.twice {
        twice::require_commit()?;
    }
    let output = arguments.output.unwrap_or_else(|| target().join("dist"));
    create(&output)?;
    let revision = Revision::of(workspace())?;
    tools::install_missing(&arguments.targets)?;
    let build = Build {
        source: workspace().canonicalize()?,
        target_directory: std::path::absolute(target())?,
        cargo_home: build::cargo_home()?,
        epoch: revision.epoch,
    };
    archives::write(&build, &arguments.targets, &output)?;
    print(&output)?;
    let mut passed = true;
    if arguments.twice {
        passed &= twice::compare(&revision, &arguments.targets, &output)?;
    }
    if arguments.check {
        let crates = "build the packages of the library's crates";
        passed &= step::run(crates, &mut crate::library::package(true), CRATES)?;
        passed &= check::run(&output, &arguments.targets)?;
    }
    Ok(passed)
}

fn parse(arguments: &[String]) -> Result<Arguments> {
    let mut parsed = Arguments::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--target" => parsed
                .targets
                .push(named(arguments.next().context("--target: no target")?)?),
            "--output" => parsed.output = Some(arguments.next().context("--output: no directory")?.into()),
            "--library" => parsed.library = true,
            "--check" => parsed.check = true,
            "--twice" => parsed.twice = true,
            other => bail!("unknown argument {other} (try: {USAGE})"),
        }
    }
    if parsed.library {
        ensure!(
            parsed.targets.is_empty(),
            "--library is for this machine's target only"
        );
    } else if parsed.targets.is_empty() {
        parsed.targets.extend(TARGETS);
    }
    Ok(parsed)
}

fn named(triple: &str) -> Result<&'static Target> {
    let all: Vec<_> = TARGETS.iter().map(|target| target.triple).collect();
    TARGETS
        .iter()
        .find(|target| target.triple == triple)
        .with_context(|| format!("no packages for target {triple} (try: {})", all.join(", ")))
}

/// Creates an empty directory for the packages: files of an earlier build are removed, and no others.
fn create(output: &Path) -> Result<()> {
    let shown = output.display();
    fs::create_dir_all(output).with_context(|| format!("cannot create {shown}"))?;
    for entry in fs::read_dir(output).with_context(|| format!("cannot read {shown}"))? {
        let path = entry?.path();
        if path.is_file() && is_package(&path) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    // A directory that exists may be on a file system that is read-only.
    tempfile::tempfile_in(output).with_context(|| format!("cannot write to {shown}"))?;
    Ok(())
}

fn is_package(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    is_named(&name) || name == archives::SUMS
}

/// Returns true for the names of packages and of the other files of a build.
fn is_named(name: &str) -> bool {
    name.starts_with("pontoon") || name.starts_with("libpontoon")
}

/// A commit, and the time that the packages contain.
#[derive(Debug)]
pub(super) struct Revision {
    /// The commit of `HEAD`.
    commit: String,
    /// Seconds since 1970: `SOURCE_DATE_EPOCH`, or the time of the commit.
    epoch: u64,
}

impl Revision {
    fn of(source: &Path) -> Result<Self> {
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch) => epoch,
            Err(_) => output_of(git(source, &["log", "-1", "--format=%ct"]))?,
        };
        Ok(Self {
            commit: output_of(git(source, &["rev-parse", "HEAD"]))?,
            epoch: epoch
                .parse()
                .with_context(|| format!("SOURCE_DATE_EPOCH is not a number of seconds: {epoch}"))?,
        })
    }
}

pub(super) fn git(source: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(source);
    command
}

/// Runs a command, and returns its standard output without the last newline.
///
/// # Errors
///
/// The command fails: the message is its name, arguments and standard error.
pub(super) fn output_of(mut command: Command) -> Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.output().with_context(|| format!("cannot run {shown}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{shown}: {}", error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Prints the packages and their sizes.
fn print(output: &Path) -> Result<()> {
    let mut files: Vec<_> = fs::read_dir(output)?.collect::<std::io::Result<_>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    let mut printed = std::io::stdout().lock();
    for file in files {
        let size = file.metadata()?.len();
        writeln!(printed, "{size:>10}  {}", file.path().display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
