//! The program under test, its processes, and waits for conditions.

use std::io::ErrorKind;
use std::process::{Command, ExitStatus};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// The program under test, and how it is started.
#[derive(Clone)]
pub(crate) struct Program {
    /// Path of the program; `None` if plain veth replaces it.
    pub(crate) binary: Option<String>,
    /// True if the program is run as a user without privileges, in a user namespace of that user.
    pub(crate) drop_privileges: bool,
    pub(crate) environment: Vec<(&'static str, &'static str)>,
    /// Options that are added to every `pontoon run`.
    pub(crate) options: Vec<&'static str>,
}

impl Program {
    /// Returns a command of the program without arguments.
    pub(crate) fn command(&self) -> Result<Command> {
        let binary = self.binary.as_deref().context("there is no program under test")?;
        let mut command = if self.drop_privileges {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-user=1000", "--map-group=1000", "--", binary]);
            command
        } else {
            Command::new(binary)
        };
        command.envs(self.environment.iter().copied());
        Ok(command)
    }

    /// Returns the process of the engine.
    pub(crate) fn engine(&self) -> Result<Process> {
        self.process("pontoon-engine")
    }

    /// Returns the process of the supervisor, which is the parent of the engine.
    pub(crate) fn supervisor(&self) -> Result<Process> {
        let parent = self.engine()?.parent().context("the engine has no parent")?;
        Ok(Process::of(parent))
    }

    /// Returns the process with the name `name`.
    pub(crate) fn process(&self, name: &str) -> Result<Process> {
        let has_name = |process: &Process| {
            std::fs::read_to_string(process.path("comm")).is_ok_and(|found| found.trim_end() == name)
        };
        let found = self.processes().into_iter().find(has_name);
        found.with_context(|| format!("the program has no process {name}"))
    }

    /// Kills the engine, and waits until another one runs.
    pub(crate) fn kill_engine(&self) -> Result<()> {
        let engine = self.engine()?;
        engine.signal(rustix::process::Signal::KILL)?;
        wait_until("another engine runs", Duration::from_secs(10), || {
            Ok(self.engine().is_ok_and(|other| other.id() != engine.id()))
        })?;
        Ok(())
    }

    /// Returns the running processes of the program.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let binary = self.binary.as_deref().map(std::path::Path::new);
        let ours = |process: &Process| std::fs::read_link(process.path("exe")).ok().as_deref() == binary;
        running().into_iter().filter(ours).collect()
    }

    /// Returns the sum of the resident memory of all processes of the program, in KiB.
    pub(crate) fn resident_kib(&self) -> Result<u64> {
        let processes = self.processes().into_iter();
        processes.map(|process| process.number("status", "VmRSS")).sum()
    }
}

/// A process, by its id in the PID namespace of the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process(u32);

impl Process {
    /// Returns the process with this id.
    pub(crate) fn of(id: u32) -> Self {
        Self(id)
    }

    fn path(self, file: &str) -> String {
        format!("/proc/{}/{file}", self.0)
    }

    pub(crate) fn id(self) -> u32 {
        self.0
    }

    pub(crate) fn signal(self, signal: rustix::process::Signal) -> Result<()> {
        let pid =
            rustix::process::Pid::from_raw(self.0.cast_signed()).context("the process id is not valid")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    fn stat(self) -> Option<Vec<String>> {
        let stat = std::fs::read_to_string(self.path("stat")).ok()?;
        // The name is in parentheses and may contain any character, so the last parenthesis ends it.
        let (_, rest) = stat.rsplit_once(") ")?;
        Some(rest.split(' ').map(str::to_string).collect())
    }

    fn is_zombie(self) -> bool {
        self.stat().is_none_or(|stat| stat[0] == "Z")
    }

    /// Returns the id of the parent process.
    pub(crate) fn parent(self) -> Option<u32> {
        self.stat()?.get(1)?.parse().ok()
    }

    /// Returns the number in a line `key: N kB` or `key: N` of a file in the /proc directory of the process.
    pub(crate) fn number(self, file: &str, key: &str) -> Result<u64> {
        let path = self.path(file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let value = line.and_then(|value| value.split_whitespace().next());
        value
            .and_then(|value| value.parse().ok())
            .with_context(|| format!("{path} has no {key}"))
    }

    /// Returns true if the process waits in a system call (proc_pid_status(5)).
    pub(crate) fn sleeps(self) -> Result<bool> {
        let path = self.path("status");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Ok(text.lines().any(|line| line.starts_with("State:\tS")))
    }

    /// Returns the number of times that threads of the process were woken, and their CPU time in clock ticks.
    pub(crate) fn activity(self) -> Result<(u64, u64)> {
        let mut wakes = 0;
        for task in std::fs::read_dir(self.path("task"))? {
            let status = format!("task/{}/status", task?.file_name().display());
            wakes += self.number(&status, "voluntary_ctxt_switches")?;
        }
        let stat = self.stat().context("the process has exited")?;
        let ticks = stat[11].parse::<u64>()? + stat[12].parse::<u64>()?;
        Ok((wakes, ticks))
    }

    /// Returns the number of open descriptors.
    pub(crate) fn descriptors(self) -> Result<usize> {
        let directory = self.path("fd");
        match std::fs::read_dir(&directory) {
            Ok(entries) => Ok(entries.count()),
            // Only root may list the descriptors of a process that is not dumpable, but every user may read their
            // number (Linux 6.2).
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let count = std::fs::metadata(&directory)?.len();
                ensure!(count > 0, "{directory}: {error}");
                Ok(usize::try_from(count)?)
            }
            Err(error) => Err(error).context(directory),
        }
    }
}

/// Returns the processes in this PID namespace that have not exited, except this one.
pub(crate) fn running() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut all: Vec<Process> = ids
        .filter(|id| *id != std::process::id())
        .map(Process)
        .filter(|process| !process.is_zombie())
        .collect();
    all.sort_unstable();
    all
}

/// Waits until `processes` have exited, and the kernel has closed their descriptors.
pub(crate) fn wait_for_ends(processes: &[Process]) -> Result<()> {
    wait_until("all processes end", Duration::from_secs(5), || {
        Ok(processes.iter().all(|process| process.is_zombie()))
    })?;
    Ok(())
}

/// Measures the time since a start, with and without the time for which tasks of this machine had to wait for a CPU.
pub(crate) struct Stopwatch {
    start: Instant,
    stalled: Duration,
}

impl Stopwatch {
    /// Starts the measurement of time.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            stalled: stalled(&pressure()),
        }
    }

    /// Fails if more than `promise` has passed on a machine with idle CPUs, or more than `limit` on any machine. The
    /// time for which some task was runnable and had no CPU does not count towards `promise`.
    pub(crate) fn within(&self, promise: Duration, limit: Duration) -> Result<Duration> {
        let took = self.start.elapsed();
        let waited = stalled(&pressure()).saturating_sub(self.stalled);
        ensure!(
            is_within(took, waited, promise, limit),
            "took {took:?}, for {waited:?} of which tasks waited for a CPU, instead of {promise:?}"
        );
        Ok(took)
    }
}

fn is_within(took: Duration, waited: Duration, promise: Duration, limit: Duration) -> bool {
    took.saturating_sub(waited) <= promise && took <= limit
}

fn pressure() -> String {
    std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default()
}

/// Returns the total of the line `some` in /proc/pressure/cpu (Linux, `Documentation/accounting/psi.rst`); zero if
/// the kernel has no such accounting.
fn stalled(pressure: &str) -> Duration {
    let total = pressure
        .lines()
        .find_map(|line| line.strip_prefix("some ")?.split_once("total=")?.1.parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}

/// Checks promised times, which apply to a machine without other load. On a loaded machine a violation is printed
/// only, so that load makes no test fail.
pub(crate) struct QuietMachine(bool);

impl QuietMachine {
    /// Measures the load before the test's measurement, while the program under test is idle.
    pub(crate) fn begin() -> Result<Self> {
        Ok(Self(busy_cpus()? < QUIET))
    }

    /// Fails with `broken` if the promise is not kept, and the machine was idle before the measurement and is idle
    /// now.
    pub(crate) fn judge(&self, is_kept: bool, broken: &str) -> Result<()> {
        if is_kept {
            return Ok(());
        }
        let is_quiet = self.0 && busy_cpus()? < QUIET;
        ensure!(!is_quiet, "{broken}");
        eprintln!("not judged, as other programs use the CPUs: {broken}");
        Ok(())
    }
}

/// Number of busy CPUs below which a machine counts as idle.
const QUIET: f64 = 0.1;

/// Returns the number of busy CPUs, averaged over 200 ms.
fn busy_cpus() -> Result<f64> {
    let begin = busy_ticks(&std::fs::read_to_string("/proc/stat")?)?;
    let start = Instant::now();
    // The load is measured over this time.
    std::thread::sleep(Duration::from_millis(200));
    let end = busy_ticks(&std::fs::read_to_string("/proc/stat")?)?;
    let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
    Ok((end.saturating_sub(begin)) as f64 / ticks_per_second / start.elapsed().as_secs_f64())
}

/// Returns the ticks of all CPUs in the first line of /proc/stat, except idle and iowait (proc_stat(5)).
fn busy_ticks(stat: &str) -> Result<u64> {
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let ticks = line.split_whitespace().skip(1).map(str::parse);
    let ticks: Vec<u64> = ticks.collect::<Result<_, _>>()?;
    // The last two fields are ticks of guests, which the first two fields contain as well.
    let ticks = ticks.iter().take(8).enumerate();
    Ok(ticks
        .filter(|(field, _)| ![3, 4].contains(field))
        .map(|(_, ticks)| ticks)
        .sum())
}

/// Polls `done` until it returns true; fails with `what` after `limit`.
pub(crate) fn wait_until(
    what: &str,
    limit: Duration,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<Duration> {
    let start = Instant::now();
    while !done()? {
        ensure!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(start.elapsed())
}

/// Runs a third-party program and returns its standard output. Fails if its exit status is not 0.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    checked(&name, output.status, &output.stdout, &output.stderr)
}

/// Returns the standard output as text if the exit status is 0.
pub(crate) fn checked(name: &str, status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Result<String> {
    let stdout = String::from_utf8_lossy(stdout);
    if !status.success() {
        bail!("{name}: {status}\n{stdout}{}", String::from_utf8_lossy(stderr));
    }
    Ok(stdout.into_owned())
}

/// Waits for a thread, and returns its result.
pub(crate) fn join<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| bail!("a thread panicked"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_cpu_does_not_count_for_the_promise() {
        let millis = Duration::from_millis;
        let is_within = |took, waited| is_within(millis(took), millis(waited), millis(200), millis(2000));
        assert!(is_within(200, 0));
        assert!(!is_within(201, 0));
        assert!(is_within(316, 116));
        assert!(!is_within(316, 115));
        assert!(!is_within(2001, 2001));
    }

    #[test]
    fn busy_ticks_exclude_idle_iowait_and_guests() {
        let stat = "cpu  1 2 4 1000 1000 8 16 32 1000 1000\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat).unwrap(), 63);
        assert!(busy_ticks("").is_err());
    }

    #[test]
    fn total_of_the_line_some_is_read() {
        let text = "some avg10=97.72 avg60=88.36 avg300=46.54 total=443043129\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(stalled(text), Duration::from_micros(443_043_129));
        assert_eq!(stalled(""), Duration::ZERO);
    }
}
