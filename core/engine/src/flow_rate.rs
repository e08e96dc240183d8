//! The limit of `--max-flow-rate`, by the generic cell rate algorithm (ITU-T I.371).

use core::time::Duration;

use crate::Instant;

/// The time whose flows may begin at once: programs open many connections together.
const BURST: Duration = Duration::from_secs(1);

/// The decision about a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    /// The flow may begin.
    Admitted,
    /// A limit does not allow the flow.
    Refused,
}

/// Admits one more flow under a limit of `rate` a second, and counts it if it is admitted. `due` is the theoretical start
/// time of the last one, had all been spaced evenly.
///
/// The flows of a sender above the limit are admitted evenly. If the first ones of each second were, a flood of connects
/// would take the worker's whole time for a fifth of each second.
pub fn admit(due: &mut Instant, rate: u32, now: Instant) -> Admission {
    let Some(one) = Duration::from_secs(1).checked_div(rate) else {
        return Admission::Refused;
    };
    let next = (*due).max(now) + one;
    if next > now + BURST {
        return Admission::Refused;
    }
    *due = next;
    Admission::Admitted
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(7_000_000_000);

    /// Returns the number of `requests` that are admitted at one time.
    fn at_once(due: &mut Instant, rate: u32, now: Instant, requests: usize) -> usize {
        (0..requests)
            .map(|_| admit(due, rate, now))
            .filter(|admission| *admission == Admission::Admitted)
            .count()
    }

    #[test]
    fn flows_of_one_second_are_admitted_at_once() {
        for rate in [1, 2, 7, 20_000, u32::MAX] {
            let requests = 2 * rate.min(100_000) as usize;
            let expected = requests.min(rate as usize);
            assert_eq!(at_once(&mut Instant(0), rate, NOW, requests), expected, "{rate}");
        }
        assert_eq!(at_once(&mut Instant(0), 0, NOW, 1), 0);
    }

    #[test]
    fn flows_above_the_limit_are_admitted_evenly() {
        let mut due = Instant(0);
        assert_eq!(at_once(&mut due, 1000, NOW, 5000), 1000);
        for step in 1..=3000 {
            let now = NOW + Duration::from_millis(step);
            assert_eq!(at_once(&mut due, 1000, now, 5), 1, "{step} ms");
        }
        let rested = NOW + Duration::from_secs(5);
        assert_eq!(at_once(&mut due, 1000, rested, 5000), 1000);
    }

    #[test]
    fn clock_that_steps_back_admits_no_extra_flow() {
        let mut due = Instant(0);
        assert_eq!(at_once(&mut due, 2, NOW, 5), 2);
        assert_eq!(at_once(&mut due, 2, NOW - Duration::from_millis(1), 5), 0);
    }
}
