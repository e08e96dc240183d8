//! Number of CPUs that this process may use at one time, which its CPU affinity and the CPU quota of its cgroup limit.

use std::path::{Path, PathBuf};

/// Returns the number of CPUs that this process may use: the smaller of the number of CPUs in its affinity and its CPU quota.
#[must_use]
pub(crate) fn available() -> f64 {
    let affinity = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    places(&groups, &mounts)
        .iter()
        .filter_map(|place| quota(place))
        .fold(f64::from(affinity), f64::min)
}

/// Returns the directories of this process's cgroups that may have a quota, from its own cgroup up to the root of the
/// mount.
fn places(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        // cgroup version 2 has one hierarchy, which names no controller.
        let v2 = controllers.is_empty();
        if !v2 && !controllers.split(',').any(|name| name == "cpu") {
            continue;
        }
        for (root, point) in mounts.lines().filter_map(|line| mount(line, v2)) {
            let Ok(below) = Path::new(path).strip_prefix(root) else {
                continue;
            };
            places.extend(below.ancestors().map(|below| Path::new(point).join(below)));
        }
    }
    places
}

/// Returns root and mount point in a line of mountinfo, if the mount is a cgroup hierarchy with a CPU controller (proc(5)).
fn mount(line: &str, v2: bool) -> Option<(&str, &str)> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(3);
    let (root, point) = (front.next()?, front.next()?);
    let mut back = back.split(' ');
    let (kind, options) = (back.next()?, back.nth(1)?);
    let cpu = match kind {
        "cgroup2" => v2,
        "cgroup" => !v2 && options.split(',').any(|option| option == "cpu"),
        _ => false,
    };
    cpu.then_some((root, point))
}

/// Returns the number of CPUs that the cgroup in `place` may use at one time; `None` if it has no limit.
fn quota(place: &Path) -> Option<f64> {
    let read = |name: &str| std::fs::read_to_string(place.join(name)).ok();
    if let Some(text) = read("cpu.max") {
        let (quota, period) = text.trim().split_once(' ')?;
        return ratio(quota, period);
    }
    ratio(
        read("cpu.cfs_quota_us")?.trim(),
        read("cpu.cfs_period_us")?.trim(),
    )
}

/// Returns the quota divided by its period; `None` if there is no limit: "max" (cgroup version 2), -1 (version 1).
fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_directories_of_both_cgroup_versions_are_found() {
        let mounts = "\
30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
        let groups = "4:memory:/a\n3:cpu,cpuacct:/jobs/one\n0::/x\n";
        let paths = [
            "/sys/fs/cgroup/cpu,cpuacct/jobs/one",
            "/sys/fs/cgroup/cpu,cpuacct/jobs",
            "/sys/fs/cgroup/cpu,cpuacct/",
            "/sys/fs/cgroup/unified/x",
            "/sys/fs/cgroup/unified/",
        ];
        assert_eq!(places(groups, mounts), paths.map(PathBuf::from));
    }

    #[test]
    fn a_container_sees_its_own_group_as_root() {
        let mounts = "40 25 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(
            places("0::/docker/abc\n", mounts),
            [PathBuf::from("/sys/fs/cgroup/")]
        );
        assert!(places("0::/elsewhere\n", mounts).is_empty());
    }

    #[test]
    fn reads_quotas() {
        assert_eq!(ratio("150000", "100000"), Some(1.5));
        assert_eq!(ratio("max", "100000"), None);
        assert_eq!(ratio("-1", "100000"), None);
    }

    #[test]
    fn available_cpus_are_more_than_zero() {
        assert!(available() > 0.0);
    }
}
