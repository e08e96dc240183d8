//! Snapshots of clocks and counters before and after a measurement, and the difference of two.

use std::time::{Duration, Instant, SystemTime};

use super::processes::{ProcessUsage, Processes};

/// Values of the machine's clocks and CPU counters at one moment.
pub(super) struct Snapshot {
    at: Instant,
    wall: SystemTime,
    cpu: CpuTicks,
    /// Resource usage of the stack's processes; `None` if no stack is measured.
    stack: Option<ProcessUsage>,
}

/// The difference between two snapshots of clocks and CPU counters.
pub(super) struct SnapshotDelta {
    pub(super) seconds: f64,
    /// CPU seconds that all processes and the kernel used.
    pub(super) machine_cpu_s: f64,
    /// CPU seconds that the stack's processes used.
    pub(super) stack_cpu_s: Option<f64>,
    pub(super) switches: Option<u64>,
    /// Share of the CPU time that the hypervisor took (steal), 0 to 1.
    pub(super) steal: f64,
    pub(super) clock_drift_us: f64,
}

impl Snapshot {
    /// Takes a snapshot of the machine only.
    pub(super) fn of_machine() -> Self {
        Self {
            at: Instant::now(),
            wall: SystemTime::now(),
            cpu: CpuTicks::read(),
            stack: None,
        }
    }

    /// Takes a snapshot of the machine and of a stack's processes.
    pub(super) fn of_stack(processes: &Processes) -> Self {
        let stack = processes.stack();
        Self {
            stack: (!stack.is_empty()).then(|| ProcessUsage::activity(&stack)),
            ..Self::of_machine()
        }
    }

    /// Returns the difference between this snapshot and a later one.
    pub(super) fn until(&self, end: &Self) -> SnapshotDelta {
        let elapsed = end.at - self.at;
        let wall = end.wall.duration_since(self.wall).unwrap_or_default();
        let used = self.stack.zip(end.stack);
        let busy = end.cpu.busy.saturating_sub(self.cpu.busy);
        let stolen = end.cpu.steal.saturating_sub(self.cpu.steal);
        let idle = end.cpu.idle.saturating_sub(self.cpu.idle);
        let ticks = busy + stolen + idle;
        SnapshotDelta {
            seconds: elapsed.as_secs_f64(),
            machine_cpu_s: seconds(busy),
            stack_cpu_s: used.map(|(begin, end)| (end.cpu_s - begin.cpu_s).max(0.0)),
            switches: used.map(|(begin, end)| end.switches.saturating_sub(begin.switches)),
            steal: if ticks == 0 {
                0.0
            } else {
                stolen as f64 / ticks as f64
            },
            clock_drift_us: (wall.as_secs_f64() - elapsed.as_secs_f64()).abs() * 1e6,
        }
    }
}

/// Measures for 50 ms how many CPUs are busy.
pub(super) fn busy_cpus() -> f64 {
    let begin = Snapshot::of_machine();
    std::thread::sleep(Duration::from_millis(50));
    let delta = begin.until(&Snapshot::of_machine());
    delta.machine_cpu_s / delta.seconds
}

/// The first line of /proc/stat: CPU time of the machine since boot, in ticks.
struct CpuTicks {
    busy: u64,
    idle: u64,
    steal: u64,
}

impl CpuTicks {
    fn read() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self::parse(text.lines().next().unwrap_or_default())
    }

    /// Parses the fields of the line `cpu` (proc_stat(5)). Guest time is contained in user time.
    fn parse(line: &str) -> Self {
        let fields: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .map_while(|field| field.parse().ok())
            .collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or_default();
        Self {
            busy: field(0) + field(1) + field(2) + field(5) + field(6),
            idle: field(3) + field(4),
            steal: field(7),
        }
    }
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_excludes_idle_iowait_and_steal() {
        let cpu = CpuTicks::parse("cpu  1 2 4 8 16 32 64 128 256 512");
        assert_eq!(
            (cpu.busy, cpu.idle, cpu.steal),
            (1 + 2 + 4 + 32 + 64, 8 + 16, 128)
        );
    }
}
