//! Formats numbers for reports.

use crate::stats::Interval;

/// Formats a number with three significant digits and thousands in groups: `21,200`, `3.07`, `0.0123`.
pub(crate) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    significant(value, 3)
}

/// Formats a number with `digits` significant digits. `value` must be finite and not zero.
fn significant(value: f64, digits: i32) -> String {
    let unit = |magnitude: i32| 10f64.powi(magnitude + 1 - digits);
    let magnitude = value.abs().log10().floor() as i32;
    // Rounding may carry: 9.996 is 10.0, not 10.00.
    let carried = (value.abs() / unit(magnitude)).round() >= 10f64.powi(digits);
    let magnitude = magnitude + i32::from(carried);
    let rounded = (value / unit(magnitude)).round() * unit(magnitude);
    let decimals = (digits - 1 - magnitude).clamp(0, 9) as usize;
    grouped(&format!("{rounded:.decimals$}"))
}

/// Formats an integer with thousands in groups.
pub(super) fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// Formats a number with its noun in singular or plural: `1 sample`, `2 samples`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{} {noun}s", count(number as u64)),
    }
}

/// Formats a factor. Below ten it has two decimals, or two significant digits if it is small: `0.046`, `1.22`, `12.3`,
/// `140`.
pub(crate) fn factor(value: f64) -> String {
    match value {
        value if value >= 9.995 => figure(value),
        value if value > 0.0 && value < 0.0995 => significant(value, 2),
        0.0 => "0".to_owned(),
        value => format!("{value:.2}"),
    }
}

pub(crate) fn factors(interval: Interval) -> String {
    // A bound of the interval that differs from 1 must not be rounded to 1.
    let bound = |value: f64| match factor(value) {
        rounded if rounded == "1.00" && value != 1.0 => format!("{value:.4}"),
        rounded => rounded,
    };
    format!("{}-{}", bound(interval.low), bound(interval.high))
}

pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent != 0.0 && percent < 0.1 => format!("{} %", figure(percent)),
        percent if percent < 9.95 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

fn grouped(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let (whole, fraction) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut out = sign.to_owned();
    for (index, digit) in whole.char_indices() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_figures_with_three_digits() {
        let seen = [
            0.0,
            0.012_34,
            0.9996,
            3.0714,
            57.0,
            999.6,
            1234.0,
            21_249.0,
            9_996_000.0,
            -1500.0,
        ]
        .map(figure);
        let expected = [
            "0",
            "0.0123",
            "1.00",
            "3.07",
            "57.0",
            "1,000",
            "1,230",
            "21,200",
            "10,000,000",
            "-1,500",
        ];
        assert_eq!(seen, expected);
        assert_eq!(figure(f64::INFINITY), "-");
    }

    #[test]
    fn formats_factors_and_shares() {
        assert_eq!(
            [0.004, 0.7, 1.0031, 1.219, 12.34, 1400.0].map(factor),
            ["0.0040", "0.70", "1.00", "1.22", "12.3", "1,400"]
        );
        assert_eq!(
            [0.0, 0.0001, 0.0213, 0.4].map(percent),
            ["0.0 %", "0.0100 %", "2.1 %", "40 %"]
        );
        assert_eq!(
            factors(Interval {
                low: 1.0031,
                high: 2.0
            }),
            "1.0031-2.00"
        );
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
