//! Statistics of a few noisy measurements.
//!
//! A run has few rounds (such as seven) and noise that is neither small nor normal: a rate may fall to a half in one round
//! because the scheduler put two threads on one core. So all statistics here are based on ranks. A figure is summarised
//! by its median with quartiles and extremes, and two stacks are compared by the median of their ratios with an
//! interval that is exact at any number of rounds, without the assumption of a normal distribution or a large sample.
//! The bootstrap needs a large sample: of seven values, the percentile interval of the median is from the second to the
//! sixth, which cover it in 87.5 % of cases (Hesterberg, "What Teachers Should Know About the Bootstrap", The American
//! Statistician 69:4, 2015, has the general case).

mod rank;
mod ratio;

pub use rank::{CONFIDENCE, LEAST_PAIRS};
pub use ratio::{Difference, Interval, Ratio};

/// Median, quartiles and extremes of a set of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub count: usize,
    pub min: f64,
    /// First quartile of the values.
    pub low: f64,
    pub median: f64,
    /// Third quartile of the values.
    pub high: f64,
    pub max: f64,
}

impl Spread {
    /// Returns the spread of `values`, or `None` without a value. NaNs are ignored.
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        Some(Self {
            count: sorted.len(),
            min: *sorted.first()?,
            low: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            high: quantile(&sorted, 0.75),
            max: *sorted.last()?,
        })
    }
}

/// Returns the median, or `None` without a value.
pub fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

/// Returns a quantile interpolated between the two nearest ranks: type 7 of Hyndman and Fan, "Sample Quantiles in
/// Statistical Packages", The American Statistician 50:4, 1996. `sorted` must not be empty.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    let position = at * (sorted.len() - 1) as f64;
    let below = sorted[position.floor() as usize];
    let above = sorted[position.ceil() as usize];
    below + (above - below) * position.fract()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    #[test]
    fn spread_of_seven_values_matches_textbook() {
        let spread = Spread::of(&[7.0, 1.0, 3.0, 6.0, 2.0, 5.0, 4.0]);
        let expected = Spread {
            count: 7,
            min: 1.0,
            low: 2.5,
            median: 4.0,
            high: 5.5,
            max: 7.0,
        };
        assert_eq!(spread, Some(expected));
    }

    #[test]
    fn no_values_have_no_spread() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[f64::NAN]), None);
        assert_eq!(median(&[f64::NAN, 3.0]), Some(3.0));
    }

    proptest! {
        #[test]
        fn spread_is_ordered_and_independent_of_order(mut values in prop::collection::vec(1e-3..1e9f64, 1..40)) {
            let spread = Spread::of(&values).unwrap();
            values.reverse();
            prop_assert_eq!(Spread::of(&values), Some(spread));
            let ordered = [spread.min, spread.low, spread.median, spread.high, spread.max];
            prop_assert!(ordered.is_sorted());
        }
    }
}
