//! `cargo xtask test`: format, lints, tests, the ring's checkers, and the end-to-end list as root and as an
//! unprivileged user.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::{asan, cargo, deny, kernel, need, ring, rustup, step, target, workspace};

/// The unprivileged user of the end-to-end list, made when root finds none.
const USER: &str = "pontoon-test";

const BUILD: Duration = Duration::from_secs(15 * 60);
const UNIT: Duration = Duration::from_secs(8 * 60);
const CHECKER: Duration = Duration::from_secs(15 * 60);
const LIST: Duration = Duration::from_secs(18 * 60);
const MACHINE: Duration = Duration::from_secs(4 * 60);

/// Cases that run by vhost-net, in a machine that is some twenty times slower than this one: one of each kind.
const BY_VHOST_NET: &[&str] = &[
    "vhost-net.auto",
    "vhost-net.on",
    "vhost-net.content",
    "vhost-net.calls-are-few.v4",
    "vhost.dns.udp.v4",
    "vhost.icmp.ping.v6",
    "vhost.publish.tcp-content-both-ways.v6",
    "vhost.publish.udp.v4",
    "vhost.tcp.guest-closes-its-half-first.v4",
    "vhost.tcp.guest-resets.v6",
    "vhost.udp.one-mapping-for-two-servers.v4",
    "vhost.udp.fragments-and-extension-headers.v6",
];

/// Five minutes of everything at once, of which the list itself has some seconds.
const SOAK: [&str; 2] = ["PONTOON_SOAK=300", "soak."];

/// What the closing line says.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    flaky: u32,
    skipped: u32,
}

/// Whether everything passed.
pub(crate) fn run() -> Result<bool> {
    need::install()?;
    kernel::fetch(&target())?;
    let mut tally = Tally::default();
    check(&mut tally, "format", cargo(&["fmt", "--all", "--check"]), BUILD)?;
    check(
        &mut tally,
        "install Rust without std",
        rustup::install_bare(),
        BUILD,
    )?;
    check(
        &mut tally,
        "lints",
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        BUILD,
    )?;
    check(
        &mut tally,
        "build tests",
        cargo(&["test", "--workspace", "--no-run"]),
        BUILD,
    )?;
    check(
        &mut tally,
        "unit and simulation",
        cargo(&["test", "--workspace", "--no-fail-fast"]),
        UNIT,
    )?;
    let (steps, skipped) = deny::steps(cargo);
    for (name, command) in steps {
        check(&mut tally, name, command, BUILD)?;
    }
    if let Some(why) = skipped {
        eprintln!("SKIPPED: {why}");
        tally.skipped += 1;
    }
    if let Some(install) = rustup::install_nightly() {
        check(&mut tally, "install nightly Rust with Miri", install, BUILD)?;
    }
    checkers(&mut tally)?;
    let programs = ["build", "--release", "-p", "pontoon", "-p", "pontoon-e2e"];
    if check(&mut tally, "build programs", cargo(&programs), BUILD)? {
        let programs = publish()?;
        end_to_end(&mut tally, &programs)?;
        vhost_net(&mut tally, &programs)?;
        std::fs::remove_dir_all(&programs)?;
    }
    let Tally {
        passed,
        failed,
        flaky,
        skipped,
    } = tally;
    writeln!(
        std::io::stdout(),
        "{passed} passed, {failed} failed, {flaky} flaky, {skipped} skipped"
    )?;
    Ok(failed == 0)
}

/// Runs a step that must succeed. A failure is in the closing line too, so that it cannot be overlooked there.
fn check(tally: &mut Tally, name: &str, mut command: Command, deadline: Duration) -> Result<bool> {
    let passed = step::run(name, &mut command, deadline)?;
    tally.failed += u32::from(!passed);
    Ok(passed)
}

/// Steps that have one core busy at a time, in two rows beside each other.
fn checkers(tally: &mut Tally) -> Result<()> {
    let named = |(name, command): (&str, Command)| (name.to_owned(), command);
    let ring = ring::steps(cargo, workspace()).into_iter().map(named).collect();
    let asan = asan::steps(cargo, workspace())?;
    let row = |steps: Vec<(String, Command)>| -> Result<u32> {
        let mut failed = 0;
        for (name, mut command) in steps {
            failed += u32::from(!step::aside(&name, &mut command, CHECKER)?);
        }
        Ok(failed)
    };
    let failed = std::thread::scope(|scope| {
        let beside = scope.spawn(|| row(asan));
        let failed = row(ring)?;
        let beside = beside.join().map_err(|_| anyhow!("a step's thread panicked"))?;
        Ok::<u32, anyhow::Error>(failed + beside?)
    })?;
    tally.failed += failed;
    Ok(())
}

/// Copies the programs to where every user can run them.
fn publish() -> Result<PathBuf> {
    let directory = std::env::temp_dir().join(format!("pontoon-test.{}", std::process::id()));
    std::fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755))?;
    let target = target();
    for program in ["pontoon", "pontoon-e2e"] {
        let to = directory.join(program);
        std::fs::copy(target.join("release").join(program), &to)
            .with_context(|| format!("cannot copy {program} to {}", to.display()))?;
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o755))?;
    }
    publish_directory(&kernel::directory(&target), &kernel::directory(&directory))?;
    // Which nobody here builds: its case says so where it is missing.
    let solo5 = target.join("solo5");
    if solo5.is_dir() {
        publish_directory(&solo5, &directory.join("solo5"))?;
    }
    Ok(directory)
}

/// Copies the files of a directory to where every user can read and run them.
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
        let env = || Command::new("env");
        list(tally, "end to end as this user", env(), programs, &home, &[])?;
        return list(tally, "soak as this user", env(), programs, &home, &SOAK);
    }
    let env = Command::new("env");
    list(tally, "end to end as root", env, programs, "/root", &[])?;
    let home = home_of_user()?;
    let as_user = || {
        let mut become_user = Command::new("setpriv");
        become_user.args([
            &format!("--reuid={USER}"),
            &format!("--regid={USER}"),
            "--init-groups",
            "--inh-caps=-all",
            "env",
        ]);
        become_user
    };
    let name = "end to end as an unprivileged user";
    list(tally, name, as_user(), programs, &home, &[])?;
    list(
        tally,
        "soak as an unprivileged user",
        as_user(),
        programs,
        &home,
        &SOAK,
    )
}

/// What this machine's kernel may lack, in a machine with another one: the link's own tests, and the list.
fn vhost_net(tally: &mut Tally, programs: &Path) -> Result<()> {
    let kernel = kernel::recent(&target())?;
    let end_to_end = programs.join("pontoon-e2e");
    let mut link = cargo(&["test", "-p", "pontoon-runtime", "--lib", "--"]);
    link.args(["link::vhost_net", "--test-threads=1"]).env(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
        format!("{} boot {}", end_to_end.display(), kernel.display()),
    );
    check(tally, "vhost-net, the link", link, MACHINE)?;
    let mut machine = Command::new(&end_to_end);
    machine.arg("boot").arg(&kernel).arg(&end_to_end);
    machine
        .arg("--binary")
        .arg(programs.join("pontoon"))
        .args(BY_VHOST_NET);
    listed(tally, "vhost-net, end to end", &mut machine, MACHINE)
}

/// Runs the list through `env`, with a clean environment. `options` are variables of that, and filters of the list.
fn list(
    tally: &mut Tally,
    name: &str,
    mut env: Command,
    programs: &Path,
    home: &str,
    options: &[&str],
) -> Result<()> {
    let (variables, filters): (Vec<&str>, Vec<&str>) = options.iter().partition(|word| word.contains('='));
    env.args([
        "-i",
        &format!("PATH={}", need::PATH),
        &format!("HOME={home}"),
        "LC_ALL=C.UTF-8",
        "TERM=dumb",
    ])
    .args(variables)
    .arg(programs.join("pontoon-e2e"))
    .arg("--binary")
    .arg(programs.join("pontoon"))
    .args(filters)
    .current_dir("/");
    listed(tally, name, &mut env, LIST)
}

/// Runs a command whose output is the list's.
fn listed(tally: &mut Tally, name: &str, command: &mut Command, deadline: Duration) -> Result<()> {
    let mut closed = false;
    let passed = step::lines(name, command, deadline, |line| match closing_line(line) {
        Some([passed, failed, flaky, skipped]) => {
            tally.passed += passed;
            tally.failed += failed;
            tally.flaky += flaky;
            tally.skipped += skipped;
            closed = true;
        }
        None => eprintln!("{line}"),
    })?;
    // A list that was cut short or died has failed, whatever it had counted.
    if !closed {
        tally.failed += 1;
    } else if !passed && tally.failed == 0 {
        bail!("{name}: failed without a failed line");
    }
    Ok(())
}

/// The numbers of a line `N passed, N failed, N flaky, N skipped`.
fn closing_line(line: &str) -> Option<[u32; 4]> {
    let mut parts = line.split(", ");
    let mut part = |word: &str| parts.next()?.strip_suffix(word)?.trim_end().parse().ok();
    let numbers = [part("passed")?, part("failed")?, part("flaky")?, part("skipped")?];
    parts.next().is_none().then_some(numbers)
}

/// The home of [`USER`], who is made if there is none.
fn home_of_user() -> Result<String> {
    if let Some(home) = passwd_home()? {
        return Ok(home);
    }
    let mut useradd = Command::new("useradd");
    useradd.args(["--create-home", "--shell", "/bin/sh", USER]);
    if !step::run(
        &format!("make user {USER}"),
        &mut useradd,
        Duration::from_secs(30),
    )? {
        bail!("cannot make user {USER}");
    }
    passwd_home()?.with_context(|| format!("useradd made no {USER}"))
}

fn passwd_home() -> Result<Option<String>> {
    let users = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let user = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|user| user[0] == USER);
    Ok(user.and_then(|user| user.get(5).map(|home| (*home).to_string())))
}

#[cfg(test)]
mod tests {
    use super::closing_line;

    #[test]
    fn a_closing_line_is_four_numbers_and_nothing_else() {
        let line = "12 passed, 0 failed, 1 flaky, 3 skipped";
        assert_eq!(closing_line(line), Some([12, 0, 1, 3]));
        assert_eq!(closing_line("12 passed, 0 failed, 1 flaky"), None);
        assert_eq!(closing_line(&format!("{line}, 1 odd")), None);
        assert_eq!(closing_line("pass tcp.refused.v4 0.1 s"), None);
    }
}
