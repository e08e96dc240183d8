//! The processes of the running relays: all processes in the PID namespace except the harness.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Time between SIGTERM and SIGKILL for a relay.
const EXIT_TIME: Duration = Duration::from_millis(200);

/// The running relays of a measurement. These processes and their descendants are killed on drop.
pub(super) struct RelayProcesses(pub(super) Vec<Child>);

impl RelayProcesses {
    /// Returns the CPU time that all processes of the relays have used, in seconds.
    pub(super) fn cpu(&self) -> f64 {
        others().into_iter().filter_map(cpu_of).sum()
    }
}

impl Drop for RelayProcesses {
    fn drop(&mut self) {
        for child in &self.0 {
            if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        let begin = Instant::now();
        while !others().is_empty() && begin.elapsed() < EXIT_TIME {
            self.0
                .retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
            std::thread::sleep(Duration::from_millis(1));
        }
        for pid in others() {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn others() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(|id: &i32| id.cast_unsigned() != std::process::id())
        .collect()
}

/// Returns the CPU time of a process in seconds, from the first field of `schedstat`, which is in nanoseconds.
fn cpu_of(process: i32) -> Option<f64> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let of_task = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanoseconds: u64 = text.split(' ').next()?.parse().ok()?;
        Some(nanoseconds as f64 / 1e9)
    };
    Some(tasks.filter_map(Result::ok).filter_map(of_task).sum())
}

/// Returns the CPU time that all processes and the kernel have used since boot, in seconds.
pub(super) fn machine_cpu() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    // Fields user, nice, system, irq and softirq; without idle and iowait (proc_stat(5)).
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| fields.get(*at)).sum();
    Ok(busy as f64 / rustix::param::clock_ticks_per_second() as f64)
}
