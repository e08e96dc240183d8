//! `--max-flow-rate`: who is beyond it, by the generic cell rate algorithm (ITU-T I.371).

use core::time::Duration;

use crate::Instant;

/// As many as a limit allows in this time may begin at once: programs open many connections together.
const BURST: Duration = Duration::from_secs(1);

/// A flow is refused because `--max-flows` or `--max-flow-rate` is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimitReached;

/// Counts one more flow under a limit of `rate` a second. `due` is when the last one would have begun, had all come
/// evenly.
///
/// A sender above the limit is admitted evenly. With as many a second as come first, a flood of connects took the
/// worker's whole time for a fifth of each second.
///
/// # Errors
/// The limit does not allow the flow, and it is not counted.
pub fn count(due: &mut Instant, rate: u32, now: Instant) -> Result<(), FlowLimitReached> {
    let one = Duration::from_secs(1).checked_div(rate).ok_or(FlowLimitReached)?;
    let next = (*due).max(now) + one;
    if next > now + BURST {
        return Err(FlowLimitReached);
    }
    *due = next;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(7_000_000_000);

    /// Returns the number of `flows` that are admitted at one time.
    fn at_once(due: &mut Instant, rate: u32, now: Instant, flows: usize) -> usize {
        (0..flows).filter(|_| count(due, rate, now).is_ok()).count()
    }

    #[test]
    fn what_a_second_allows_may_begin_at_once() {
        for rate in [1, 2, 7, 20_000, u32::MAX] {
            let flows = 2 * rate.min(100_000) as usize;
            let expected = flows.min(rate as usize);
            assert_eq!(at_once(&mut Instant(0), rate, NOW, flows), expected, "{rate}");
        }
        assert_eq!(at_once(&mut Instant(0), 0, NOW, 1), 0);
    }

    #[test]
    fn who_keeps_beyond_the_limit_is_let_in_evenly() {
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
    fn time_that_goes_back_a_little_gives_nothing_away() {
        let mut due = Instant(0);
        assert_eq!(at_once(&mut due, 2, NOW, 5), 2);
        assert_eq!(at_once(&mut due, 2, NOW - Duration::from_millis(1), 5), 0);
    }
}
