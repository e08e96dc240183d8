//! The files that `cargo xtask dist` writes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::build::{Build, PROFILE};
use super::tree::Tree;
use super::{TARGETS, Target, components, library, output_of};
use crate::step;

/// Name of the file with checksums.
pub(super) const SUMS: &str = "SHA256SUMS";

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Time limit of one cargo subcommand that writes a package.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// Builds the program for each target, and writes its packages to the directory `output`; and the library for C, if one of the
/// targets is this machine's, or there is none.
pub(super) fn write(build: &Build, targets: &[&'static Target], output: &Path) -> Result<()> {
    let output = std::path::absolute(output)?;
    let native = native()?;
    let wanted = |target: &Target| targets.iter().any(|one| one.triple == target.triple);
    if targets.is_empty() || wanted(native) {
        library::write(build, &output)?;
    }
    if !targets.is_empty() {
        programs(build, targets, &output)?;
    }
    sums(&output)
}

/// Builds the program for each target, and writes its packages.
fn programs(build: &Build, targets: &[&'static Target], output: &Path) -> Result<()> {
    let native = native()?;
    let mut programs = targets.to_vec();
    if !programs.iter().any(|target| target.triple == native.triple) {
        programs.push(native);
    }
    let mut trees = Vec::new();
    for target in programs {
        let tree = Tree::create(build, target)?;
        let debug = build.directory(target).join(format!("{}.debug", name(target)));
        build.program(target, &tree.program(), &debug)?;
        trees.push((target, tree, debug));
    }
    let generator = trees
        .iter()
        .find(|(target, ..)| target.triple == native.triple)
        .map(|(_, tree, _)| tree.program())
        .context("no program for this machine")?;
    let wanted = |target: &Target| targets.iter().any(|one| one.triple == target.triple);
    for (target, tree, debug) in trees.iter().filter(|(target, ..)| wanted(target)) {
        tree.fill(
            build,
            &generator,
            &components::licences(build, target, components::PROGRAM)?,
        )?;
        let name = name(target);
        tree.tarball(build, &name, &output.join(format!("{name}.tar.gz")))?;
        copy_into(output, debug)?;
        deb(build, target, output)?;
        rpm(build, target, output)?;
        let list = components::list(build, target, components::PROGRAM)?;
        fs::write(output.join(format!("{name}.cdx.json")), list)?;
    }
    Ok(())
}

/// Returns the name of a tarball without extension.
pub(super) fn name(target: &Target) -> String {
    format!("pontoon-{VERSION}-{}", target.triple)
}

/// Returns the path of the .deb for `target`, which is named by Debian's convention.
pub(super) fn deb_path(output: &Path, target: &Target) -> PathBuf {
    let architecture = debian_architecture(target);
    output.join(format!("pontoon_{VERSION}-1_{architecture}.deb"))
}

/// Returns Debian's name of an architecture.
pub(super) fn debian_architecture(target: &Target) -> &'static str {
    match target.architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the path of the .rpm for `target`.
pub(super) fn rpm_path(output: &Path, target: &Target) -> PathBuf {
    output.join(format!("pontoon-{VERSION}-1.{}.rpm", target.architecture))
}

/// Returns the target whose programs run on this machine.
pub(super) fn native() -> Result<&'static Target> {
    let architecture = std::env::consts::ARCH;
    TARGETS
        .iter()
        .find(|target| target.architecture == architecture)
        .with_context(|| format!("no packages are built on {architecture} machines"))
}

pub(super) fn copy_into(output: &Path, file: &Path) -> Result<()> {
    let to = output.join(file.file_name().context("a file without a name")?);
    fs::copy(file, &to).with_context(|| format!("cannot write {}", to.display()))?;
    // objcopy makes it executable, as the program is.
    fs::set_permissions(&to, fs::Permissions::from_mode(0o644))?;
    Ok(())
}

fn deb(build: &Build, target: &Target, output: &Path) -> Result<()> {
    let mut command = build.cargo();
    command
        .args(["deb", "--quiet", "--no-build", "--no-strip", "--locked"])
        .args(["--package", "pontoon-cli", "--profile", PROFILE])
        .args(["--target", target.triple, "--output"])
        .arg(deb_path(output, target));
    run(&format!("write the .deb for {}", target.triple), &mut command)
}

fn rpm(build: &Build, target: &Target, output: &Path) -> Result<()> {
    let mut command = build.cargo();
    command
        .args([
            "generate-rpm",
            "--package",
            "app/cli",
            "--profile",
            PROFILE,
            "--auto-req",
            "no",
        ])
        .args(["--target", target.triple, "--target-dir"])
        .arg(&build.target_directory)
        .arg("--output")
        .arg(rpm_path(output, target));
    run(&format!("write the .rpm for {}", target.triple), &mut command)
}

pub(super) fn run(name: &str, command: &mut Command) -> Result<()> {
    if !step::run(name, command, LIMIT)? {
        bail!("cannot {name}");
    }
    Ok(())
}

/// Writes the checksums of all files in `output`.
fn sums(output: &Path) -> Result<()> {
    let mut names: Vec<String> = fs::read_dir(output)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.retain(|name| super::is_named(name));
    names.sort();
    let mut command = Command::new("sha256sum");
    command.args(names).current_dir(output);
    let sums = output_of(command)?;
    fs::write(output.join(SUMS), sums + "\n").with_context(|| format!("cannot write {SUMS}"))
}
