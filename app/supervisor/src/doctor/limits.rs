//! Checks of limits: descriptors, and the size of pipes.

use pontoon_process::{Fix, descriptor};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, pipe_with};
use rustix::process::{Resource, Rlimit, getrlimit};

use super::{Check, DEADLINE, Status, trial};
use crate::host::max_flows;

const DESCRIPTORS: &str = "descriptors";
const PIPES: &str = "pipes";

/// Lowest number of flows that is not reported as a loss.
const FEW_FLOWS: u32 = 1_000;

/// Checks that the limit on descriptors leaves room for flows.
pub(super) fn descriptors() -> Check {
    judge_descriptors(getrlimit(Resource::Nofile), descriptor::more())
}

fn judge_descriptors(limit: Rlimit, fix: Fix) -> Check {
    let flows = max_flows(limit, 0, 1);
    let most = limit
        .maximum
        .map_or_else(|| "unlimited".to_owned(), |most| most.to_string());
    let found = format!("{most}, with room for {flows} flows");
    match flows {
        0 => {
            let consequence = "the guest of pontoon run or vm can open no flow";
            Check::finding(Status::Failure, DESCRIPTORS, found, consequence, fix)
        }
        1..FEW_FLOWS => {
            let consequence = "further flows of the guest are refused";
            Check::finding(Status::Loss, DESCRIPTORS, found, consequence, fix)
        }
        _ => Check::ok(DESCRIPTORS, found),
    }
}

/// Usual size of a pipe in bytes (pipe(7)).
const USUAL: usize = 65_536;

/// Checks that new pipes have the usual size.
pub(super) fn pipes() -> Check {
    let tried = trial::run(DEADLINE, || {
        let size = pipe_with(PipeFlags::CLOEXEC).and_then(|(pipe, _)| fcntl_getpipe_size(pipe));
        size.map_err(|error| error.to_string())
    });
    match tried {
        Ok(Ok(size)) => judge_pipes(size),
        Ok(Err(error)) | Err(error) => Check::incomplete(PIPES, &error),
    }
}

fn judge_pipes(size: usize) -> Check {
    if size >= USUAL {
        return Check::ok(PIPES, format!("{} KiB", size >> 10));
    }
    Check::finding(
        Status::Loss,
        PIPES,
        format!(
            "new pipes of the user have {} KiB: fs.pipe-user-pages-soft is exceeded",
            size >> 10
        ),
        "lines of the engine's log are dropped if many are written at once",
        Fix::root("sysctl -w fs.pipe-user-pages-soft=65536").or("fewer open pipes of the user"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_limit_the_flows() {
        let judge = |maximum| {
            let limit = Rlimit {
                current: Some(64),
                maximum,
            };
            judge_descriptors(limit, Fix::root("prlimit"))
        };
        let few = judge(Some(64));
        assert_eq!(
            (few.status, few.found.as_str()),
            (Status::Failure, "64, with room for 0 flows")
        );
        let few = judge(Some(1024));
        assert_eq!(
            (few.status, few.found.as_str()),
            (Status::Loss, "1024, with room for 960 flows")
        );
        assert_eq!(few.fix, Some(Fix::root("prlimit")));
        assert_eq!(judge(Some(20_000)).status, Status::Ok);
        assert_eq!(judge(None).found, "unlimited, with room for 131072 flows");
    }

    #[test]
    fn small_pipes_are_a_loss() {
        assert_eq!(judge_pipes(65_536), Check::ok("pipes", "64 KiB"));
        assert_eq!(judge_pipes(1 << 20).status, Status::Ok);
        let small = judge_pipes(4096);
        assert_eq!(small.status, Status::Loss);
        assert!(small.found.starts_with("new pipes of the user have 4 KiB: "));
    }
}
