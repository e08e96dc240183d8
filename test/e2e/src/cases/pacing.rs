//! Cases about the effect of polling workers on other processes.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::case::{Case, Context, Outcome};
use crate::process;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::may_skip("pacing.no-spinning-under-a-quota", 20, quota)
            .on_machine()
            .pontoon_only(),
    ]
}

/// A control group of the test with a CPU quota, removed on drop.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Creates a control group with the quota of one CPU, in version 1 or 2 of control groups. Returns `None` if this
    /// user may not do so.
    fn of_one_cpu() -> Option<Self> {
        let [v1, v2] = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"].map(PathBuf::from);
        let name = format!("pontoon-e2e-{}", std::process::id());
        let (root, limits) = match v1.is_dir() {
            true => (
                v1,
                &[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "100000")][..],
            ),
            false => (v2, &[("cpu.max", "100000 100000")][..]),
        };
        let group = Self(root.join(name));
        std::fs::create_dir(&group.0).ok()?;
        for (file, limit) in limits {
            std::fs::write(group.0.join(file), limit).ok()?;
        }
        Some(group)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The removal fails while a process is in the group.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Tests that the engine observes a quota of the CPU time, regardless of the control group it runs in.
fn quota(context: &Context) -> Result<Outcome> {
    let spins = |line: &str| -> Result<bool> {
        let mut command = context.program.command()?;
        let output = command.args(["run", "-vv", "--", "sh", "-c", line]).output()?;
        let talk = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{talk}");
        Ok(talk.contains("no spinning"))
    };
    let cpus: u32 = process::output(std::process::Command::new("nproc").arg("--all"))?
        .trim()
        .parse()?;
    if cpus < 2 {
        return Ok(Outcome::Skipped("one CPU: no worker spins".to_owned()));
    }
    ensure!(!spins("true")?, "no spinning on {cpus} CPUs");
    let Some(group) = ControlGroup::of_one_cpu() else {
        return Ok(Outcome::Skipped("may not make a control group".to_owned()));
    };
    std::fs::write(group.0.join("cgroup.procs"), std::process::id().to_string())?;
    let seen = spins("true");
    let above = group.0.with_file_name("cgroup.procs");
    std::fs::write(above, std::process::id().to_string())?;
    ensure!(seen?, "the engine polls under a quota of one CPU");
    Ok(Outcome::Passed)
}
