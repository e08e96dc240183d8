//! Bar plot with one horizontal bar per stack, and whiskers for the spread.

use maud::Markup;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{DrawArea, DrawResult, FAINT, GRID, INK, font, short, svg};
use crate::stats::{self, Spread};

/// The bars of one cell, one for each stack.
pub(in crate::report) struct Bars {
    pub(in crate::report) rows: Vec<BarRow>,
    /// Value at the end of the axis. All bar plots of one metric in a scenario have the same.
    pub(in crate::report) end: f64,
}

/// The bar of one stack, with its name and label.
pub(in crate::report) struct BarRow {
    pub(in crate::report) name: String,
    pub(in crate::report) colour: RGBColor,
    pub(in crate::report) bar: Option<Spread>,
    /// A quantity that contains `bar`, drawn behind it in a lighter colour: the whole machine's CPU time behind the
    /// stack's.
    pub(in crate::report) whole: Option<Spread>,
    /// The text after the bar: the figure, or the reason why there is none, and a remark.
    pub(in crate::report) label: String,
}

/// Width of the image in pixels.
const WIDTH: u32 = 460;
/// Width of the column of stack names in pixels.
const NAMES: i32 = 118;
/// Width of the column of labels, right of the bars, in pixels.
const LABELS: i32 = 160;
/// Height of a bar's row in pixels.
const ROW: i32 = 22;
/// Height of the axis in pixels.
const AXIS: i32 = 20;
/// Length of the axis as a multiple of the largest median, so that whiskers fit.
const ROOM: f64 = 1.4;
/// Length of the longest bar as a multiple of the median bar. Longer bars are cut.
const LONGEST: f64 = 8.0;
/// Number of characters after which a stack's name is cut.
const NAME_LENGTH: usize = 17;

impl Bars {
    /// Returns the value at the end of an axis for these spreads: [`ROOM`] times the largest median, or the largest
    /// value if that is less, but at most [`LONGEST`] times the median of the medians, so that one outlier does not
    /// shorten all other bars.
    pub(in crate::report) fn end(spreads: impl IntoIterator<Item = Spread>) -> f64 {
        let spreads: Vec<_> = spreads.into_iter().filter(|spread| spread.median > 0.0).collect();
        let medians: Vec<_> = spreads.iter().map(|spread| spread.median).collect();
        let largest = medians.iter().copied().fold(0.0, f64::max);
        let most = spreads.iter().map(|spread| spread.max).fold(0.0, f64::max);
        let usual = stats::median(&medians).unwrap_or_default();
        most.min(ROOM * largest).min(LONGEST * usual)
    }

    pub(in crate::report) fn markup(&self) -> Markup {
        let height = self.rows.len() as u32 * ROW as u32 + AXIS as u32;
        svg((WIDTH, height), |area| self.draw(area))
    }

    fn draw(&self, area: &DrawArea<'_>) -> DrawResult {
        let end = if self.end > 0.0 { self.end } else { 1.0 };
        let rows = self.rows.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .x_label_area_size(AXIS)
            .y_label_area_size(NAMES)
            .margin_right(LABELS)
            .build_cartesian_2d(0.0..end, 0.0..rows.max(1.0))?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .y_labels(0)
            .x_labels(4)
            .x_label_formatter(&|value| short(*value))
            .label_style(font(13, &FAINT))
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (index, row) in self.rows.iter().enumerate() {
            let y = rows - index as f64 - 0.5;
            let bar = |spread: &Spread, opacity: f64| {
                Rectangle::new(
                    [(0.0, y - 0.32), (spread.median.min(end), y + 0.32)],
                    row.colour.mix(opacity).filled(),
                )
            };
            chart.draw_series(row.whole.iter().map(|whole| bar(whole, 0.3)))?;
            chart.draw_series(row.bar.iter().map(|part| bar(part, 1.0)))?;
            if let Some(spread) = row.whole.as_ref().or(row.bar.as_ref()) {
                chart.draw_series(marks(spread, y, end))?;
            }
            let y = index as i32 * ROW + ROW / 2;
            let text = |text: String, x: i32, side: HPos| {
                let style = font(14, &INK).pos(Pos::new(side, VPos::Center));
                area.draw(&Text::new(text, (x, y), style))
            };
            text(shortened(&row.name), NAMES - 8, HPos::Right)?;
            let is_drawn = row.bar.or(row.whole).is_some();
            let x = if is_drawn {
                WIDTH as i32 - LABELS + 8
            } else {
                NAMES + 6
            };
            text(row.label.clone(), x, HPos::Left)?;
        }
        Ok(())
    }
}

/// Returns the lines over a bar: a whisker from the minimum to the maximum, thick between the quartiles, without an
/// end mark beyond the axis; or a gap where the bar is cut.
fn marks(spread: &Spread, y: f64, end: f64) -> Vec<PathElement<(f64, f64)>> {
    if spread.median > end {
        let gap = [(0.94 * end, y - 0.4), (0.96 * end, y + 0.4)];
        return vec![PathElement::new(gap, WHITE.stroke_width(4))];
    }
    if spread.count < 2 {
        return Vec::new();
    }
    let line = |from: (f64, f64), to: (f64, f64), width| {
        let points = [(from.0.min(end), from.1), (to.0.min(end), to.1)];
        PathElement::new(points, INK.mix(0.6).stroke_width(width))
    };
    let cap = |x| line((x, y - 0.2), (x, y + 0.2), 1);
    let mut marks = vec![
        line((spread.min, y), (spread.max, y), 1),
        line((spread.low, y), (spread.high, y), 4),
        cap(spread.min),
    ];
    if spread.max <= end {
        marks.push(cap(spread.max));
    }
    marks
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_LENGTH {
        return name.to_owned();
    }
    name.chars().take(NAME_LENGTH - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(values: &[&[f64]]) -> f64 {
        Bars::end(values.iter().filter_map(|values| Spread::of(values)))
    }

    #[test]
    fn axis_ends_near_most_bars() {
        assert_eq!(end(&[&[90.0, 100.0, 110.0], &[50.0]]), 110.0, "the largest value");
        assert_eq!(
            end(&[&[90.0, 100.0, 900.0], &[50.0]]),
            140.0,
            "not a round that is an outlier"
        );
        assert_eq!(
            end(&[&[1.0], &[1.0], &[1000.0]]),
            8.0,
            "not a stack that is an outlier"
        );
        assert_eq!(
            end(&[&[0.0], &[0.0], &[0.0], &[5.0]]),
            5.0,
            "zeros are not counted"
        );
        assert_eq!(end(&[]), 0.0);
    }
}
