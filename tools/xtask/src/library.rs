//! `cargo xtask library`: builds the library for C programs: shared and static, the header, and a file for pkg-config. `--header`
//! generates the header, and `--api` the list of the interface of the crate.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{api, cargo, install, step, target, workspace};

pub(crate) const USAGE: &str = "cargo xtask library [--debug] [--output DIR] | --header | --api";

/// The version by which the header is generated.
const CBINDGEN: &str = "0.29.4";

/// Name of the shared library for the dynamic linker, with the version of the interface.
pub(crate) const SONAME: &str = "libpontoon.so.0";

/// Libraries of the system that the static library needs.
const SYSTEM: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"];

/// Time limit of a build with link-time optimisation.
const BUILD: Duration = Duration::from_secs(20 * 60);
/// Time limit of the linker, and of cbindgen.
const QUICK: Duration = Duration::from_secs(120);

/// Builds the library, or writes the header. Returns true if that succeeded.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let mut words = arguments.iter().map(String::as_str);
    let (mut debug, mut output) = (false, target().join("library"));
    while let Some(word) = words.next() {
        match word {
            "--api" if arguments.len() == 1 => return api::write(),
            "--header" if arguments.len() == 1 => return write_header(&header()),
            "--debug" => debug = true,
            "--output" => output = words.next().context(USAGE)?.into(),
            _ => bail!("usage: {USAGE}"),
        }
    }
    build(debug, &output)?;
    Ok(true)
}

/// Writes the library to `output`, in the usual directories of an installation.
fn build(debug: bool, output: &Path) -> Result<()> {
    let mut command = cargo(&["build", "-p", "pontoon-c"]);
    if !debug {
        command.arg("--release");
    }
    ensure!(
        step::run("build the C library", &mut command, BUILD)?,
        "cannot build the library"
    );
    let archive = target()
        .join(if debug { "debug" } else { "release" })
        .join("libpontoon_c.a");
    let (include, lib) = (output.join("include"), output.join("lib"));
    fs::create_dir_all(&include).with_context(|| format!("cannot create {}", include.display()))?;
    fs::copy(header(), include.join("pontoon.h")).context("cannot copy the header")?;
    install_into(&lib, &archive, &pkg_config(RELOCATABLE, "${prefix}/lib"))
}

/// Links the shared library, and writes it to the directory `lib`, with the static library, from which it is linked, and the file for
/// pkg-config.
///
/// # Errors
///
/// The linker fails, or a file cannot be written.
pub(crate) fn install_into(lib: &Path, archive: &Path, pkg_config: &str) -> Result<()> {
    let configuration = lib.join("pkgconfig");
    fs::create_dir_all(&configuration)
        .with_context(|| format!("cannot create {}", configuration.display()))?;
    fs::copy(archive, lib.join("libpontoon.a")).context("cannot copy the static library")?;
    fs::write(configuration.join("pontoon.pc"), pkg_config).context("cannot write pontoon.pc")?;
    let mut link = Command::new("cc");
    link.args(["-shared", "-o"]).arg(lib.join(SONAME));
    link.arg(format!(
        "-Wl,-soname,{SONAME},-z,defs,-z,now,--gc-sections,--build-id=sha1"
    ));
    // rustc would export its own list of symbols.
    link.arg(format!("-Wl,--version-script={}", map().display()));
    link.arg("-Wl,--whole-archive")
        .arg(archive)
        .arg("-Wl,--no-whole-archive");
    link.args(SYSTEM);
    ensure!(
        step::run("link the shared library", &mut link, QUICK)?,
        "cannot link the shared library"
    );
    let name = lib.join("libpontoon.so");
    let _ = fs::remove_file(&name);
    symlink(SONAME, &name).context("cannot link libpontoon.so")
}

/// The prefix of a file for pkg-config that may be moved with the library.
pub(crate) const RELOCATABLE: &str = "${pcfiledir}/../..";

/// Returns the text of the file for pkg-config, for libraries in `lib`.
pub(crate) fn pkg_config(prefix: &str, lib: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let system = SYSTEM.join(" ");
    format!(
        "prefix={prefix}\n\
         includedir=${{prefix}}/include\n\
         libdir={lib}\n\n\
         Name: pontoon\n\
         Description: User-mode networking as a library\n\
         Version: {version}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lpontoon\n\
         Libs.private: {system}\n"
    )
}

/// Returns the path of the committed header.
pub(crate) fn header() -> PathBuf {
    workspace().join("app/c/include/pontoon.h")
}

/// Returns the path of the list of exported symbols.
fn map() -> PathBuf {
    workspace().join("app/c/pontoon.map")
}

/// Generates the header.
fn write_header(to: &Path) -> Result<bool> {
    let mut command = Command::new("cbindgen");
    command
        .args(["--quiet", "--config", "app/c/cbindgen.toml", "--output"])
        .arg(to)
        .arg("app/c")
        .current_dir(workspace());
    step::run("generate the header", &mut command, QUICK)
}

/// The crates that a program with the crate `pontoon` contains.
const PACKAGES: [&str; 16] = [
    "pontoon",
    "pontoon-engine",
    "pontoon-event",
    "pontoon-host",
    "pontoon-host-network",
    "pontoon-ipc",
    "pontoon-link",
    "pontoon-names",
    "pontoon-process",
    "pontoon-proxy",
    "pontoon-ring",
    "pontoon-sandbox",
    "pontoon-sys",
    "pontoon-vhost-user",
    "pontoon-wire",
    "pontoon-worker",
];

/// Returns the command that packages the crate `pontoon` and those that it needs. If `build` is false, the packages are not
/// compiled, which takes two minutes.
pub(crate) fn package(build: bool) -> Command {
    let mut command = cargo(&["package", "--allow-dirty"]);
    if !build {
        command.arg("--no-verify");
    }
    command.args(PACKAGES.iter().flat_map(|package| ["-p", package]));
    command
}

/// Returns the command that installs cbindgen, or `None` if it is installed.
pub(crate) fn installation() -> Option<Command> {
    let mut version = Command::new("cbindgen");
    let installed = version.arg("--version").output();
    match installed {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains(CBINDGEN) => None,
        _ => Some(install(&format!("cbindgen@{CBINDGEN}"))),
    }
}

/// Checks that the committed header is the one that cbindgen generates, and that it declares the exported functions.
pub(crate) fn check() -> Result<bool> {
    let directory = tempfile::tempdir()?;
    let generated = directory.path().join("pontoon.h");
    if !write_header(&generated)? {
        return Ok(false);
    }
    let committed = fs::read_to_string(header()).context("cannot read the header")?;
    if committed != fs::read_to_string(&generated)? {
        eprintln!("app/c/include/pontoon.h is not current (try: cargo xtask library --header)");
        return Ok(false);
    }
    let map = fs::read_to_string(map())?;
    let (exported, declared) = (exported(&map), declared(&committed));
    if exported != declared {
        eprintln!("app/c/pontoon.map exports {exported:?}, and pontoon.h declares {declared:?}");
    }
    Ok(exported == declared)
}

/// Returns the names of functions in a version script, sorted.
fn exported(map: &str) -> Vec<&str> {
    let names = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let mut names: Vec<&str> = names.filter(|name| name.starts_with("pontoon_")).collect();
    names.sort_unstable();
    names
}

/// Returns the names of functions that a header declares, sorted.
fn declared(header: &str) -> Vec<&str> {
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut names: Vec<&str> = code
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("pontoon_"))
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_functions() {
        let map =
            "PONTOON_0 {\n    global:\n        pontoon_b;\n        pontoon_a;\n    local:\n        *;\n};\n";
        assert_eq!(exported(map), ["pontoon_a", "pontoon_b"]);
        let header = "// of pontoon_c(void)\nstruct pontoon_d {\n  int a;\n};\nint pontoon_b(int a,\n  int b);\nchar *pontoon_a(void);\n";
        assert_eq!(declared(header), ["pontoon_a", "pontoon_b"]);
    }

    #[test]
    fn committed_header_declares_the_exported_functions() {
        let header = fs::read_to_string(header()).unwrap();
        let map = fs::read_to_string(map()).unwrap();
        assert_eq!(declared(&header), exported(&map));
    }
}
