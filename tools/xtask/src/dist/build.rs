//! Build of the static programs, independent of the places of source, cargo's directories and toolchain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{Target, output_of};
use crate::step;

/// Time limit of a build with link-time optimisation.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The release profile with line tables.
pub(super) const PROFILE: &str = "profiling";

/// The linker of the Rust toolchain. It links for all targets, so that no cross compiler is needed.
const RUST_LLD: &str = "rust-lld";

/// Prefixes of source paths in the programs.
const SOURCE: &str = "/pontoon";
const CARGO: &str = "/cargo";

/// Places and time of a build.
#[derive(Debug)]
pub(super) struct Build {
    /// The source tree.
    pub(super) source: PathBuf,
    /// Cargo's build directory.
    pub(super) target_directory: PathBuf,
    /// Cargo's home directory, which contains the sources of dependencies.
    pub(super) cargo_home: PathBuf,
    /// The value of `SOURCE_DATE_EPOCH`.
    pub(super) epoch: u64,
}

impl Build {
    /// Returns a command that runs in the source tree, with the places and the time of this build.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.source)
            .env("CARGO_TARGET_DIR", &self.target_directory)
            .env("CARGO_HOME", &self.cargo_home)
            .env("SOURCE_DATE_EPOCH", self.epoch.to_string())
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC");
        command
    }

    pub(super) fn cargo(&self) -> Command {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        self.command(&cargo)
    }

    /// Returns the directory of the programs for `target`.
    pub(super) fn directory(&self, target: &Target) -> PathBuf {
        self.target_directory.join(target.triple).join(PROFILE)
    }

    /// Builds the program for `target`, and writes it to `program` without symbols and line tables, which are written to
    /// `debug`.
    pub(super) fn program(&self, target: &Target, program: &Path, debug: &Path) -> Result<()> {
        let toolchain = Toolchain::find()?;
        let variable = linker_variable(target.triple);
        let linker = linker(
            target.triple,
            &variable,
            std::env::var(&variable).ok(),
            &toolchain.programs,
        )?;
        let flags = self.flags(&toolchain, &linker)?;
        let mut cargo = self.compile("pontoon-cli", target, &flags);
        cargo.env(variable, linker);
        if !step::run(&format!("build for {}", target.triple), &mut cargo, LIMIT)? {
            bail!("cannot build for {}", target.triple);
        }
        let built = self.directory(target).join("pontoon");
        fs::copy(&built, program).with_context(|| format!("cannot copy {}", built.display()))?;
        self.strip(&["--strip-all"], program, debug)
    }

    /// Builds the static library for C programs, and returns its path. It is not linked.
    pub(super) fn library(&self, target: &Target) -> Result<PathBuf> {
        let flags = self.flags(&Toolchain::find()?, "cc")?;
        let mut cargo = self.compile("pontoon-c", target, &flags);
        if !step::run("build the library for C", &mut cargo, LIMIT)? {
            bail!("cannot build the library for C");
        }
        Ok(self.directory(target).join("libpontoon_c.a"))
    }

    fn compile(&self, package: &str, target: &Target, flags: &[String]) -> Command {
        let mut cargo = self.cargo();
        cargo
            .args(["build", "--locked", "--package", package, "--profile", PROFILE])
            .args(["--target", target.triple])
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        cargo
    }

    /// Removes symbols and line tables from a program or shared library by the options `what`, and writes them to `debug`.
    pub(super) fn strip(&self, what: &[&str], file: &Path, debug: &Path) -> Result<()> {
        self.objcopy(
            &["--only-keep-debug", "--compress-debug-sections=zlib"],
            file,
            debug,
        )?;
        let link = format!("--add-gnu-debuglink={}", debug.display());
        self.objcopy(&[what, &[&link]].concat(), file, file)
    }

    /// Runs objcopy of the Rust toolchain.
    pub(super) fn objcopy(&self, arguments: &[&str], from: &Path, to: &Path) -> Result<()> {
        let objcopy = Toolchain::find()?.programs.join("rust-objcopy");
        let mut command = self.command(&objcopy.to_string_lossy());
        command.args(arguments).args([from, to]);
        output_of(command).map(drop)
    }

    /// Returns the flags for rustc: paths of this machine are replaced, and the program has a build id.
    fn flags(&self, toolchain: &Toolchain, linker: &str) -> Result<Vec<String>> {
        let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
        // It may be a symbolic link, which the working directory of rustc does not contain.
        let registry = self.cargo_home.join("registry").canonicalize();
        let registry = registry.with_context(|| format!("no registry in {}", self.cargo_home.display()))?;
        Ok(vec![
            remap(&self.source, SOURCE),
            remap(&self.cargo_home, CARGO),
            remap(&registry, &format!("{CARGO}/registry")),
            // Where the component rust-src is installed, rustc names its files instead of those of the release.
            remap(
                &toolchain.sysroot.join("lib/rustlib/src/rust"),
                &format!("/rustc/{}", toolchain.commit),
            ),
            format!("-Clink-arg={}", build_id(linker)),
        ])
    }
}

/// Returns the option by which a linker, or a compiler that calls one, writes a build id.
fn build_id(linker: &str) -> &'static str {
    match linker.ends_with("ld") || linker.contains("lld") {
        true => "--build-id=sha1",
        false => "-Wl,--build-id=sha1",
    }
}

/// Paths of the toolchain that runs xtask.
struct Toolchain {
    sysroot: PathBuf,
    /// The directory of rust-lld and rust-objcopy.
    programs: PathBuf,
    /// The commit of rustc.
    commit: String,
}

impl Toolchain {
    fn find() -> Result<Self> {
        let rustc = |arguments: &[&str]| {
            let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
            command.args(arguments).current_dir(crate::workspace());
            output_of(command)
        };
        let sysroot = PathBuf::from(rustc(&["--print", "sysroot"])?);
        let version = rustc(&["--version", "--verbose"])?;
        let field = |name: &str| {
            let value = version.lines().find_map(|line| line.strip_prefix(name));
            value.with_context(|| format!("rustc --version --verbose has no line '{name}'"))
        };
        Ok(Self {
            programs: sysroot.join("lib/rustlib").join(field("host: ")?).join("bin"),
            commit: field("commit-hash: ")?.to_owned(),
            sysroot,
        })
    }
}

/// Returns the variable by which cargo's user selects the linker of a target.
fn linker_variable(triple: &str) -> String {
    let triple = triple.to_uppercase().replace('-', "_");
    format!("CARGO_TARGET_{triple}_LINKER")
}

/// Returns the linker of the target `triple`: `configured`, the value of `variable`, or rust-lld of the toolchain.
///
/// # Errors
///
/// There is no such program.
fn linker(triple: &str, variable: &str, configured: Option<String>, toolchain: &Path) -> Result<String> {
    if let Some(linker) = configured {
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|directory| directory.join(&linker).is_file());
        ensure!(
            found,
            "no linker for {triple}: {variable} is {linker}, which does not exist (try: without the variable, \
             for {RUST_LLD})"
        );
        return Ok(linker);
    }
    let path = toolchain.join(RUST_LLD);
    ensure!(
        path.is_file(),
        "no linker for {triple}: {} does not exist (try: {variable}=PROGRAM)",
        path.display()
    );
    Ok(RUST_LLD.to_owned())
}

/// Returns cargo's home directory.
pub(super) fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let home = home.context("neither CARGO_HOME nor HOME is set")?;
    fs::canonicalize(&home).with_context(|| format!("cannot find {}", home.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_linker_is_an_error_in_one_line() {
        let empty = tempfile::tempdir().unwrap();
        let triple = "aarch64-unknown-linux-musl";
        let variable = linker_variable(triple);
        assert_eq!(variable, "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER");
        let error = linker(triple, &variable, Some("missing-gcc".to_owned()), empty.path()).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "no linker for aarch64-unknown-linux-musl: CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER is missing-gcc, \
             which does not exist (try: without the variable, for rust-lld)"
        );
        let error = format!("{:#}", linker(triple, &variable, None, empty.path()).unwrap_err());
        assert!(
            error.ends_with(
                "/rust-lld does not exist (try: CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=PROGRAM)"
            ),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
        let found = linker(triple, &variable, Some("sh".to_owned()), empty.path()).unwrap();
        assert_eq!(found, "sh");
    }

    #[test]
    fn build_id_is_an_option_of_the_linker_or_of_the_compiler() {
        assert_eq!(build_id("rust-lld"), "--build-id=sha1");
        assert_eq!(build_id("aarch64-linux-gnu-ld"), "--build-id=sha1");
        assert_eq!(build_id("aarch64-linux-gnu-gcc"), "-Wl,--build-id=sha1");
    }
}
