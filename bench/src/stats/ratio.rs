//! The ratio of two measured quantities, with a confidence interval.

use super::{quantile, rank, sorted};

/// The median ratio of two quantities, with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub median: f64,
    /// The confidence interval; `None` if there are too few values for [`super::CONFIDENCE`].
    pub interval: Option<Interval>,
    /// Number of pairs of measurements; for [`Ratio::unpaired`] the number of values of the smaller sample.
    pub count: usize,
}

/// An interval that covers the true ratio with at least [`super::CONFIDENCE`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// The result of comparing a ratio with 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    Larger,
    Smaller,
    /// The confidence interval of the ratio contains 1.
    NotSignificant,
    /// There are too few values for an interval.
    TooFew,
}

impl Ratio {
    /// Returns the ratio of values that were taken in pairs, such as in the same round: the median of their ratios, and the
    /// order statistics around it.
    ///
    /// Pairing removes what both have in common, such as a machine that is slow for a minute. The interval needs only
    /// that the ratios of different rounds are independent and have the same median; not that they are symmetric, as
    /// the narrower one of Wilcoxon and Hodges-Lehmann does, and as the ratios of a stack with a fast and a slow mode
    /// are not.
    ///
    /// Pairs without a positive divisor are ignored. Returns `None` if no pair is left.
    pub fn paired(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let ratios: Vec<f64> = pairs
            .into_iter()
            .filter(|&(of, to)| of >= 0.0 && to > 0.0)
            .map(|(of, to)| of / to)
            .collect();
        let count = ratios.len();
        Self::of_sorted(&sorted(&ratios), rank::of_median(count), count)
    }

    /// Returns the ratio of two samples taken at different times: the Hodges-Lehmann estimate, the median of all ratios
    /// between a value of one and a value of the other, with the interval of the Mann-Whitney test.
    ///
    /// It needs that both samples are independent and have the same distribution except for the ratio. The interval
    /// does not contain the effect of a machine that was slower in one of the runs, which two separate runs cannot distinguish
    /// from a slower stack.
    ///
    /// Returns `None` if a sample is empty or has a value that is not positive.
    pub fn unpaired(of: &[f64], to: &[f64]) -> Option<Self> {
        let usable = |values: &[f64]| values.iter().all(|&value| value > 0.0);
        if !usable(of) || !usable(to) {
            return None;
        }
        let ratios: Vec<f64> = of
            .iter()
            .flat_map(|of| to.iter().map(move |to| of / to))
            .collect();
        let rank = rank::of_shift(of.len(), to.len());
        Self::of_sorted(&sorted(&ratios), rank, of.len().min(to.len()))
    }

    pub fn difference(&self) -> Difference {
        match self.interval {
            None => Difference::TooFew,
            Some(interval) if interval.low > 1.0 => Difference::Larger,
            Some(interval) if interval.high < 1.0 => Difference::Smaller,
            Some(_) => Difference::NotSignificant,
        }
    }

    /// Returns the ratio from sorted ratios. Averages are those of the logarithms, so that the inverse ratio is the
    /// reciprocal.
    fn of_sorted(ratios: &[f64], rank: Option<usize>, count: usize) -> Option<Self> {
        if ratios.is_empty() {
            return None;
        }
        let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let median = quantile(&logarithms, 0.5);
        Some(Self {
            // The average of the logarithms of two zeros is NaN.
            median: if median.is_nan() { 0.0 } else { median.exp() },
            interval: rank.map(|rank| Interval {
                low: ratios[rank - 1],
                high: ratios[ratios.len() - rank],
            }),
            count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    #[test]
    fn interval_of_seven_pairs_is_their_extremes() {
        let pairs = [1.2, 1.1, 1.3, 1.15, 1.25, 1.05, 1.4].map(|ratio| (ratio * 8.0, 8.0));
        let ratio = Ratio::paired(pairs).unwrap();
        assert!((ratio.median - 1.2).abs() < 1e-12);
        let interval = ratio.interval.unwrap();
        assert!((interval.low - 1.05).abs() < 1e-12 && (interval.high - 1.4).abs() < 1e-12);
        assert_eq!(ratio.difference(), Difference::Larger);
    }

    #[test]
    fn five_pairs_have_no_interval_and_no_pair_has_no_ratio() {
        let ratio = Ratio::paired([(2.0, 1.0); 5]).unwrap();
        assert_eq!(ratio.difference(), Difference::TooFew);
        assert_eq!(Ratio::paired([]), None);
        assert_eq!(Ratio::paired([(1.0, 0.0)]), None);
        assert_eq!(Ratio::unpaired(&[], &[1.0]), None);
        assert_eq!(Ratio::unpaired(&[1.0], &[0.0]), None);
    }

    #[test]
    fn ratio_of_zero_numerators_is_zero() {
        let ratio = Ratio::paired([(0.0, 2.0); 8]).unwrap();
        assert_eq!((ratio.median, ratio.difference()), (0.0, Difference::Smaller));
    }

    proptest! {
        #[test]
        fn ratio_is_independent_of_unit_and_order(
            mut pairs in prop::collection::vec((1e-3..1e6f64, 1e-3..1e6f64), 1..30),
            scale in prop::sample::select(vec![1.0 / 1024.0, 0.5, 8.0, 4096.0]),
        ) {
            let (of, to): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
            let (paired, unpaired) = (Ratio::paired(pairs.clone()), Ratio::unpaired(&of, &to));
            pairs.reverse();
            let scaled: Vec<_> = pairs.iter().map(|&(of, to)| (of * scale, to * scale)).collect();
            let (of, to): (Vec<_>, Vec<_>) = scaled.iter().copied().unzip();
            prop_assert_eq!(Ratio::paired(scaled), paired);
            prop_assert_eq!(Ratio::unpaired(&of, &to), unpaired);
        }

        #[test]
        fn inverse_ratio_is_the_reciprocal(pairs in prop::collection::vec((1e-3..1e6f64, 1e-3..1e6f64), 6..30)) {
            let there = Ratio::paired(pairs.clone()).unwrap();
            let back = Ratio::paired(pairs.into_iter().map(|(of, to)| (to, of))).unwrap();
            prop_assert!((there.median * back.median - 1.0).abs() < 1e-9);
            let (there, back) = (there.interval.unwrap(), back.interval.unwrap());
            prop_assert!((there.low * back.high - 1.0).abs() < 1e-9 && (there.high * back.low - 1.0).abs() < 1e-9);
        }
    }

    const RUNS: u32 = 4000;
    const FACTOR: f64 = 1.3;

    /// Returns skewed noise: in a fifth of the rounds the time is doubled.
    fn noise(random: &mut ChaCha8Rng) -> f64 {
        let mut uniform = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let slow = if uniform() < 0.2 { 2.0 } else { 1.0 };
        slow * (1.0 - 0.3 * (1.0 - uniform()).ln())
    }

    fn coverage(mut ratio: impl FnMut(&mut ChaCha8Rng) -> Ratio) -> f64 {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let covered = (0..RUNS).filter(|_| {
            let interval = ratio(&mut random).interval.unwrap();
            (interval.low..=interval.high).contains(&FACTOR)
        });
        covered.count() as f64 / f64::from(RUNS)
    }

    #[test]
    fn paired_intervals_have_the_stated_coverage() {
        // The exact coverages are those of the binomial distribution; the results of 4000 runs vary by 0.003.
        for (rounds, exact) in [(6, 0.969), (7, 0.984), (9, 0.961), (12, 0.961), (25, 0.957)] {
            let seen = coverage(|random| {
                let round = |_| {
                    let machine = 1.0 + noise(random);
                    (FACTOR * machine * noise(random), machine * noise(random))
                };
                Ratio::paired((0..rounds).map(round)).unwrap()
            });
            assert!((seen - exact).abs() < 0.012, "{rounds} rounds: {seen}");
        }
    }

    #[test]
    fn unpaired_intervals_have_the_stated_coverage() {
        for (left, right, exact) in [(4, 4, 0.971), (7, 7, 0.962), (7, 5, 0.952), (15, 15, 0.955)] {
            let seen = coverage(|random| {
                let of: Vec<_> = (0..left).map(|_| FACTOR * noise(random)).collect();
                let to: Vec<_> = (0..right).map(|_| noise(random)).collect();
                Ratio::unpaired(&of, &to).unwrap()
            });
            assert!(
                seen > 0.95 - 0.012 && (seen - exact).abs() < 0.015,
                "{left} and {right}: {seen}"
            );
        }
    }
}
