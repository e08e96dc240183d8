//! Sum of the statistics that the workers of an engine report.

use std::iter::Sum;

use super::{Distribution, Stats};

impl Stats {
    /// Adds the statistics of another worker for the same request.
    pub fn add(&mut self, other: Self) {
        self.flows = self.flows.saturating_add(other.flows);
        self.pool_bytes = self.pool_bytes.saturating_add(other.pool_bytes);
        add_each(&mut self.rules, &other.rules);
        self.port_errors.extend(other.port_errors);
        for Distribution { name, sum, counts } in other.histograms {
            match self.histograms.iter_mut().find(|known| known.name == name) {
                Some(known) => {
                    known.sum = known.sum.saturating_add(sum);
                    add_each(&mut known.counts, &counts);
                }
                None => self.histograms.push(Distribution { name, sum, counts }),
            }
        }
        for (name, count) in other.counters {
            match self.counters.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => self.counters.push((name, count)),
            }
        }
    }
}

/// The sum over no worker is zero.
impl Sum for Stats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut total, stats| {
            total.add(stats);
            total
        })
    }
}

fn add_each(sums: &mut Vec<u64>, others: &[u64]) {
    sums.resize(sums.len().max(others.len()), 0);
    for (sum, other) in sums.iter_mut().zip(others) {
        *sum = sum.saturating_add(*other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_added() {
        let counters = |list: &[(&str, u64)]| {
            let owned = list.iter().map(|(name, count)| ((*name).to_owned(), *count));
            owned.collect::<Vec<_>>()
        };
        let times = |sum, counts: &[u64]| Distribution {
            name: "times".to_owned(),
            sum,
            counts: counts.to_vec(),
        };
        let mut total = Stats {
            round: 7,
            worker: 0,
            flows: 1,
            pool_bytes: 10,
            rules: vec![1, 2],
            histograms: vec![times(5, &[1, 0])],
            counters: counters(&[("first", 3), ("both", 4)]),
            port_errors: Vec::new(),
        };
        let second = Stats {
            worker: 1,
            histograms: vec![times(6, &[1, 1])],
            counters: counters(&[("both", u64::MAX), ("second", 1)]),
            ..total.clone()
        };
        total.add(second);
        let sum = Stats {
            round: 7,
            worker: 0,
            flows: 2,
            pool_bytes: 20,
            rules: vec![2, 4],
            histograms: vec![times(11, &[2, 1])],
            counters: counters(&[("first", 3), ("both", u64::MAX), ("second", 1)]),
            port_errors: Vec::new(),
        };
        assert_eq!(total, sum);
    }
}
