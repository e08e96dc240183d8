//! How often the engine may die before it is not worth another try.

use std::time::{Duration, Instant};

/// When engines died.
#[derive(Debug, Default)]
pub(crate) struct Deaths(Vec<Instant>);

impl Deaths {
    /// The time in which [`Self::MOST`] deaths are too many.
    pub(crate) const WITHIN: Duration = Duration::from_secs(10);

    /// One that dies at once each time would take the machine's CPU for nothing.
    const MOST: usize = 3;

    /// Notes a death. Whether it is one too many.
    pub(crate) fn too_many(&mut self, now: Instant) -> bool {
        self.0.retain(|then| now.duration_since(*then) < Self::WITHIN);
        self.0.push(now);
        self.0.len() >= Self::MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_in_ten_seconds_is_too_many() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut deaths = Deaths::default();
        let verdicts = [0, 9, 10, 19, 20, 21].map(|seconds| deaths.too_many(at(seconds)));
        assert_eq!(verdicts, [false, false, false, false, false, true]);
    }
}
