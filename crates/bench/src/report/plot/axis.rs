//! From values to pixels.

use crate::report::number;

pub(super) struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    /// Pixels of `from` and `to`.
    start: f64,
    end: f64,
    label: fn(f64) -> String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    Linear,
    Logarithmic,
    /// Of a share p: ln(p / (1 - p)), which gives both tails room.
    Logistic,
}

impl Axis {
    pub(super) fn linear(from: f64, to: f64, start: f64, end: f64) -> Self {
        let to = if to > from { to } else { from + 1.0 };
        Self {
            scale: Scale::Linear,
            from,
            to,
            start,
            end,
            label: short,
        }
    }

    /// `from` must be positive.
    pub(super) fn log(from: f64, to: f64, start: f64, end: f64) -> Self {
        let to = if to > from { to } else { from * 2.0 };
        Self {
            scale: Scale::Logarithmic,
            from,
            to,
            start,
            end,
            label: short,
        }
    }

    /// `from` and `to` must be between 0 and 1.
    pub(super) fn logistic(from: f64, to: f64, start: f64, end: f64) -> Self {
        Self {
            scale: Scale::Logistic,
            from,
            to,
            start,
            end,
            label: |share| trimmed(share * 100.0) + " %",
        }
    }

    pub(super) fn labelled(self, label: fn(f64) -> String) -> Self {
        Self { label, ..self }
    }

    /// Values beyond an end are put there.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        let scaled = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.ln(),
            Scale::Logistic => (value / (1.0 - value)).ln(),
        };
        let share = (scaled(value) - scaled(self.from)) / (scaled(self.to) - scaled(self.from));
        self.start + share * (self.end - self.start)
    }

    pub(super) fn contains(&self, value: f64) -> bool {
        (self.from..=self.to).contains(&value)
    }

    /// Pixels and labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let values = match self.scale {
            Scale::Linear => self.even_ticks(),
            Scale::Logarithmic => self.decade_ticks(),
            Scale::Logistic => vec![0.01, 0.1, 0.5, 0.9, 0.99, 0.999],
        };
        let inside = values.into_iter().filter(|&value| self.contains(value));
        inside
            .map(|value| (self.at(value), (self.label)(value)))
            .collect()
    }

    /// Four or so, at multiples of 1, 2 or 5.
    fn even_ticks(&self) -> Vec<f64> {
        let rough = (self.to - self.from) / 4.0;
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|step| step * decade)
            .into_iter()
            .find(|&step| step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.from / step).ceil();
        (0..=10).map(|index| (first + f64::from(index)) * step).collect()
    }

    /// 1, 2, 5, 10, ... or, over more than two decades, powers of ten.
    fn decade_ticks(&self) -> Vec<f64> {
        let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let within: &[f64] = if self.to / self.from > 100.0 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let decade = |power: i32| within.iter().map(move |step| step * 10f64.powi(power));
        (first..=last).flat_map(decade).collect()
    }
}

/// `500`, `20k`, `1.5M`: room on an axis is scarce.
fn short(value: f64) -> String {
    let (value, suffix) = match value {
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    trimmed(value) + suffix
}

/// Three significant digits at most.
pub(super) fn trimmed(value: f64) -> String {
    let text = number::figure(value);
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers_inside() {
        assert_eq!(
            labels(&Axis::linear(0.0, 23_400.0, 0.0, 100.0)),
            ["0", "10k", "20k"]
        );
        assert_eq!(labels(&Axis::linear(0.0, 0.09, 0.0, 100.0)), ["0", "0.05"]);
        assert_eq!(labels(&Axis::log(30.0, 400.0, 0.0, 100.0)), ["50", "100", "200"]);
        assert_eq!(
            labels(&Axis::log(30.0, 40_000.0, 0.0, 100.0)),
            ["100", "1,000", "10k"]
        );
    }

    #[test]
    fn values_beyond_the_ends_are_put_there() {
        let axis = Axis::log(10.0, 1000.0, 50.0, 150.0);
        let seen = [1.0, 10.0, 100.0, 1e9].map(|value| axis.at(value).round());
        assert_eq!(seen, [50.0, 50.0, 100.0, 150.0]);
    }

    #[test]
    fn shares_have_room_at_both_ends() {
        let axis = Axis::logistic(0.01, 0.99, 0.0, 100.0);
        assert_eq!(labels(&axis), ["1 %", "10 %", "50 %", "90 %", "99 %"]);
        assert!(axis.at(0.99) - axis.at(0.9) > axis.at(0.6) - axis.at(0.5));
    }

    #[test]
    fn an_axis_of_one_value_is_an_axis() {
        for axis in [
            Axis::linear(0.0, 0.0, 0.0, 100.0),
            Axis::log(5.0, 5.0, 0.0, 100.0),
        ] {
            assert!(axis.at(5.0).is_finite());
            assert!(!axis.ticks().is_empty());
        }
    }
}
