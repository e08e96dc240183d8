//! CPU time, context switches and memory of a stack's processes: all processes in the PID namespace except the
//! harness's and the client's.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::host::{CLIENT, FIRST_BYTE};

/// Fields of /proc/PID/stat of one process.
struct ProcessStat {
    parent: u32,
    arguments: Vec<String>,
}

/// Running processes by id, at one moment.
pub(crate) struct Processes(BTreeMap<u32, ProcessStat>);

/// Resource usage, summed over the processes of a stack. Memory is in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessUsage {
    pub(crate) cpu_s: f64,
    pub(crate) switches: u64,
    pub(crate) rss: u64,
    /// Proportional set size; `None` if the kernel does not permit reading it.
    pub(crate) pss: Option<u64>,
}

impl Processes {
    /// Returns all running processes of the PID namespace except this one and `persistent`.
    pub(crate) fn running(persistent: &[u32]) -> Self {
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return Self(BTreeMap::new());
        };
        let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_excluded = |id: &u32| *id == std::process::id() || persistent.contains(id);
        let running = ids
            .filter(|id| !is_excluded(id))
            .filter_map(|id| Some((id, ProcessStat::read(id)?)));
        Self(running.collect())
    }

    /// Returns the process id of the load client.
    pub(crate) fn client(&self) -> Option<u32> {
        let is_client = |process: &ProcessStat| {
            process
                .arguments
                .get(1)
                .is_some_and(|verb| verb == CLIENT || verb == FIRST_BYTE)
        };
        self.0
            .iter()
            .find(|(_, process)| is_client(process))
            .map(|(id, _)| *id)
    }

    /// Returns the ids of all processes except the load client and its descendants.
    pub(crate) fn stack(&self) -> Vec<u32> {
        let client = self.client();
        let is_client = |mut id: u32| {
            loop {
                if Some(id) == client {
                    return true;
                }
                match self.0.get(&id) {
                    Some(process) => id = process.parent,
                    None => return false,
                }
            }
        };
        self.0.keys().copied().filter(|id| !is_client(*id)).collect()
    }

    pub(crate) fn kill(&self) {
        for id in self.0.keys() {
            if let Some(id) = Pid::from_raw(id.cast_signed()) {
                let _ = kill_process(id, Signal::KILL);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl ProcessStat {
    /// Reads a process. Returns `None` if it has ended or is a zombie.
    fn read(id: u32) -> Option<Self> {
        let stat = stat(Path::new(&format!("/proc/{id}")))?;
        if stat[0] == "Z" {
            return None;
        }
        let arguments = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let arguments = arguments.split(|byte| *byte == 0).take(2);
        Some(Self {
            parent: stat[1].parse().ok()?,
            arguments: arguments
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect(),
        })
    }
}

/// Returns the fields after the name in the file `stat` of a process's or thread's directory.
fn stat(directory: &Path) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(directory.join("stat")).ok()?;
    // The name is in parentheses and may contain any character, so the last parenthesis ends it.
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split(' ').map(str::to_owned).collect())
}

impl ProcessUsage {
    /// Returns the CPU time and context switches of these processes. A process that has ended counts as zero.
    pub(crate) fn activity(ids: &[u32]) -> Self {
        let mut sum = Self::default();
        for id in ids {
            let tasks = std::fs::read_dir(format!("/proc/{id}/task"))
                .into_iter()
                .flatten();
            for task in tasks.filter_map(Result::ok).map(|task| task.path()) {
                sum.cpu_s += running_seconds(&task).unwrap_or_default();
                let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
                sum.switches += number(&status, "voluntary_ctxt_switches:").unwrap_or_default();
                sum.switches += number(&status, "nonvoluntary_ctxt_switches:").unwrap_or_default();
            }
        }
        sum
    }

    /// Returns [`ProcessUsage::activity`] together with the memory, which takes longer to read.
    pub(crate) fn all(ids: &[u32]) -> Self {
        let mut sum = Self {
            pss: Some(0),
            ..Self::activity(ids)
        };
        for id in ids {
            let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
            sum.rss += number(&status, "VmRSS:").unwrap_or_default() * 1024;
            let pss = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup")).ok();
            let pss = pss.and_then(|text| number(&text, "Pss:"));
            sum.pss = sum.pss.zip(pss).map(|(sum, pss)| sum + pss * 1024);
        }
        sum
    }
}

/// Returns a thread's CPU time in seconds from `schedstat`, in nanoseconds, or, if the kernel lacks that file, from
/// `stat`, in ticks.
fn running_seconds(task: &Path) -> Option<f64> {
    if let Ok(text) = std::fs::read_to_string(task.join("schedstat")) {
        let nanoseconds: u64 = text.split(' ').next()?.parse().ok()?;
        return Some(nanoseconds as f64 / 1e9);
    }
    let stat = stat(task)?;
    let ticks = stat.get(11)?.parse::<u64>().ok()? + stat.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the number in the line of `text` that begins with `key`.
fn number(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(list: &[(u32, u32, &[&str])]) -> Processes {
        let process = |(id, parent, arguments): &(u32, u32, &[&str])| {
            let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
            (
                *id,
                ProcessStat {
                    parent: *parent,
                    arguments,
                },
            )
        };
        Processes(list.iter().map(process).collect())
    }

    #[test]
    fn client_and_its_children_are_not_part_of_the_stack() {
        let all = processes(&[
            (10, 1, &["pontoon", "run"]),
            (11, 10, &["pontoon", "run"]),
            (12, 10, &["/tmp/x/bench", CLIENT]),
            (13, 12, &["/tmp/x/bench", CLIENT]),
            (20, 1, &["slirp4netns", "--configure"]),
        ]);
        assert_eq!(all.client(), Some(12));
        assert_eq!(all.stack(), [10, 11, 20]);
    }

    #[test]
    fn usage_of_this_process_is_read() {
        let usage = ProcessUsage::all(&[std::process::id()]);
        assert!(
            usage.rss > 100_000 && usage.pss.is_some_and(|pss| pss > 0) && usage.cpu_s > 0.0,
            "{usage:?}"
        );
    }
}
