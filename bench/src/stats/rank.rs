//! Ranks of order statistics that bound an interval. Both public functions return the rank, from 1, of the lower
//! bound: the number of values to cut off at either end *plus one*. They return `None` if even the interval between
//! the extremes has less than [`CONFIDENCE`].

/// The least confidence of every interval.
pub const CONFIDENCE: f64 = 0.95;

/// The least number of pairs for which an interval has [`CONFIDENCE`]: the extremes of five cover the median in 1 -
/// 2/2^5 = 93.75 % of cases.
pub const LEAST_PAIRS: usize = 6;

/// Returns the rank for the median of one sample of `count`: the number of values below it is binomial with probability
/// one half, for any distribution (David and Nagaraja, "Order Statistics", 3rd edition, section 7.1; the same table for
/// performance measurements is in Le Boudec, "Performance Evaluation of Computer and Communication Systems", appendix
/// A).
pub(super) fn of_median(count: usize) -> Option<usize> {
    let mut ways = vec![1.0];
    for taken in 0..count {
        ways.push(ways[taken] * (count - taken) as f64 / (taken + 1) as f64);
    }
    lower_rank(&ways)
}

/// Returns the rank for the shift between samples of `left` and `right` values, among their `left * right` differences:
/// the Mann-Whitney statistic's exact distribution (Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods",
/// 3rd edition, section 4.3).
pub(super) fn of_shift(left: usize, right: usize) -> Option<usize> {
    lower_rank(&arrangements(left, right))
}

/// Returns the number of orders of `left` and `right` values in which exactly u = 0, 1, ... of the pairs are in
/// descending order: the coefficients of the Gaussian binomial, the product over i of (1 - x^(right + i)) / (1 - x^i).
fn arrangements(left: usize, right: usize) -> Vec<f64> {
    let mut ways = vec![0.0; left * right + 1];
    ways[0] = 1.0;
    for i in 1..=left {
        for u in (right + i..ways.len()).rev() {
            ways[u] -= ways[u - right - i];
        }
        for u in i..ways.len() {
            ways[u] += ways[u - i];
        }
    }
    ways
}

/// Returns the largest rank for which both tails of `ways` together are at most 1 - [`CONFIDENCE`] of the sum. `ways`
/// is symmetric.
fn lower_rank(ways: &[f64]) -> Option<usize> {
    let total: f64 = ways.iter().sum();
    let mut tail = 0.0;
    let cut = ways.iter().take_while(|&&ways| {
        tail += ways;
        2.0 * tail <= (1.0 - CONFIDENCE) * total
    });
    Some(cut.count()).filter(|&rank| rank > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_the_median_match_published_table() {
        let ranks: Vec<_> = (1..=20).map(|count| of_median(count).unwrap_or(0)).collect();
        assert_eq!(
            ranks,
            [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5, 6]
        );
        assert_eq!(of_median(LEAST_PAIRS - 1), None);
        assert_eq!(of_median(LEAST_PAIRS), Some(1));
    }

    #[test]
    fn ranks_of_the_shift_match_published_table() {
        // Critical values of U at 5 %, two-sided, are one less than the rank.
        for (left, right, critical) in [
            (4, 4, 0),
            (5, 5, 2),
            (6, 5, 3),
            (7, 7, 8),
            (8, 6, 8),
            (10, 10, 23),
        ] {
            assert_eq!(of_shift(left, right), Some(critical + 1), "{left} and {right}");
        }
        assert_eq!(of_shift(3, 3), None);
    }

    #[test]
    fn counts_all_arrangements() {
        assert_eq!(arrangements(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(arrangements(7, 7).iter().sum::<f64>(), 3432.0);
    }
}
