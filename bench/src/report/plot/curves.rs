//! Line plot with one curve per stack, a logarithmic axis and a legend.

use std::ops::Range;

use maud::{Markup, html};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;

use super::{DrawArea, DrawResult, FAINT, GRID, font, svg};

const SIZE: (u32, u32) = (460, 240);

/// The curve of one stack in a line plot.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) colour: RGBColor,
    /// True for a dashed line, which distinguishes the kernel's own path from the other stacks.
    pub(super) is_dashed: bool,
    pub(super) points: Vec<(f64, f64)>,
}

/// A line plot of several curves, with its axes.
pub(super) struct Curves {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) x_title: String,
    /// Values of the vertical axis at which a horizontal dashed line is drawn.
    pub(super) guides: Vec<f64>,
    pub(super) curves: Vec<Curve>,
    /// True if a circle is drawn at each point.
    pub(super) has_dots: bool,
}

/// A logarithmic or logistic axis of a line plot.
#[derive(Clone)]
pub(super) struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
    label: fn(f64) -> String,
}

/// The function from values to positions on an axis.
#[derive(Clone, Copy)]
enum Scale {
    Logarithmic,
    /// Scale of ln(p / (1 - p)) for a share p, which stretches the axis towards both ends.
    Logistic,
}

impl Axis {
    /// Returns a logarithmic axis between two values; `from` must be positive.
    pub(super) fn log(from: f64, to: f64, label: fn(f64) -> String) -> Self {
        let to = if to > from { to } else { from * 2.0 };
        Self {
            scale: Scale::Logarithmic,
            from,
            to,
            ticks: decades(from, to),
            label,
        }
    }

    /// Returns a logistic axis between two shares; both must lie between 0 and 1.
    pub(super) fn logistic(from: f64, to: f64, label: fn(f64) -> String) -> Self {
        Self {
            scale: Scale::Logistic,
            from,
            to,
            ticks: vec![0.01, 0.1, 0.5, 0.9, 0.99, 0.999],
            label,
        }
    }

    fn scaled(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Logarithmic => value.ln(),
            Scale::Logistic => (value / (1.0 - value)).ln(),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    /// Returns the pixel of a value. A value beyond an end of the axis is drawn at that end.
    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let [value, from, to] =
            [value.clamp(self.from, self.to), self.from, self.to].map(|at| self.scaled(at));
        let share = (value - from) / (to - from);
        first + (share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Light points are grid lines between the labels.
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        let is_inside = |tick: &f64| (self.from..=self.to).contains(tick);
        self.ticks.iter().copied().filter(is_inside).collect()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        (self.label)(*value)
    }
}

/// Returns the ticks of a logarithmic axis: 1, 2, 5, 10, ... or, over more than two decades, powers of ten.
fn decades(from: f64, to: f64) -> Vec<f64> {
    let (first, last) = (from.log10().floor() as i32, to.log10().ceil() as i32);
    let within: &[f64] = if to / from > 100.0 {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let decade = |power: i32| within.iter().map(move |step| step * 10f64.powi(power));
    (first..=last).flat_map(decade).collect()
}

impl Curves {
    pub(super) fn markup(&self) -> Markup {
        html! {
            (svg(SIZE, |area| self.draw(area)))
            ul class="legend" {
                @for curve in &self.curves {
                    @let RGBColor(red, green, blue) = curve.colour;
                    li style=(format!("--tint: #{red:02x}{green:02x}{blue:02x}")) { (curve.name) }
                }
            }
        }
    }

    fn draw(&self, area: &DrawArea<'_>) -> DrawResult {
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(12)
            .x_label_area_size(38)
            .y_label_area_size(52)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .x_desc(&*self.x_title)
            .axis_desc_style(font(13, &FAINT))
            .label_style(font(13, &FAINT))
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        let Range { start, end } = self.x.range();
        for guide in &self.guides {
            let line = [(start, *guide), (end, *guide)];
            chart.draw_series(DashedLineSeries::new(line, 3, 3, FAINT.into()))?;
        }
        for curve in &self.curves {
            let points = curve.points.iter().copied();
            let style = curve.colour.stroke_width(2);
            if self.has_dots {
                let dot = |point| Circle::new(point, 2, curve.colour.filled());
                chart.draw_series(points.clone().map(dot))?;
            }
            if curve.is_dashed {
                chart.draw_series(DashedLineSeries::new(points, 6, 3, style))?;
            } else {
                chart.draw_series(LineSeries::new(points, style))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use plotters::coord::ranged1d::BoldPoints;

    use super::super::short;
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        let ticks = axis.key_points(BoldPoints(10)).into_iter();
        ticks.map(|tick| axis.format_ext(&tick)).collect()
    }

    #[test]
    fn ticks_are_round_numbers_inside_the_axis() {
        assert_eq!(labels(&Axis::log(30.0, 400.0, short)), ["50", "100", "200"]);
        assert_eq!(labels(&Axis::log(30.0, 40_000.0, short)), ["100", "1,000", "10k"]);
    }

    #[test]
    fn values_beyond_the_ends_are_drawn_there() {
        let axis = Axis::log(10.0, 1000.0, short);
        let seen = [1.0, 10.0, 100.0, 1e9].map(|value| axis.map(&value, (50, 150)));
        assert_eq!(seen, [50, 50, 100, 150]);
    }

    #[test]
    fn logistic_axis_is_stretched_towards_its_ends() {
        let axis = Axis::logistic(0.01, 0.99, |share| format!("{:.0} %", share * 100.0));
        assert_eq!(labels(&axis), ["1 %", "10 %", "50 %", "90 %", "99 %"]);
        let at = |share| axis.map(&share, (0, 1000));
        assert!(at(0.99) - at(0.9) > at(0.6) - at(0.5));
    }

    #[test]
    fn axis_of_one_value_has_a_range() {
        let range = Axis::log(5.0, 5.0, short).range();
        assert!(range.start < range.end);
    }
}
