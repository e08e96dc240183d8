//! `cargo xtask test`: format, rules of the tree, lints, tests, the ring's checkers, and the end-to-end tests as root and as
//! an unprivileged user.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::setup::{self, USER};
use crate::{
    api, asan, cargo, check, deny, kernel, library, packages, profiles, ring, step, target, workspace,
};

const BUILD: Duration = Duration::from_secs(15 * 60);
const UNIT: Duration = Duration::from_secs(12 * 60);
const CHECKER: Duration = Duration::from_secs(15 * 60);
const LIST: Duration = Duration::from_secs(18 * 60);
const MACHINE: Duration = Duration::from_secs(4 * 60);

/// Cases that run with vhost-net, one of each kind: the virtual machine is about twenty times slower than the host.
const BY_VHOST_NET: &[&str] = &[
    "vhost-net.auto",
    "vhost-net.on",
    "vhost-net.content",
    "vhost-net.calls-per-frame.v4",
    "vhost.dns.udp.v4",
    "vhost.icmp.ping.v6",
    "vhost.publish.tcp-content-both-ways.v6",
    "vhost.publish.udp.v4",
    "vhost.tcp.guest-closes-its-half-first.v4",
    "vhost.tcp.guest-resets.v6",
    "vhost.udp.one-mapping-for-two-servers.v4",
    "vhost.udp.fragments-and-extension-headers.v6",
];

/// Cases that root's list leaves out: those with the heaviest load, those that run alone for long, and those of several workers.
/// They do not depend on the user, and the list of the unprivileged user has them.
const NOT_AS_ROOT: &[&str] = &[
    "floods.",
    "iperf.",
    "load.",
    "qemu.",
    "transfer.",
    "two-workers.",
    "workers.",
];

/// Cases that the unprivileged user's list leaves out: those without Pontoon, which test the tests.
const NOT_AS_USER: &[&str] = &["bare."];

/// Tests that do not run with hand-overs. The first compares each entry into the ledger, and a successor enters its connections
/// again. In the others, workers claim flows whose frames wait in the inbox of another worker; a state does not contain these claims.
const NOT_HANDED_OVER: &[&str] = &[
    "ledger_lists_connections_while_they_last",
    "pending_flow_belongs_to_the_worker_that_has_asked",
    "udp_endpoint_has_one_socket_in_all_workers",
];

/// One minute of the soak case, which takes 15 seconds by default.
const SOAK: &[&str] = &["PONTOON_SOAK=60"];

/// The numbers of the closing line.
#[derive(Default)]
pub(crate) struct Tally {
    passed: u32,
    failed: u32,
    flaky: u32,
    skipped: u32,
    /// Names of the steps, tests and cases that failed, repeated before the closing line: they are found at the end of a long output.
    failures: Vec<String>,
}

/// Runs everything; returns true if everything passed.
pub(crate) fn run() -> Result<bool> {
    setup::run()?;
    let mut tally = Tally::default();
    tally.check("rules of the tree", check::rules()? == 0);
    for (name, mut command) in check::lints() {
        step(&mut tally, name, &mut command, BUILD)?;
    }
    let build = &mut cargo(&["test", "--workspace", "--no-run"]);
    step(&mut tally, "build tests", build, BUILD)?;
    let unit = &mut cargo(&["test", "--workspace", "--no-fail-fast"]);
    tally.harness("unit and simulation", unit, UNIT)?;
    let handed_over = &mut cargo(&[
        "test",
        "--package",
        "pontoon-simnet",
        "--test",
        "transcripts",
        "--test",
        "directed",
        "--no-fail-fast",
        "--",
    ]);
    handed_over.args(NOT_HANDED_OVER.iter().flat_map(|test| ["--skip", test]));
    handed_over.env("PONTOON_HAND_OVERS", "1");
    tally.harness("transcripts with hand-overs", handed_over, UNIT)?;
    for (name, mut command) in profiles::steps()? {
        step(&mut tally, &name, &mut command, BUILD)?;
    }
    eprintln!("--- header of the C library");
    tally.check("header of the C library", library::check()?);
    eprintln!("--- interface of the library");
    tally.check("interface of the library", api::check()?);
    step(
        &mut tally,
        "package the library",
        &mut library::package(false),
        BUILD,
    )?;
    let (steps, skipped) = deny::steps();
    for (name, mut command) in steps {
        step(&mut tally, name, &mut command, BUILD)?;
    }
    if let Some(why) = skipped {
        eprintln!("SKIPPED: {why}");
        tally.skipped += 1;
    }
    let mut is_built = checkers(&mut tally)?;
    // The crates below it are those of the unit tests, which are built already.
    let end_to_end_tests = &mut cargo(&["build", "--profile", "test", "-p", "pontoon-e2e"]);
    is_built &= step(&mut tally, "build the end-to-end tests", end_to_end_tests, BUILD)?;
    if is_built {
        let programs = publish()?;
        end_to_end(&mut tally, &programs)?;
        vhost_net(&mut tally, &programs)?;
        std::fs::remove_dir_all(&programs)?;
    }
    tally.print()
}

impl Tally {
    /// Prints the closing line; returns true if nothing failed.
    pub(crate) fn print(&self) -> Result<bool> {
        let Self {
            passed,
            failed,
            flaky,
            skipped,
            failures,
        } = self;
        let mut output = std::io::stdout().lock();
        for name in failures {
            writeln!(output, "failed: {name}")?;
        }
        writeln!(
            output,
            "{passed} passed, {failed} failed, {flaky} flaky, {skipped} skipped"
        )?;
        Ok(*failed == 0)
    }

    /// Counts a step that must succeed, if it failed.
    fn check(&mut self, name: &str, passed: bool) {
        if !passed {
            self.failed += 1;
            self.failures.push(name.to_owned());
        }
    }

    /// Runs a command that is one test.
    pub(crate) fn single(&mut self, name: &str, command: &mut Command, deadline: Duration) -> Result<()> {
        let passed = step::run(name, command, deadline)?;
        self.passed += u32::from(passed);
        self.check(name, passed);
        Ok(())
    }

    /// Runs `cargo test`, which is one step; the names of the tests that fail are repeated before the closing line.
    fn harness(&mut self, name: &str, command: &mut Command, deadline: Duration) -> Result<()> {
        let mut tests = Vec::new();
        let passed = step::lines(name, command, deadline, |line| {
            tests.extend(failed_test(line));
            eprintln!("{line}");
        })?;
        self.check(name, passed);
        self.failures.append(&mut tests);
        Ok(())
    }

    /// Runs a command whose output is that of the end-to-end tests, and adds its closing line.
    pub(crate) fn listed(&mut self, name: &str, command: &mut Command, deadline: Duration) -> Result<()> {
        let failed_before = self.failed;
        let mut closed = false;
        let passed = step::lines(name, command, deadline, |line| match closing_line(line) {
            Some([passed, failed, flaky, skipped]) => {
                self.passed += passed;
                self.failed += failed;
                self.flaky += flaky;
                self.skipped += skipped;
                closed = true;
            }
            None => {
                if let Some(case) = line.strip_prefix("FAIL ") {
                    self.failures.push(format!("{name}: {case}"));
                }
                eprintln!("{line}");
            }
        })?;
        // Without a closing line the program was killed or panicked; otherwise the command itself may have failed, not a case.
        self.check(name, closed && (passed || self.failed > failed_before));
        Ok(())
    }
}

/// Runs a step that must succeed. A failure is counted in the closing line.
fn step(tally: &mut Tally, name: &str, command: &mut Command, deadline: Duration) -> Result<bool> {
    let passed = step::run(name, command, deadline)?;
    tally.check(name, passed);
    Ok(passed)
}

/// Runs steps that use one core each, in three sequences at the same time: the checkers of the ring, AddressSanitizer, and
/// the build of the program, whose link-time optimisation is serial. Returns true if the program is built.
fn checkers(tally: &mut Tally) -> Result<bool> {
    let named = |(name, command): (&str, Command)| (name.to_owned(), command);
    let ring = ring::steps(cargo, workspace()).into_iter().map(named).collect();
    let asan = asan::steps(workspace())?;
    let program = cargo(&["build", "--release", "-p", "pontoon-cli"]);
    let program = vec![("build the program".to_owned(), program)];
    let row = |steps: Vec<(String, Command)>| -> Result<Vec<String>> {
        let mut failed = Vec::new();
        for (name, mut command) in steps {
            if !step::aside(&name, &mut command, CHECKER)? {
                failed.push(name);
            }
        }
        Ok(failed)
    };
    let [ring, asan, program] = std::thread::scope(|scope| {
        let rows = [ring, asan, program].map(|steps| scope.spawn(|| row(steps)));
        rows.map(|row| row.join().map_err(|_| anyhow!("a step's thread panicked"))?)
    });
    let program = program?;
    let is_built = program.is_empty();
    for name in [ring?, asan?, program].concat() {
        tally.check(&name, false);
    }
    Ok(is_built)
}

/// Copies the programs to a directory from which every user can execute them.
fn publish() -> Result<PathBuf> {
    let directory = std::env::temp_dir().join(format!("pontoon-test.{}", std::process::id()));
    std::fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755))?;
    let target = target();
    // Cargo puts what it builds with the profile `test` into `debug`.
    for (profile, program) in [("release", "pontoon"), ("debug", "pontoon-e2e")] {
        let to = directory.join(program);
        std::fs::copy(target.join(profile).join(program), &to)
            .with_context(|| format!("cannot copy {program} to {}", to.display()))?;
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o755))?;
    }
    publish_directory(&kernel::directory(&target), &kernel::directory(&directory))?;
    // Not built by this workspace: its case is skipped where it is missing.
    let solo5 = target.join("solo5");
    if solo5.is_dir() {
        publish_directory(&solo5, &directory.join("solo5"))?;
    }
    Ok(directory)
}

/// Copies the files of a directory so that every user can read and execute them.
fn publish_directory(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir(to)?;
    std::fs::set_permissions(to, PermissionsExt::from_mode(0o755))?;
    for file in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let file = file?;
        let to = to.join(file.file_name());
        std::fs::copy(file.path(), &to)?;
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o755))?;
    }
    Ok(())
}

fn end_to_end(tally: &mut Tally, programs: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        let home = std::env::var("HOME")?;
        let env = Command::new("env");
        return list(
            tally,
            "end to end as this user",
            env,
            programs,
            &home,
            (SOAK, &[]),
        );
    }
    let env = Command::new("env");
    list(
        tally,
        "end to end as root",
        env,
        programs,
        "/root",
        (&[], NOT_AS_ROOT),
    )?;
    let home = setup::home_of_user()?;
    let mut as_user = Command::new("setpriv");
    as_user.args([
        &format!("--reuid={USER}"),
        &format!("--regid={USER}"),
        "--init-groups",
        "--inh-caps=-all",
        "env",
    ]);
    let name = "end to end as an unprivileged user";
    list(tally, name, as_user, programs, &home, (SOAK, NOT_AS_USER))
}

/// Runs the tests of vhost-net, which this host's kernel may lack, in a virtual machine with a recent kernel.
fn vhost_net(tally: &mut Tally, programs: &Path) -> Result<()> {
    let kernel = kernel::recent(&target())?;
    let end_to_end = programs.join("pontoon-e2e");
    let mut link = cargo(&["test", "-p", "pontoon-link", "--lib", "--"]);
    link.args(["vhost_net", "--test-threads=1"]).env(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
        format!("{} boot {}", end_to_end.display(), kernel.display()),
    );
    let mut machine = Command::new(&end_to_end);
    machine.arg("boot").arg(&kernel).arg(&end_to_end);
    machine
        .arg("--binary")
        .arg(programs.join("pontoon"))
        .args(BY_VHOST_NET);
    // Each virtual machine uses one core, as there is no KVM for it.
    let passed = std::thread::scope(|scope| {
        let beside = scope.spawn(|| step::aside("vhost-net, the link", &mut link, MACHINE));
        tally.listed("vhost-net, end to end", &mut machine, MACHINE)?;
        beside.join().map_err(|_| anyhow!("a step's thread panicked"))?
    })?;
    tally.check("vhost-net, the link", passed);
    Ok(())
}

/// Runs the end-to-end tests through `env`, with no environment variables except `variables` and the necessary ones.
fn list(
    tally: &mut Tally,
    name: &str,
    mut env: Command,
    programs: &Path,
    home: &str,
    (variables, excluded): (&[&str], &[&str]),
) -> Result<()> {
    env.args([
        "-i",
        &format!("PATH={}", packages::PATH),
        &format!("HOME={home}"),
        "LC_ALL=C.UTF-8",
        "TERM=dumb",
    ])
    .args(variables)
    .arg(programs.join("pontoon-e2e"))
    .arg("--binary")
    .arg(programs.join("pontoon"))
    .args(excluded.iter().flat_map(|prefix| ["--except", prefix]))
    .current_dir("/");
    tally.listed(name, &mut env, LIST)
}

/// The numbers of a line `N passed, N failed, N flaky, N skipped`.
fn closing_line(line: &str) -> Option<[u32; 4]> {
    let mut parts = line.split(", ");
    let mut part = |word: &str| parts.next()?.strip_suffix(word)?.trim_end().parse().ok();
    let numbers = [part("passed")?, part("failed")?, part("flaky")?, part("skipped")?];
    parts.next().is_none().then_some(numbers)
}

/// The name of the test that failed, from a line `test NAME ... FAILED` of Rust's test harness.
fn failed_test(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{closing_line, failed_test};

    #[test]
    fn names_of_failed_tests_are_found() {
        let line = "test tcp::tests::reset_is_sent ... FAILED";
        assert_eq!(failed_test(line).as_deref(), Some("tcp::tests::reset_is_sent"));
        assert_eq!(failed_test("test tcp::tests::reset_is_sent ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 1 passed; 1 failed"), None);
    }

    #[test]
    fn a_closing_line_has_exactly_four_numbers() {
        let line = "12 passed, 0 failed, 1 flaky, 3 skipped";
        assert_eq!(closing_line(line), Some([12, 0, 1, 3]));
        assert_eq!(closing_line("12 passed, 0 failed, 1 flaky"), None);
        assert_eq!(closing_line(&format!("{line}, 1 odd")), None);
        assert_eq!(closing_line("pass tcp.refused.v4 0.1 s"), None);
    }
}
