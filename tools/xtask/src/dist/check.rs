//! `cargo xtask dist --check`: installs the packages in clean Debian systems without a toolchain, uses them, and removes
//! them; unpacks the other files. The systems, and the packages that they download, are kept below `target/dist-check`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{Target, archives, library, output_of, services};
use crate::{packages, step, target, workspace};

/// Programs that the checks execute, and their Debian packages.
const NEEDED: &[(&str, &str)] = &[
    ("cpio", "cpio"),
    ("mmdebstrap", "mmdebstrap"),
    ("qemu-aarch64-static", "qemu-user-static"),
    ("readelf", "binutils"),
    ("rpm", "rpm"),
    ("rpm2cpio", "rpm2cpio"),
    ("systemd-nspawn", "systemd-container"),
    ("unshare", "util-linux"),
];

/// Systems in which the packages are installed: the oldest release that is supported, and one with AppArmor 4.
const SYSTEMS: &[System] = &[
    System {
        name: "bookworm",
        suite: "bookworm",
        packages: "man-db,mount,passwd,rpm",
    },
    System {
        name: "trixie",
        suite: "trixie",
        packages: "man-db,mount,passwd,rpm",
    },
];

/// Scripts that run in a clean system for the program and for the library, their functions, and the one that enters it.
const SCRIPT: &str = include_str!("check.sh");
const LIBRARY_SCRIPT: &str = include_str!("library.sh");
const COMMON: &str = include_str!("common.sh");
const ENTER: &str = include_str!("enter.sh");

const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Size of a program that is not exceeded.
const LARGEST_PROGRAM: u64 = 10_000_000;

/// Checks the packages in `output`. Returns false if a check has failed.
///
/// # Errors
///
/// Without root, or if a program or a system cannot be installed.
pub(super) fn run(output: &Path, targets: &[&'static Target]) -> Result<bool> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the checks install packages in systems of their own, which needs root (try: sudo cargo xtask dist --check)"
    );
    packages::install(NEEDED)?;
    let output = output.canonicalize()?;
    let scratch = std::path::absolute(target().join("dist-check"))?;
    fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let mut failures = Vec::new();
    let mut check = |name: String, result: Result<()>| {
        eprintln!("--- {name}: {}", if result.is_ok() { "passed" } else { "failed" });
        failures.extend(result.err().map(|error| format!("{name}: {error:#}")));
    };
    check("checksums".to_owned(), checksums(&output));
    for target in targets {
        let name = target.triple;
        check(format!("{name}: files"), files(&output, target, &scratch));
        check(format!("{name}: components"), components(&output, target));
    }
    let native = archives::native()?;
    let has_native = targets.iter().any(|target| target.triple == native.triple);
    if has_native || targets.is_empty() {
        check("library: files".to_owned(), library::check(&output, &scratch));
        for system in SYSTEMS {
            check(
                format!("library in {}", system.name),
                library_in_system(&output, system, &scratch),
            );
        }
    }
    if has_native {
        for system in SYSTEMS {
            check(
                format!("packages in {}", system.name),
                in_system(&output, native, system, &scratch),
            );
        }
        check("services".to_owned(), services::run(&output, native, &scratch));
    }
    for failure in &failures {
        eprintln!("failed: {failure}");
    }
    Ok(failures.is_empty())
}

fn checksums(output: &Path) -> Result<()> {
    let mut command = Command::new("sha256sum");
    command
        .args(["--check", "--quiet", archives::SUMS])
        .current_dir(output);
    output_of(command).map(drop)
}

/// Unpacks .deb, .rpm and tarball of a target, and compares them.
fn files(output: &Path, target: &Target, scratch: &Path) -> Result<()> {
    let at = |name: &str| scratch.join(format!("{}-{name}", target.architecture));
    let (deb, rpm, tar) = (at("deb"), at("rpm"), at("tar"));
    for directory in [&deb, &rpm, &tar] {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory)?;
    }
    unpack_deb(&archives::deb_path(output, target), &deb)?;
    unpack_rpm(&archives::rpm_path(output, target), &rpm)?;
    unpack_tar(&output.join(format!("{}.tar.gz", archives::name(target))), &tar)?;

    // zsh has another directory in Debian, whose packages have a file with the copyright.
    let only_deb = [
        "usr/share/doc/pontoon/copyright",
        "usr/share/zsh/vendor-completions/_pontoon",
    ];
    let only_rpm = ["usr/share/zsh/site-functions/_pontoon"];
    let without = |all: BTreeSet<String>, some: &[&str]| -> Result<BTreeSet<String>> {
        for name in some {
            ensure!(all.contains(*name), "{name} is missing");
        }
        Ok(all
            .into_iter()
            .filter(|name| !some.contains(&name.as_str()))
            .collect())
    };
    let from_deb = without(names(&deb)?, &only_deb)?;
    let from_rpm = without(names(&rpm)?, &only_rpm)?;
    ensure!(
        from_deb == from_rpm,
        ".deb and .rpm have different files: {:?}",
        from_deb.symmetric_difference(&from_rpm)
    );
    let program = deb.join("usr/bin/pontoon");
    let content = fs::read(&program)?;
    ensure!(
        content == fs::read(rpm.join("usr/bin/pontoon"))? && content == fs::read(tar.join("bin/pontoon"))?,
        "the packages have different programs"
    );
    sections(
        &program,
        &output.join(format!("{}.debug", archives::name(target))),
    )?;
    has_no_paths(&content)?;
    runs(&program, target)
}

/// Checks that a file contains no path of this machine.
pub(super) fn has_no_paths(content: &[u8]) -> Result<()> {
    for path in [workspace().canonicalize()?, super::build::cargo_home()?] {
        let path = path.display().to_string();
        ensure!(
            !content.windows(path.len()).any(|part| part == path.as_bytes()),
            "it contains the path {path}"
        );
    }
    Ok(())
}

pub(super) fn unpack_deb(package: &Path, to: &Path) -> Result<()> {
    let mut extract = Command::new("dpkg-deb");
    extract.arg("--extract").args([package, to]);
    output_of(extract).map(drop)
}

pub(super) fn unpack_rpm(package: &Path, to: &Path) -> Result<()> {
    let mut cpio = Command::new("sh");
    cpio.args([
        "-ec",
        "rpm2cpio \"$0\" | cpio --extract --make-directories --quiet",
    ])
    .arg(package)
    .current_dir(to);
    output_of(cpio).map(drop)
}

pub(super) fn unpack_tar(archive: &Path, to: &Path) -> Result<()> {
    let mut unpack = Command::new("tar");
    unpack
        .args(["--extract", "--strip-components=1", "--directory"])
        .arg(to)
        .arg("--file")
        .arg(archive);
    output_of(unpack).map(drop)
}

/// Returns the paths of all files below a directory.
fn names(directory: &Path) -> Result<BTreeSet<String>> {
    let mut find = Command::new("find");
    find.args([".", "!", "-type", "d", "-printf", "%P\\n"])
        .current_dir(directory);
    Ok(output_of(find)?.lines().map(str::to_owned).collect())
}

/// Checks that a program is static and small, and that its line tables are in another file.
fn sections(program: &Path, debug: &Path) -> Result<()> {
    let size = fs::metadata(program)?.len();
    ensure!(size < LARGEST_PROGRAM, "the program has {size} bytes");
    let readelf = |option: &str, path: &Path| {
        let mut command = Command::new("readelf");
        command.args([option, "--wide"]).arg(path);
        output_of(command)
    };
    let own = readelf("--section-headers", program)?;
    ensure!(!own.contains(".debug_line"), "the program has line tables");
    ensure!(
        own.contains(".gnu_debuglink"),
        "the program has no .gnu_debuglink"
    );
    let kept = readelf("--section-headers", debug)?;
    ensure!(
        kept.contains(".debug_line"),
        "{} has no line tables",
        debug.display()
    );
    let segments = readelf("--program-headers", program)?;
    ensure!(!segments.contains("INTERP"), "the program is not static");
    let id = |path: &Path| {
        let notes = readelf("--notes", path)?;
        let line = notes.lines().find(|line| line.contains("Build ID: "));
        line.map(str::to_owned).context("no build id")
    };
    ensure!(id(program)? == id(debug)?, "the build ids differ");
    Ok(())
}

/// Executes a program, on another architecture by QEMU.
fn runs(program: &Path, target: &Target) -> Result<()> {
    let is_native = target.triple == archives::native()?.triple;
    let command = |arguments: &[&str]| {
        let mut command = match is_native {
            true => Command::new(program),
            false => {
                let mut qemu = Command::new(format!("qemu-{}-static", target.architecture));
                qemu.arg(program);
                qemu
            }
        };
        command.args(arguments);
        command
    };
    let version = output_of(command(&["--version"]))?;
    let expected = format!("pontoon {}", env!("CARGO_PKG_VERSION"));
    ensure!(version == expected, "--version printed {version}");
    output_of(command(&["man", "run"])).map(drop)
}

/// Checks that the list of components has the crates that the workspace names.
fn components(output: &Path, target: &Target) -> Result<()> {
    let path = output.join(format!("{}.cdx.json", archives::name(target)));
    let list: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    ensure!(
        list["bomFormat"] == "CycloneDX",
        "{} has another format",
        path.display()
    );
    let components: Vec<_> = list["components"].as_array().into_iter().flatten().collect();
    for (name, is_expected) in [("clap", true), ("pontoon-engine", true), ("proptest", false)] {
        let is_listed = components.iter().any(|component| component["name"] == name);
        ensure!(is_listed == is_expected, "{name} is listed: {is_listed}");
    }
    Ok(())
}

/// Installs, uses and removes the packages in a clean system.
fn in_system(output: &Path, target: &Target, system: &System, scratch: &Path) -> Result<()> {
    let files = [
        (archives::deb_path(output, target), "pontoon.deb"),
        (archives::rpm_path(output, target), "pontoon.rpm"),
    ];
    run_in(system, &files, SCRIPT, scratch)
}

/// Installs the library in a clean system, and compiles and runs a program with it.
fn library_in_system(output: &Path, system: &System, scratch: &Path) -> Result<()> {
    let target = library::native()?;
    let [deb, deb_dev] = library::deb_paths(output, target);
    let [rpm, rpm_devel] = library::rpm_paths(output, target);
    let files = [
        (deb, "libpontoon0.deb"),
        (deb_dev, "libpontoon-dev.deb"),
        (rpm, "libpontoon.rpm"),
        (rpm_devel, "libpontoon-devel.rpm"),
    ];
    run_in(system, &files, LIBRARY_SCRIPT, scratch)
}

/// Runs a script in a clean system, which has `files` in its directory.
fn run_in(system: &System, files: &[(PathBuf, &str)], script: &str, scratch: &Path) -> Result<()> {
    let root = system.unpack(scratch)?;
    let inside = root.join("check");
    fs::create_dir_all(&inside)?;
    for (from, to) in files {
        fs::copy(from, inside.join(to)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    fs::write(inside.join("common.sh"), COMMON)?;
    fs::write(inside.join("check.sh"), script)?;
    fs::write(inside.join("enter.sh"), ENTER)?;
    let _ = fs::remove_file(root.join("etc/resolv.conf"));
    fs::copy("/etc/resolv.conf", root.join("etc/resolv.conf"))?;
    let downloads = scratch.join(format!("{}-downloads", system.name));
    fs::create_dir_all(downloads.join("partial"))?;
    let mut enter = Command::new("unshare");
    enter
        .args(["--mount", "--pid", "--fork", "--kill-child", "sh"])
        .arg(inside.join("enter.sh"))
        .args([&root, &downloads])
        .env("PATH", packages::PATH);
    ensure!(
        step::run(&format!("use the packages in {}", system.name), &mut enter, LIMIT)?,
        "a check has failed"
    );
    Ok(())
}

/// A clean Debian system.
#[derive(Debug)]
pub(super) struct System {
    pub(super) name: &'static str,
    /// The release.
    pub(super) suite: &'static str,
    /// Packages besides the essential ones and apt, separated by commas.
    pub(super) packages: &'static str,
}

impl System {
    /// Returns the directory of a new copy of the system below `scratch`.
    pub(super) fn unpack(&self, scratch: &Path) -> Result<PathBuf> {
        let archive = self.archive(scratch)?;
        let root = scratch.join(format!("{}-root", self.name));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root)?;
        let mut unpack = Command::new("tar");
        unpack
            .args(["--extract", "--numeric-owner", "--directory"])
            .arg(&root);
        unpack.arg("--file").arg(archive);
        output_of(unpack)?;
        Ok(root)
    }

    /// Returns the archive of the system, which is made once.
    fn archive(&self, scratch: &Path) -> Result<PathBuf> {
        let Self {
            name,
            suite,
            packages,
        } = self;
        let archive = scratch.join(format!("{name}.tar"));
        if archive.is_file() {
            return Ok(archive);
        }
        let new = scratch.join(format!("{name}.new.tar"));
        let mut make = Command::new("mmdebstrap");
        make.args(["--variant=apt", "--skip=cleanup/apt"])
            .arg(format!("--include={packages}"))
            .arg(suite)
            .arg(&new)
            .arg("http://deb.debian.org/debian");
        if !step::run(&format!("make the clean system {name}"), &mut make, LIMIT)? {
            bail!("cannot make the clean system {name}");
        }
        fs::rename(new, &archive)?;
        Ok(archive)
    }
}
