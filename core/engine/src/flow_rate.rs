//! The limit on new flows per second (`--max-flow-rate`), by the generic cell rate algorithm (ITU-T I.371).

use core::time::Duration;

use crate::Instant;

/// Burst tolerance: the flows that the rate permits in this time may be opened at once, because programs open many
/// connections together.
const BURST: Duration = Duration::from_secs(1);

/// Decision about a new flow, subject to the limits on flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    /// The flow may be opened.
    Admitted,
    /// A limit does not permit the flow.
    Refused,
}

/// The side that opens a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowOpener {
    /// The guest.
    Guest,
    /// A client of a published port. Clients may use three fourths of the burst, so that a flood of them leaves the guest's
    /// own flows the rest; at a rate of one flow a second both have the same burst.
    Client,
}

/// Decides whether a limit of `rate` flows per second admits one more flow, and counts it if so. `due` is the
/// theoretical arrival time of the last admitted flow, if flows were evenly spaced.
///
/// Flows above the limit are admitted at even intervals. If instead the first flows of each second were admitted, a
/// flood of connects would occupy the worker for a fifth of each second without interruption.
pub fn admit(due: &mut Instant, rate: u32, opener: FlowOpener, now: Instant) -> Admission {
    let burst = match opener {
        FlowOpener::Guest => BURST,
        FlowOpener::Client => BURST * 3 / 4,
    };
    let Some(one) = Duration::from_secs(1).checked_div(rate) else {
        return Admission::Refused;
    };
    let next = (*due).max(now) + one;
    // At least one flow, even if the burst is shorter than the interval of the rate.
    if next > now + burst.max(one) {
        return Admission::Refused;
    }
    *due = next;
    Admission::Admitted
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(7_000_000_000);

    /// Returns the number of the `requests` flows that are admitted at the time `now`.
    fn at_once(due: &mut Instant, rate: u32, now: Instant, requests: usize) -> usize {
        (0..requests)
            .map(|_| admit(due, rate, FlowOpener::Guest, now))
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
    fn clients_leave_a_fourth_of_the_burst_to_the_guest() {
        let mut due = Instant(0);
        let clients = |due: &mut Instant, now| {
            (0..5000)
                .filter(|_| admit(due, 1000, FlowOpener::Client, now) == Admission::Admitted)
                .count()
        };
        assert_eq!(clients(&mut due, NOW), 750);
        assert_eq!(at_once(&mut due, 1000, NOW, 5000), 250);
        // A flood of clients for three seconds, with some flows of the guest each millisecond.
        let mut guest = 0;
        for step in 1..=3000 {
            let now = NOW + Duration::from_millis(step);
            clients(&mut due, now);
            guest += usize::from(step % 10 == 0 && at_once(&mut due, 1000, now, 1) == 1);
        }
        assert_eq!(guest, 300);
        assert_eq!(
            admit(&mut Instant(0), 1, FlowOpener::Client, NOW),
            Admission::Admitted
        );
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
