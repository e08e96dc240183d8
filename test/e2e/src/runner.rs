//! Runs the list: each case as a process of its own, in its own namespaces, until its deadline.
//!
//! Machines that run this are noisy: a case that failed is run once more, alone, after all others. A case that fails twice
//! has failed. A case that passes the second time is flaky: the log of its first run is printed at the end, and more than
//! [`MAX_FLAKY`] flaky cases fail the run.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, geteuid, kill_process_group};

use crate::case::{Caller, Case, Context, Load, Outcome, Place};
use crate::process::Program;
use crate::{Options, cases, run, sys};

/// Usual number of [`Load::Shared`] cases that run side by side. Many of them sleep until a timer expires.
pub(crate) const BESIDE: usize = 12;

/// Flaky cases that a run may have. More of them are a defect of the program or of the tests rather than noise.
const MAX_FLAKY: u32 = 2;

/// Exit status of a case's process that could not run; the reason is its standard output.
const SKIPPED: i32 = 77;

/// Result of one case, as the list prints it.
enum Verdict {
    Passed(Duration),
    Skipped(String),
    Failed(Duration, String),
}

/// Counts of the closing line.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    flaky: u32,
    skipped: u32,
}

/// Runs the cases that `options` select; returns true if the run has passed, see [`Tally::has_passed`].
pub(crate) fn run_list(options: &Options) -> Result<bool> {
    let wanted = |case: &Case| {
        let is_selected = options.filters.is_empty()
            || options
                .filters
                .iter()
                .any(|filter| case.name.contains(filter.as_str()));
        is_selected
            && !options
                .excluded
                .iter()
                .any(|prefix| case.name.starts_with(prefix.as_str()))
    };
    let mut cases: Vec<Case> = cases::all().into_iter().filter(wanted).collect();
    for case in &mut cases {
        case.deadline *= options.slow;
    }
    if options.list {
        for case in &cases {
            print_line(&format!("{} ({} s)", case.name, case.deadline.as_secs()))?;
        }
        return Ok(true);
    }
    ensure!(!cases.is_empty(), "no case has such a name");
    let tally = Mutex::new(Tally::default());
    let failed = Mutex::new(Vec::new());
    let first = |case| -> Result<()> {
        if let Some(log) = judge(case, options, &tally)? {
            locked(&failed)?.push((case, log));
        }
        Ok(())
    };
    let of = |load| cases.iter().filter(move |case| case.load == load);
    let mut beside: Vec<&Case> = of(Load::Shared).collect();
    // The longest start first.
    beside.sort_by_key(|case| std::cmp::Reverse(case.deadline));
    let queue = Mutex::new(VecDeque::from(beside));
    let next = || queue.lock().ok()?.pop_front();
    std::thread::scope(|scope| {
        for case in of(Load::Waiting) {
            scope.spawn(move || first(case));
        }
        for _ in 0..options.beside {
            scope.spawn(|| std::iter::from_fn(next).try_for_each(first));
        }
    });
    of(Load::Alone).try_for_each(first)?;
    let mut tally = std::mem::take(&mut *locked(&tally)?);
    let mut flaky = Vec::new();
    for (case, log) in locked(&failed)?.drain(..) {
        let before = tally.flaky;
        let report = tally.second(&case.name, &log, attempt(case, options));
        if tally.flaky > before {
            flaky.push(report);
        } else {
            print_line(&report)?;
        }
    }
    for report in flaky {
        print_line(&report)?;
    }
    if tally.flaky > MAX_FLAKY {
        print_line(&tally.too_flaky())?;
    }
    print_line(&tally.to_string())?;
    Ok(tally.has_passed())
}

/// Runs one case for the first time and prints its line; returns the log of one that failed.
fn judge(case: &Case, options: &Options, tally: &Mutex<Tally>) -> Result<Option<String>> {
    let verdict = match inapplicable(case, options) {
        Some(why) => Verdict::Skipped(why),
        None => attempt(case, options),
    };
    let mut tally = locked(tally)?;
    let name = &case.name;
    match verdict {
        Verdict::Passed(time) => {
            tally.passed += 1;
            print_line(&format!("pass {name} {:.2} s", time.as_secs_f64()))?;
        }
        Verdict::Skipped(why) => {
            tally.skipped += 1;
            print_line(&format!("skip {name}: {why}"))?;
        }
        Verdict::Failed(time, log) => {
            print_line(&format!("again {name}: failed after {:.2} s", time.as_secs_f64()))?;
            return Ok(Some(log));
        }
    }
    Ok(None)
}

impl Tally {
    /// Returns true if no case failed twice and at most [`MAX_FLAKY`] were flaky.
    fn has_passed(&self) -> bool {
        self.failed == 0 && self.flaky <= MAX_FLAKY
    }

    /// Counts too many flaky cases as one failure, so that readers of the closing line find a failed case; returns the
    /// line that explains it.
    fn too_flaky(&mut self) -> String {
        self.failed += 1;
        format!(
            "FAIL {} flaky cases: at most {MAX_FLAKY} are accepted",
            self.flaky
        )
    }

    /// Counts a case that failed first, with `log`; returns its line.
    fn second(&mut self, name: &str, log: &str, verdict: Verdict) -> String {
        match verdict {
            Verdict::Passed(time) => {
                self.flaky += 1;
                format!("flaky {name} {:.2} s{}", time.as_secs_f64(), indented(log))
            }
            Verdict::Skipped(why) => {
                self.failed += 1;
                format!("FAIL {name}{}\n     then skipped: {why}", indented(log))
            }
            Verdict::Failed(time, again) => {
                self.failed += 1;
                format!(
                    "FAIL {name} {:.2} s{}\n     and again{}",
                    time.as_secs_f64(),
                    indented(log),
                    indented(&again)
                )
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            passed,
            failed,
            flaky,
            skipped,
        } = self;
        write!(
            to,
            "{passed} passed, {failed} failed, {flaky} flaky, {skipped} skipped"
        )
    }
}

fn indented(log: &str) -> String {
    format!("\n     | {}", log.trim_end().replace('\n', "\n     | "))
}

fn locked<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    mutex
        .lock()
        .map_err(|_| anyhow::anyhow!("a case's thread panicked"))
}

/// Why `case` cannot be run by this caller.
fn inapplicable(case: &Case, options: &Options) -> Option<String> {
    if case.pontoon_only && options.binary.is_none() {
        return Some("needs the program under test".to_string());
    }
    match case.caller {
        Caller::Root(why) if !geteuid().is_root() => Some(format!("needs root: {why}")),
        Caller::User(why) if geteuid().is_root() => Some(format!("needs a caller who is not root: {why}")),
        Caller::Anyone | Caller::Root(_) | Caller::User(_) => None,
    }
}

/// Runs a case; one that cannot even be begun has failed.
fn attempt(case: &Case, options: &Options) -> Verdict {
    run_case(case, options).unwrap_or_else(|error| Verdict::Failed(Duration::ZERO, format!("{error:#}")))
}

fn run_case(case: &Case, options: &Options) -> Result<Verdict> {
    let mut log = scratch_file()?;
    let mut command = match case.place {
        Place::Machine => Command::new(run::own_path()),
        Place::Isolated => {
            let mut command = Command::new("unshare");
            if !geteuid().is_root() {
                command.args(["--user", "--map-root-user"]);
            }
            command.args([
                "--net",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "--",
            ]);
            command.arg(run::own_path());
            command
        }
    };
    command
        .args(["case", &case.name])
        .args(&options.binary)
        .process_group(0)
        .stdin(Stdio::null());
    let start = Instant::now();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(log.try_clone()?)
        .spawn()
        .context("cannot run unshare")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > case.deadline {
            if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let time = start.elapsed();
    if status.is_some_and(|status| status.success()) {
        return Ok(Verdict::Passed(time));
    }
    let mut text = String::new();
    if status.and_then(|status| status.code()) == Some(SKIPPED) {
        child.stdout.context("no pipe")?.read_to_string(&mut text)?;
        return Ok(Verdict::Skipped(text.trim_end().to_string()));
    }
    log.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    log.read_to_end(&mut bytes)?;
    text.push_str(&String::from_utf8_lossy(&bytes));
    if status.is_none() {
        text.push_str(&format!(
            "killed at its deadline of {} s",
            case.deadline.as_secs()
        ));
    }
    Ok(Verdict::Failed(time, text))
}

/// `case NAME [BINARY]`: runs one case here and now.
pub(crate) fn run_one(arguments: &[String]) -> Result<()> {
    let (name, binary) = match arguments {
        [name] => (name, None),
        [name, binary] => (name, Some(crate::as_the_kernel_names(binary)?)),
        _ => bail!("usage: pontoon-e2e case NAME [BINARY]"),
    };
    let case = cases::all()
        .into_iter()
        .find(|case| case.name == *name)
        .context("no such case")?;
    sys::heed_signals()?;
    let isolated = case.place == Place::Isolated;
    if isolated {
        // Nothing that a case mounts may reach the machine.
        rustix::mount::mount_change(
            "/",
            rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
        )?;
    }
    let program = Program {
        binary,
        drop_privileges: isolated && !is_real_root()?,
        environment: case.environment,
        options: case.options,
    };
    match (case.run)(&Context { program })? {
        Outcome::Passed => Ok(()),
        Outcome::Skipped(why) => {
            print_line(&why)?;
            std::process::exit(SKIPPED)
        }
    }
}

/// Root of the machine, not of a user namespace.
fn is_real_root() -> Result<bool> {
    let map = std::fs::read_to_string("/proc/self/uid_map")?;
    let fields: Vec<&str> = map.split_whitespace().collect();
    Ok(geteuid().is_root() && fields.starts_with(&["0", "0"]))
}

/// A file without a name.
fn scratch_file() -> Result<File> {
    let name = std::env::temp_dir().join(format!(
        "pontoon-e2e.{}.{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let file = File::options()
        .create_new(true)
        .read(true)
        .append(true)
        .open(&name)?;
    std::fs::remove_file(&name)?;
    Ok(file)
}

fn print_line(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(1);

    #[test]
    fn a_second_run_makes_a_failure_flaky_or_a_failure() {
        let mut tally = Tally::default();
        let line = tally.second("one", "first", Verdict::Passed(TIME));
        assert_eq!(line, "flaky one 1.00 s\n     | first");
        let line = tally.second("two", "first", Verdict::Failed(TIME, "a\nb\n".to_string()));
        assert_eq!(
            line,
            "FAIL two 1.00 s\n     | first\n     and again\n     | a\n     | b"
        );
        let line = tally.second("three", "first", Verdict::Skipped("why".to_string()));
        assert_eq!(line, "FAIL three\n     | first\n     then skipped: why");
        assert_eq!(tally.to_string(), "0 passed, 2 failed, 1 flaky, 0 skipped");
    }

    #[test]
    fn a_run_with_more_than_two_flaky_cases_fails() {
        let mut tally = Tally::default();
        for _ in 0..MAX_FLAKY {
            tally.second("flaky", "first", Verdict::Passed(TIME));
            assert!(tally.has_passed());
        }
        tally.second("flaky", "first", Verdict::Passed(TIME));
        assert!(!tally.has_passed());
        assert_eq!(tally.too_flaky(), "FAIL 3 flaky cases: at most 2 are accepted");
        // The format of the closing line is parsed by `cargo xtask test`, which needs a failure for a failed run.
        assert_eq!(tally.to_string(), "0 passed, 1 failed, 3 flaky, 0 skipped");
        assert!(!tally.has_passed());
    }

    #[test]
    fn a_run_with_a_case_that_failed_twice_fails() {
        let mut tally = Tally::default();
        tally.second("failed", "first", Verdict::Failed(TIME, String::new()));
        assert!(!tally.has_passed());
    }
}
