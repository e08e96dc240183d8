//! Tests of the program `pontoon-bench` on this machine. They need user namespaces (or root) and `ip`.

#![expect(
    clippy::unwrap_used,
    reason = "all of this is tests; clippy knows only the functions marked so"
)]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use pontoon_bench::report::read_json;
use pontoon_bench::schema::{BenchmarkReport, SampleOutcome};
use tempfile::TempDir;

/// User id of an unprivileged user.
const UNPRIVILEGED_USER: u32 = 65534;

/// File that lists the TCP congestion controls that a network namespace may use.
const CONGESTION_CONTROLS: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

const HARNESS: &str = env!("CARGO_BIN_EXE_pontoon-bench");

/// Returns the path of `pontoon` beside the harness. Cargo builds it with the workspace's tests, but not with those
/// of this package alone.
fn pontoon() -> PathBuf {
    static BUILT: Once = Once::new();
    let path = Path::new(HARNESS).with_file_name("pontoon");
    BUILT.call_once(|| {
        if !path.exists() {
            let status = Command::new(env!("CARGO"))
                .args(["build", "--package", "pontoon"])
                .status();
            assert!(status.unwrap().success(), "cannot build pontoon");
        }
    });
    path
}

/// A world-writable directory with copies of both programs that every user may execute.
struct ProgramDirectory(TempDir);

impl ProgramDirectory {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let directory = Self(directory);
        directory.install("pontoon-bench", HARNESS.as_ref());
        directory.install("pontoon", &pontoon());
        directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a command of `pontoon-bench` with `arguments`, which are separated by spaces.
    fn bench(&self, arguments: &str) -> Command {
        let mut command = Command::new(self.path("pontoon-bench"));
        command
            .args(arguments.split(' '))
            .current_dir(self.0.path())
            .env("TMPDIR", self.0.path());
        command
    }

    fn report(&self) -> BenchmarkReport {
        read_json(&self.path("r.json")).unwrap()
    }

    /// Installs a shell script under `name`, as the program of a stack.
    fn script(&self, name: &str, text: &str) {
        let source = self.path("script");
        std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).unwrap();
        self.install(name, &source);
    }

    /// Installs a program that every user may execute. `install`(1) copies it in a process of its own: if another
    /// test forked while this process had the file open for writing, the child would hold that descriptor, and the
    /// file could not be executed (ETXTBSY).
    fn install(&self, name: &str, source: &Path) {
        let status = Command::new("install")
            .args(["-m", "755"])
            .arg(source)
            .arg(self.path(name))
            .status()
            .unwrap();
        assert!(status.success());
    }
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the process id of a child of `parent`, if it has one.
fn child_of(parent: u32) -> Option<u32> {
    let children = format!("/proc/{parent}/task/{parent}/children");
    std::fs::read_to_string(children)
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Returns the ids of the processes in the network namespace `namespace`.
fn inside(namespace: &Path) -> BTreeSet<u32> {
    let ids = std::fs::read_dir("/proc").unwrap();
    let ids = ids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    ids.filter(|id: &u32| {
        std::fs::read_link(format!("/proc/{id}/ns/net")).is_ok_and(|found| found == namespace)
    })
    .collect()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a running harness has made its network namespace, and returns the namespace.
fn namespace_of(harness: &Child) -> PathBuf {
    let mut found = None;
    let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
    wait_until("the harness makes no namespace", || {
        found = child_of(harness.id())
            .and_then(|inner| std::fs::read_link(format!("/proc/{inner}/ns/net")).ok())
            .filter(|namespace| *namespace != ours);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn root_and_unprivileged_user_measure() {
    let directory = ProgramDirectory::new();
    let allowed = std::fs::read_to_string(CONGESTION_CONTROLS).unwrap();
    let users: &[Option<u32>] = if rustix::process::geteuid().is_root() {
        &[None, Some(UNPRIVILEGED_USER)]
    } else {
        &[None]
    };
    for user in users {
        let mut command = directory.bench(
            "rr tcp-up startup publish-crr --rounds 1 --duration 0.3 --against direct,veth --output r.json --html r.html",
        );
        if let Some(user) = user {
            command.uid(*user).gid(*user);
        }
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
        let report = directory.report();
        for stack in ["direct", "veth", "pontoon"] {
            let find = |cell: &str| {
                let sample = report
                    .samples
                    .iter()
                    .find(|sample| sample.cell == cell && sample.stack == stack);
                sample.unwrap_or_else(|| panic!("no {cell} of {stack}"))
            };
            let measured = |cell: &str| {
                let sample = find(cell);
                assert_eq!(sample.outcome, SampleOutcome::Measured, "{cell} of {stack}");
                sample
            };
            assert!(measured("rr").values["p50_us"] > 1.0);
            for control in ["cubic", "bbr"] {
                let best = format!("tcp-up/1/{control}/best");
                if !allowed.split_whitespace().any(|other| other == control) {
                    let outcome = &find(&best).outcome;
                    assert!(
                        matches!(outcome, SampleOutcome::Unreachable { .. }),
                        "{best}: {outcome:?}"
                    );
                    continue;
                }
                let best = measured(&best);
                assert!(best.values["mbps"] > 10.0);
                let both = best.conditions.congestion_control.clone();
                assert_eq!(both, Some([control.to_owned(), control.to_owned()]), "{stack}");
                if control == "cubic" {
                    let ethernet = measured("tcp-up/1/cubic/1500");
                    assert_eq!(ethernet.conditions.mtu, Some(1500));
                }
            }
            measured("tcp-up/hash");
            let cpu = measured("rr").values.get("stack_cpu_s").copied();
            assert_eq!(
                cpu.is_some_and(|cpu| cpu > 0.0),
                stack == "pontoon",
                "{stack}: {cpu:?}"
            );
            assert!(measured("publish-crr/1").values["p50_us"] > 1.0);
            assert!(measured("startup").values["first_byte_us"] > 1.0);
        }
        assert!(String::from_utf8_lossy(&output.stdout).contains("| pontoon |"));
        std::fs::remove_file(directory.path("r.json")).unwrap();
        std::fs::remove_file(directory.path("r.html")).unwrap();
    }
}

#[test]
fn hanging_stack_is_reported_and_killed() {
    let directory = ProgramDirectory::new();
    directory.script(
        "hangs",
        "[ \"$1\" = --version ] && echo hangs 1 && exit; exec sleep 1000",
    );
    let begun = Instant::now();
    let output =
        run(&mut directory.bench("rr --rounds 1 --duration 0.3 --against pasta=hangs --output r.json"));
    assert_eq!(output.status.code(), Some(3), "{}", complaint(&output));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let outcomes: Vec<_> = directory
        .report()
        .samples
        .into_iter()
        .map(|sample| sample.outcome)
        .collect();
    assert_eq!(
        outcomes,
        [SampleOutcome::Measured, SampleOutcome::Stalled { at_byte: 0 }]
    );
    assert!(
        complaint(&output).contains("rr pasta: stalled"),
        "{}",
        complaint(&output)
    );
}

#[test]
fn last_line_of_failed_stack_is_reported() {
    let directory = ProgramDirectory::new();
    directory.script(
        "fails",
        "[ \"$1\" = --version ] && echo fails 1 && exit; echo no tap here >&2; exit 1",
    );
    let output =
        run(&mut directory.bench("rr --rounds 1 --duration 0.3 --against pasta=fails --output r.json"));
    assert_eq!(output.status.code(), Some(3));
    let why = "no tap here".to_owned();
    assert!(
        directory
            .report()
            .samples
            .iter()
            .any(|sample| sample.outcome == SampleOutcome::Failed { why: why.clone() })
    );
}

#[test]
fn missing_stack_is_a_warning() {
    let directory = ProgramDirectory::new();
    let output =
        run(&mut directory.bench("rr --rounds 1 --duration 0.3 --against pasta=/nowhere --output r.json"));
    assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
    let lines = complaint(&output);
    let about: Vec<_> = lines.lines().filter(|line| line.contains("pasta")).collect();
    assert_eq!(about, ["warning: pasta is not measured: /nowhere does not exist"]);
    let report = directory.report();
    assert_eq!(report.samples.len(), 1);
    assert!(
        report
            .stacks
            .iter()
            .any(|stack| stack.name == "pasta" && stack.missing.is_some())
    );
}

#[test]
fn wrong_usage_has_one_line_and_status_2() {
    let directory = ProgramDirectory::new();
    for wrong in [
        "nonsense",
        "--against nonsense",
        "--rounds 0",
        "--resume",
        "compare one.json",
    ] {
        let output = run(&mut directory.bench(wrong));
        assert_eq!(output.status.code(), Some(2), "{wrong}");
        assert_eq!(complaint(&output).lines().count(), 1, "{}", complaint(&output));
        assert!(complaint(&output).contains("(try: "), "{}", complaint(&output));
    }
    let output = run(&mut directory.bench("compare a.json b.json"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(complaint(&output).lines().count(), 1, "{}", complaint(&output));
}

#[test]
fn killed_run_leaves_no_process_and_can_be_resumed() {
    let directory = ProgramDirectory::new();
    let line = "rr udp-rr --rounds 3 --duration 0.3 --against direct,veth --output r.json";
    let expected = 2 * 3 * 3;
    let mut harness = directory
        .bench(line)
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let namespace = namespace_of(&harness);
    wait_until("no third sample is written", || {
        read_json(&directory.path("r.json")).is_ok_and(|report| report.samples.len() >= 3)
    });
    harness.kill().unwrap();
    harness.wait().unwrap();
    wait_until("processes are left", || inside(&namespace).is_empty());
    let taken = directory.report().samples;
    assert!(taken.len() < expected, "it was done already");

    let again = run(&mut directory.bench(line));
    assert_eq!(again.status.code(), Some(1));
    assert!(
        complaint(&again).contains("(try: --resume"),
        "{}",
        complaint(&again)
    );
    let other = run(&mut directory.bench(&line.replace("--rounds 3", "--rounds 2 --resume")));
    assert_eq!(other.status.code(), Some(1));
    assert_eq!(complaint(&other).lines().count(), 1, "{}", complaint(&other));

    let resumed = run(&mut directory.bench(&format!("{line} --resume")));
    assert_eq!(resumed.status.code(), Some(0), "{}", complaint(&resumed));
    let samples = directory.report().samples;
    assert_eq!(samples[..taken.len()], taken);
    let distinct: BTreeSet<_> = samples
        .iter()
        .map(|sample| (sample.round, &sample.cell, &sample.stack))
        .collect();
    assert_eq!((samples.len(), distinct.len()), (expected, expected));
    let in_turn: Vec<_> = samples
        .iter()
        .take(3)
        .map(|sample| sample.stack.as_str())
        .collect();
    assert_eq!(in_turn, ["direct", "veth", "pontoon"]);
}

#[test]
fn interrupted_run_leaves_no_process_and_no_file() {
    let directory = ProgramDirectory::new();
    let mut harness = directory
        .bench("rr --rounds 100 --duration 0.3 --against veth")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let namespace = namespace_of(&harness);
    wait_until("nothing starts", || inside(&namespace).len() > 2);
    let id = rustix::process::Pid::from_child(&harness);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let status = harness.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(inside(&namespace), BTreeSet::new());
    let left: BTreeSet<_> = std::fs::read_dir(directory.0.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["pontoon", "pontoon-bench"].map(str::to_owned).into());
}

#[test]
fn two_builds_are_compared_round_by_round() {
    let directory = ProgramDirectory::new();
    let measured = run(&mut directory.bench(
        "rr --rounds 2 --duration 0.2 --against pontoon-old=pontoon --variant event=--io=event --output r.json",
    ));
    assert_eq!(measured.status.code(), Some(0), "{}", complaint(&measured));
    let stacks: Vec<_> = directory
        .report()
        .stacks
        .into_iter()
        .map(|stack| stack.name)
        .collect();
    assert_eq!(stacks, ["pontoon-old", "pontoon", "pontoon-event"]);

    let compared = run(&mut directory.bench("compare r.json r.json --stacks pontoon-old,pontoon"));
    assert_eq!(compared.status.code(), Some(0), "{}", complaint(&compared));
    let text = String::from_utf8_lossy(&compared.stdout);
    assert!(text.contains("compared round by round"), "{text}");
    assert_eq!(
        text.lines().filter(|line| line.starts_with("| `rr`")).count(),
        1,
        "{text}"
    );
    let unknown = run(&mut directory.bench("compare r.json r.json --stacks pontoon-old,veth"));
    assert_eq!(unknown.status.code(), Some(1));
    assert!(
        complaint(&unknown).contains("no stack veth"),
        "{}",
        complaint(&unknown)
    );
}

#[test]
fn guests_in_shared_memory_are_measured() {
    let directory = ProgramDirectory::new();
    let output = run(&mut directory.bench("shm --rounds 1 --duration 0.1 --output s.json"));
    assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.ends_with("% |"))
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>())
        // The rows of published figures have fewer columns.
        .filter(|row| row.len() > 8)
        .collect();
    assert_eq!(
        rows.len(),
        17 + 15,
        "the link alone, and through the engine: {text}"
    );
    for row in &rows {
        let (rate, _) = row[3].split_once(' ').unwrap_or((row[3], ""));
        let rate = rate.replace(',', "").parse();
        let moved = rate.is_ok_and(|rate: f64| rate > 1000.0);
        assert_eq!(moved, row[1] != "idle", "{row:?}");
    }
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(directory.path("s.json")).unwrap()).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), rows.len());
    assert_eq!(json["rounds"], 1);
}
