//! Computes rates from the difference of two snapshots of the relay's counters.

use serde::{Deserialize, Serialize};

use crate::counters::Stats;

/// Average rate over an interval between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Datagrams per second.
    pub datagrams: u64,
    /// Bytes of UDP payload per second.
    pub bytes: u64,
}

impl Stats {
    /// Sets every rate to the average since the snapshot `before`. Counters that `before` does not contain started at
    /// zero.
    pub fn rate_since(&mut self, before: &Self) {
        let time_ms = self.time_ms.saturating_sub(before.time_ms).max(1);
        let a_second = |before: u64, now: u64| now.saturating_sub(before).saturating_mul(1000) / time_ms;
        let rate = |before: (u64, u64), now: (u64, u64)| {
            Some(Rate {
                datagrams: a_second(before.0, now.0),
                bytes: a_second(before.1, now.1),
            })
        };
        for (place, rule) in self.rules.iter_mut().enumerate() {
            // Rules are in the same order in most snapshots, so the search is rarely needed.
            let same = before
                .rules
                .get(place)
                .filter(|earlier| earlier.rule == rule.rule);
            let earlier = same.or_else(|| before.rules.iter().find(|earlier| earlier.rule == rule.rule));
            let counted = earlier.map_or((0, 0), |earlier| (earlier.datagrams, earlier.bytes));
            rule.rate = rate(counted, (rule.datagrams, rule.bytes));
            for (place, output) in rule.outputs.iter_mut().enumerate() {
                let earlier = earlier.and_then(|earlier| earlier.outputs.get(place));
                let counted = earlier.map_or((0, 0), |earlier| (earlier.sent, earlier.bytes));
                output.rate = rate(counted, (output.sent, output.bytes));
            }
        }
        for (worker, earlier) in self.workers.iter_mut().zip(&before.workers) {
            let counted = (earlier.datagrams, earlier.bytes);
            worker.rate = rate(counted, (worker.datagrams, worker.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{OutputStats, RuleStats, WorkerStats};

    fn snapshot(time_ms: u64, rules: &[(&str, u64)]) -> Stats {
        let rule = |&(rule, datagrams): &(&str, u64)| RuleStats {
            rule: rule.to_owned(),
            datagrams,
            bytes: 100 * datagrams,
            outputs: vec![OutputStats {
                sent: datagrams / 2,
                bytes: 50 * datagrams,
                ..OutputStats::default()
            }],
            ..RuleStats::default()
        };
        Stats {
            time_ms,
            rules: rules.iter().map(rule).collect(),
            workers: vec![WorkerStats {
                datagrams: rules.iter().map(|rule| rule.1).sum(),
                ..WorkerStats::default()
            }],
            ..Stats::default()
        }
    }

    #[test]
    fn rates_are_averages_over_the_interval() {
        let mut now = snapshot(3000, &[("new", 400), ("a", 2500)]);
        now.rate_since(&snapshot(1000, &[("removed", 7), ("a", 500)]));
        let rate = |datagrams, bytes| Some(Rate { datagrams, bytes });
        assert_eq!(now.rules[0].rate, rate(200, 20_000));
        assert_eq!(now.rules[1].rate, rate(1000, 100_000));
        assert_eq!(now.rules[1].outputs[0].rate, rate(500, 50_000));
        assert_eq!(now.workers[0].rate, rate((2900 - 507) / 2, 0));
    }

    #[test]
    fn equal_timestamps_do_not_divide_by_zero() {
        let mut now = snapshot(1000, &[("a", 500)]);
        now.rate_since(&snapshot(1000, &[("a", 500)]));
        assert_eq!(now.rules[0].rate, Some(Rate::default()));
    }
}
