//! Tests of the C library, as C, Go and Python programs use it. It is built and linked by `cargo xtask library`.

// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the directory of the library.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("library");
        run(Command::new(env!("CARGO"))
            .args(["xtask", "library", "--debug", "--output"])
            .arg(&output)
            .current_dir(source("../..")));
        output
    })
}

/// Returns the path of a file of this crate.
fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs a command that succeeds, and returns its standard output.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output();
    let Output {
        status,
        stdout,
        stderr,
    } = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout.into_owned()
}

/// Returns true if a program exists; otherwise prints that a test is skipped.
fn has(program: &str, test: &str) -> bool {
    let exists = Command::new(program).arg("--help").output().is_ok();
    if !exists {
        // The test harness does not capture what is written to the descriptor.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: there is no {program}");
    }
    exists
}

/// Directory for programs, which exists until the value is dropped.
struct Programs(tempfile::TempDir);

impl Programs {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Compiles a C program that uses the shared library.
    fn compile(&self, compiler: &str, file: &str, flags: &[&str]) -> PathBuf {
        let lib = library().join("lib");
        let libraries = pkg_config(&["--cflags", "--libs", "pontoon"]);
        self.compile_with(compiler, file, flags, &libraries, Some(&lib))
    }

    fn compile_with(
        &self,
        compiler: &str,
        file: &str,
        flags: &[&str],
        libraries: &[String],
        rpath: Option<&Path>,
    ) -> PathBuf {
        let program = self.0.path().join("program");
        let mut command = Command::new(compiler);
        command
            .args(["-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"])
            .args(flags)
            .arg(source(file))
            .args(libraries);
        if let Some(rpath) = rpath {
            command.arg(format!("-Wl,-rpath,{}", rpath.display()));
        }
        run(command.arg("-o").arg(&program));
        program
    }
}

/// Returns the flags of the library.
fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let output = run(Command::new("pkg-config")
        .args(arguments)
        .env("PKG_CONFIG_PATH", library().join("lib/pkgconfig")));
    output.split_whitespace().map(str::to_owned).collect()
}

/// Checks the output of the example.
#[track_caller]
fn check_example(output: &str) {
    for expected in [
        "the gateway is at 02:50",
        "deny protocol 17 to 192.0.2.1:9, which 'allow 192.0.2.0/24' allows",
        r#""type":"refused""#,
    ] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
}

#[test]
fn example_is_short() {
    let lines = include_str!("../../examples/vmm.c").lines().count();
    assert!(lines < 150, "{lines} lines");
}

#[test]
fn example_runs_with_each_compiler() {
    let programs = Programs::new();
    for compiler in ["gcc", "clang"] {
        if has(compiler, "example_runs_with_each_compiler") {
            let program = programs.compile(compiler, "examples/vmm.c", &[]);
            check_example(&run(&mut Command::new(program)));
        }
    }
}

#[test]
fn example_runs_with_the_static_library() {
    let programs = Programs::new();
    let mut libraries = pkg_config(&["--cflags", "pontoon"]);
    libraries.push(library().join("lib/libpontoon.a").display().to_string());
    let private = pkg_config(&["--static", "--libs", "pontoon"]);
    libraries.extend(
        private
            .into_iter()
            .filter(|flag| flag.starts_with("-l") && flag != "-lpontoon"),
    );
    let program = programs.compile_with("cc", "examples/vmm.c", &[], &libraries, None);
    check_example(&run(&mut Command::new(program)));
}

#[test]
fn example_has_no_finding_of_address_sanitizer() {
    let programs = Programs::new();
    let flags = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"];
    let program = programs.compile("gcc", "examples/vmm.c", &flags);
    let mut command = Command::new(program);
    command.env("ASAN_OPTIONS", "detect_leaks=1");
    check_example(&run(&mut command));
}

#[test]
fn example_has_no_finding_of_valgrind() {
    if !has("valgrind", "example_has_no_finding_of_valgrind") {
        return;
    }
    let programs = Programs::new();
    let program = programs.compile("gcc", "examples/vmm.c", &[]);
    let mut command = Command::new("valgrind");
    command
        .args(["--quiet", "--error-exitcode=99", "--leak-check=full"])
        .arg("--show-leak-kinds=definite")
        // Hash tables of Rust point into their allocations, which counts as "possibly lost".
        .arg("--errors-for-leak-kinds=definite")
        .arg(format!(
            "--suppressions={}",
            source("tests/valgrind.supp").display()
        ))
        .arg(program);
    check_example(&run(&mut command));
}

/// Arguments that are null or invalid, functions that do not fit the network, and what remains valid.
#[test]
fn misuse_is_an_error() {
    let programs = Programs::new();
    let flags = ["-fsanitize=address,undefined"];
    run(&mut Command::new(programs.compile(
        "gcc",
        "tests/misuse.c",
        &flags,
    )));
}

/// A VMM's side of the virtio-net device, and its misuse.
#[test]
fn guest_with_a_device_gets_an_arp_reply() {
    let programs = Programs::new();
    let program = programs.compile("gcc", "tests/device.c", &["-fsanitize=address,undefined"]);
    let output = run(&mut Command::new(program));
    assert_eq!(output, "the gateway is at 02:50\n".repeat(2));
}

/// Number of networks that a child process starts and stops. By hand, more are an argument of the program.
const CYCLES: &str = "1000";

/// A child process shows the state after many networks: memory and descriptors do not grow.
#[test]
fn networks_leave_nothing_behind() {
    let programs = Programs::new();
    let program = programs.compile("gcc", "tests/cycle.c", &["-O1"]);
    let output = run(Command::new(program).arg(CYCLES));
    let _ = writeln!(std::io::stderr(), "{}", output.trim());
}

/// The sizes and offsets of the interface, and its constants.
#[test]
fn layout_is_that_of_the_version() {
    let programs = Programs::new();
    for enumerations in ["-fshort-enums", "-fno-short-enums"] {
        programs.compile("gcc", "tests/layout.c", &[enumerations]);
    }
    let header = library().join("include/pontoon.h");
    run(Command::new("c++")
        .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"])
        .arg(header));
}

#[test]
fn shared_library_exports_the_listed_symbols() {
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library().join("lib/libpontoon.so")));
    let names = symbols.lines().filter_map(|line| line.split_whitespace().last());
    let mut exported: Vec<&str> = names.filter(|name| !name.starts_with("PONTOON_")).collect();
    exported.sort_unstable();
    let map = include_str!("../../pontoon.map").lines();
    let listed = map.filter_map(|line| line.trim().strip_suffix(';'));
    let listed: Vec<String> = listed
        .filter(|name| name.starts_with("pontoon_"))
        .map(|name| format!("{name}@@PONTOON_0"))
        .collect();
    assert_eq!(exported, listed);
}

#[test]
fn python_uses_the_library() {
    let output = run(Command::new("python3")
        .arg(source("examples/network.py"))
        .arg(library().join("lib/libpontoon.so")));
    assert_eq!(
        output,
        "the gateway 10.0.2.2 is at 02:50:6f:6e:74:02\nthe first record is start\n"
    );
}

#[test]
fn go_uses_the_library() {
    if !has("go", "go_uses_the_library") {
        return;
    }
    let lib = library().join("lib");
    let program = Programs::new();
    let output = run(Command::new("go")
        .args(["run", "-ldflags"])
        .arg(format!("-r {}", lib.display()))
        .arg(".")
        .current_dir(source("examples/go"))
        .env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
        .env("GOFLAGS", "-mod=mod")
        .env("GOCACHE", program.0.path().join("cache")));
    assert_eq!(output, "the gateway is at 02 50 6f 6e 74 02\n");
}
