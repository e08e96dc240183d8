//! Horizontal bars with whiskers, a row per stack.

use maud::{Markup, html};

use super::{Axis, px};
use crate::stats::{self, Spread};

/// The bars of one cell.
pub(in crate::report) struct Bars {
    pub(in crate::report) rows: Vec<Row>,
    /// Where the axis ends; bars of one scenario have the same.
    pub(in crate::report) end: f64,
}

pub(in crate::report) struct Row {
    pub(in crate::report) name: String,
    pub(in crate::report) tint: String,
    pub(in crate::report) bar: Option<Spread>,
    /// A whole of which `bar` is a part.
    pub(in crate::report) whole: Option<Spread>,
    /// Behind the bar: the figure, or why there is none.
    pub(in crate::report) figure: String,
    /// Behind the figure, small.
    pub(in crate::report) remark: String,
    /// What a pointer over the row shows.
    pub(in crate::report) tip: String,
}

const WIDTH: f64 = 460.0;
const NAMES: f64 = 118.0;
const FIGURES: f64 = 152.0;
const ROW: f64 = 22.0;
const AXIS: f64 = 18.0;
/// Beyond the largest median, for whiskers.
const ROOM: f64 = 1.4;
/// Bars longer than so many times the usual are cut.
const FAR: f64 = 8.0;
/// Characters of a name that fit.
const NAME_LENGTH: usize = 17;

impl Bars {
    /// The end of an axis for these: the largest median with some room, or the largest value if that is nearer, but never
    /// far from most medians. One round or stack out of line must not flatten all bars.
    pub(in crate::report) fn end(spreads: impl IntoIterator<Item = Spread>) -> f64 {
        let spreads: Vec<_> = spreads.into_iter().filter(|spread| spread.median > 0.0).collect();
        let medians: Vec<_> = spreads.iter().map(|spread| spread.median).collect();
        let largest = medians.iter().copied().fold(0.0, f64::max);
        let most = spreads.iter().map(|spread| spread.max).fold(0.0, f64::max);
        let usual = stats::median(&medians).unwrap_or_default();
        most.min(ROOM * largest).min(FAR * usual)
    }

    pub(in crate::report) fn markup(&self) -> Markup {
        let height = self.rows.len() as f64 * ROW + AXIS;
        let right = WIDTH - FIGURES;
        let axis = Axis::linear(0.0, self.end, NAMES, right);
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" {
                @for (at, text) in axis.ticks() {
                    line class="grid" x1=(px(at)) x2=(px(at)) y1="0" y2=(height - AXIS) {}
                    text class="tick" x=(px(at)) y=(height - 4.0) text-anchor="middle" { (text) }
                }
                @for (index, row) in self.rows.iter().enumerate() {
                    g class=(row.tint) transform=(format!("translate(0 {})", index as f64 * ROW)) {
                        title { (row.tip) }
                        text x=(NAMES - 8.0) y="15" text-anchor="end" { (shortened(&row.name)) }
                        @if let Some(whole) = &row.whole { (bar(&axis, whole, "whole")) }
                        @if let Some(part) = &row.bar { (bar(&axis, part, "bar")) }
                        @if let Some(spread) = row.whole.as_ref().or(row.bar.as_ref()) { (whisker(&axis, spread)) }
                        @let x = if row.bar.or(row.whole).is_some() { right + 10.0 } else { NAMES + 6.0 };
                        text x=(px(x)) y="15" {
                            (row.figure)
                            @if !row.remark.is_empty() { tspan class="remark" dx="6" { (row.remark) } }
                        }
                    }
                }
            }
        }
    }
}

fn bar(axis: &Axis, spread: &Spread, class: &str) -> Markup {
    let (from, to) = (axis.at(0.0), axis.at(spread.median));
    html! {
        rect class=(class) x=(px(from)) y="4" width=(px((to - from).max(1.0))) height="14" rx="2" {}
        @if !axis.contains(spread.median) {
            line class="cut" x1=(px(to - 16.0)) x2=(px(to - 10.0)) y1="20" y2="2" {}
        }
    }
}

/// From the least to the most, thick between the quartiles, with an arrow where the axis is too short.
fn whisker(axis: &Axis, spread: &Spread) -> Markup {
    let (from, to) = (axis.at(spread.min), axis.at(spread.max));
    html! {
        @if spread.count > 1 && axis.contains(spread.median) {
            line class="whisker" x1=(px(from)) x2=(px(to)) y1="11" y2="11" {}
            line class="quartiles" x1=(px(axis.at(spread.low))) x2=(px(axis.at(spread.high))) y1="11" y2="11" {}
            line class="whisker" x1=(px(from)) x2=(px(from)) y1="7" y2="15" {}
            @if axis.contains(spread.max) {
                line class="whisker" x1=(px(to)) x2=(px(to)) y1="7" y2="15" {}
            } @else {
                polyline class="whisker" points=(format!("{0},7 {1},11 {0},15", px(to), px(to + 5.0))) {}
            }
        }
    }
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
    fn an_axis_ends_where_most_bars_can_be_seen() {
        assert_eq!(end(&[&[90.0, 100.0, 110.0], &[50.0]]), 110.0, "all of them");
        assert_eq!(
            end(&[&[90.0, 100.0, 900.0], &[50.0]]),
            140.0,
            "not a round out of line"
        );
        assert_eq!(end(&[&[1.0], &[1.0], &[1000.0]]), 8.0, "not a stack out of line");
        assert_eq!(
            end(&[&[0.0], &[0.0], &[0.0], &[5.0]]),
            5.0,
            "nothing is not usual"
        );
        assert_eq!(end(&[]), 0.0);
    }
}
