//! The packages of the library for C: .deb and .rpm, each with the shared library or with the files for development, and a tarball
//! with all of it. They are built for the architecture and the C library (glibc) of this machine. Each package takes its files from
//! the directory `library` beside the static library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::archives::{self, VERSION};
use super::build::{Build, PROFILE};
use super::{Target, components, output_of};
use crate::library;

/// Targets of the library, in the order of those of the program.
const TARGETS: [Target; 2] = [
    Target {
        triple: "x86_64-unknown-linux-gnu",
        architecture: "x86_64",
    },
    Target {
        triple: "aarch64-unknown-linux-gnu",
        architecture: "aarch64",
    },
];

/// Returns the target whose C library this machine has.
pub(super) fn native() -> Result<&'static Target> {
    let architecture = std::env::consts::ARCH;
    let found = TARGETS.iter().find(|target| target.architecture == architecture);
    found.with_context(|| format!("no packages of the library are built on {architecture} machines"))
}

/// Returns the name of the tarball without extension.
pub(super) fn name(target: &Target) -> String {
    format!("libpontoon-{VERSION}-{}", target.triple)
}

/// Returns the paths of the .deb files: of the shared library, and for development.
pub(super) fn deb_paths(output: &Path, target: &Target) -> [PathBuf; 2] {
    let architecture = archives::debian_architecture(target);
    ["libpontoon0", "libpontoon-dev"]
        .map(|package| output.join(format!("{package}_{VERSION}-1_{architecture}.deb")))
}

/// Returns the paths of the .rpm files: of the shared library, and for development.
pub(super) fn rpm_paths(output: &Path, target: &Target) -> [PathBuf; 2] {
    ["libpontoon", "libpontoon-devel"]
        .map(|package| output.join(format!("{package}-{VERSION}-1.{}.rpm", target.architecture)))
}

/// Builds the library, and writes its packages to `output`.
pub(super) fn write(build: &Build, output: &Path) -> Result<()> {
    let target = native()?;
    let archive = build.library(target)?;
    let files = build.directory(target).join("library");
    let _ = fs::remove_dir_all(&files);
    let debug = fill(build, target, &archive, &files)?;
    archives::copy_into(output, &debug)?;
    fs::write(
        output.join(format!("{}.cdx.json", name(target))),
        components::list(build, target, components::LIBRARY)?,
    )?;
    tarball(
        build,
        target,
        &files,
        &output.join(format!("{}.tar.gz", name(target))),
    )?;
    let [deb, deb_dev] = deb_paths(output, target);
    let [rpm, rpm_devel] = rpm_paths(output, target);
    archives::run(
        "write the .deb of the library",
        &mut cargo_deb(build, target, None, &deb),
    )?;
    let dev = &mut cargo_deb(build, target, Some("dev"), &deb_dev);
    archives::run("write the .deb for development", dev)?;
    archives::run(
        "write the .rpm of the library",
        &mut cargo_rpm(build, target, None, &rpm),
    )?;
    let devel = &mut cargo_rpm(build, target, Some("devel"), &rpm_devel);
    archives::run("write the .rpm for development", devel)
}

/// Writes the files of all packages to the directory `files`. Returns the path of the file with the line tables.
fn fill(build: &Build, target: &Target, archive: &Path, files: &Path) -> Result<PathBuf> {
    let lib = files.join("lib");
    let relocatable = library::pkg_config(library::RELOCATABLE, "${prefix}/lib");
    library::install_into(&lib, archive, &relocatable)?;
    let shared = lib.join(library::SONAME);
    let debug = build.directory(target).join(format!("{}.debug", name(target)));
    build.strip(&["--strip-unneeded"], &shared, &debug)?;
    let static_library = lib.join("libpontoon.a");
    // The standard library's objects contain bitcode, for link-time optimisation by rustc.
    let unused = [
        "--strip-debug",
        "--remove-section=.llvmbc",
        "--remove-section=.llvmcmd",
    ];
    build.objcopy(&unused, &static_library, &static_library)?;

    let copy = |from: &Path, to: &str| {
        let to = files.join(to);
        let parent = to.parent().context("a file without a directory")?;
        fs::create_dir_all(parent)?;
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))
    };
    copy(&build.source.join("app/c/include/pontoon.h"), "include/pontoon.h")?;
    let documents = "share/doc/libpontoon";
    for (from, to) in [
        ("app/c/examples/vmm.c", "vmm.c"),
        ("docs/embed.md", "embed.md"),
        ("LICENSE-APACHE", "LICENSE-APACHE"),
        ("LICENSE-MIT", "LICENSE-MIT"),
    ] {
        copy(&build.source.join(from), &format!("{documents}/{to}"))?;
    }
    let licences = components::licences(build, target, components::LIBRARY)?;
    fs::write(files.join(documents).join("THIRD-PARTY-LICENCES"), licences)?;

    // Directories of libraries that differ between distributions.
    for (distribution, directory) in [
        ("deb", format!("/usr/lib/{}-linux-gnu", target.architecture)),
        ("rpm", "/usr/lib64".to_owned()),
    ] {
        let at = files.join(distribution);
        fs::create_dir_all(&at)?;
        fs::write(at.join("pontoon.pc"), library::pkg_config("/usr", &directory))?;
    }
    // cargo-generate-rpm writes no symbolic links.
    let script = format!("/* GNU ld script */\nINPUT ( {} )\n", library::SONAME);
    fs::write(files.join("rpm/libpontoon.so"), script)?;
    Ok(debug)
}

/// Writes a tarball whose only entry is a directory for `/usr/local` or a directory of a user.
fn tarball(build: &Build, target: &Target, files: &Path, output: &Path) -> Result<()> {
    let name = name(target);
    let mut tar = super::tree::tar(build, output);
    tar.arg("--directory").arg(files);
    tar.arg(format!("--transform=flags=r;s,^,{name}/,"));
    tar.args(["include", "lib", "share"]);
    output_of(tar).map(drop)
}

fn cargo_deb(build: &Build, target: &Target, variant: Option<&str>, output: &Path) -> Command {
    let mut command = build.cargo();
    command
        .args([
            "deb",
            "--quiet",
            "--no-build",
            "--no-strip",
            "--locked",
            "--multiarch=same",
        ])
        .args(["--package", "pontoon-c", "--profile", PROFILE])
        .args(["--target", target.triple, "--output"])
        .arg(output);
    if let Some(variant) = variant {
        command.args(["--variant", variant]);
    }
    command
}

fn cargo_rpm(build: &Build, target: &Target, variant: Option<&str>, output: &Path) -> Command {
    let mut command = build.cargo();
    command
        .args(["generate-rpm", "--package", "app/c", "--profile", PROFILE])
        .args(["--auto-req", "builtin", "--target", target.triple, "--target-dir"])
        .arg(&build.target_directory)
        .arg("--output")
        .arg(output);
    if let Some(variant) = variant {
        command.args(["--variant", variant]);
    }
    command
}

/// Checks that the packages and the tarball contain the same library, which exports the listed symbols and is without paths of this
/// machine.
pub(super) fn check(output: &Path, scratch: &Path) -> Result<()> {
    let target = native()?;
    let at = scratch.join("library-files");
    let _ = fs::remove_dir_all(&at);
    for directory in ["deb", "rpm", "tar"] {
        fs::create_dir_all(at.join(directory))?;
    }
    for deb in deb_paths(output, target) {
        super::check::unpack_deb(&deb, &at.join("deb"))?;
    }
    for rpm in rpm_paths(output, target) {
        super::check::unpack_rpm(&rpm, &at.join("rpm"))?;
    }
    super::check::unpack_tar(&output.join(format!("{}.tar.gz", name(target))), &at.join("tar"))?;
    let directories = [
        format!("deb/usr/lib/{}-linux-gnu", target.architecture),
        "rpm/usr/lib64".to_owned(),
        "tar/lib".to_owned(),
    ];
    for file in [library::SONAME, "libpontoon.a"] {
        let read = |directory: &String| fs::read(at.join(directory).join(file));
        let [first, second, third] = [
            read(&directories[0])?,
            read(&directories[1])?,
            read(&directories[2])?,
        ];
        if first != second || first != third {
            bail!("the packages have different files {file}");
        }
        super::check::has_no_paths(&first).with_context(|| format!("{file} differs by machine"))?;
    }
    let mut symbols = Command::new("nm");
    symbols
        .args(["--dynamic", "--defined-only"])
        .arg(at.join("tar/lib").join(library::SONAME));
    let symbols = output_of(symbols)?;
    let exported = symbols
        .lines()
        .filter(|line| line.contains("@@PONTOON_0"))
        .count();
    if exported < 20 || exported + 1 != symbols.lines().count() {
        bail!("the shared library exports other symbols:\n{symbols}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packages for development need the shared library of the same version.
    #[test]
    fn metadata_names_the_version_of_the_workspace() {
        let manifest = fs::read_to_string(crate::workspace().join("app/c/Cargo.toml")).unwrap();
        for dependency in [
            format!("libpontoon0 (= {VERSION}-1)"),
            format!("libpontoon = \"= {VERSION}-1\""),
        ] {
            assert!(manifest.contains(&dependency), "{dependency}");
        }
    }
}
