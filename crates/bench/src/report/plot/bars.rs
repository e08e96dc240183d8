//! Horizontal bars with whiskers, a row per stack.

use maud::{Markup, html};

use super::{Axis, px};
use crate::stats::Spread;

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
/// Characters of a name that fit.
const NAME_LENGTH: usize = 17;

impl Bars {
    /// The end of an axis for these: the largest median with some room, or the largest value if that is nearer. One
    /// round out of line must not flatten all bars.
    pub(in crate::report) fn end(spreads: impl IntoIterator<Item = Spread>) -> f64 {
        let (mut median, mut most) = (0f64, 0f64);
        for spread in spreads {
            (median, most) = (median.max(spread.median), most.max(spread.max));
        }
        most.min(1.4 * median)
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
    html! { rect class=(class) x=(px(from)) y="4" width=(px((to - from).max(1.0))) height="14" rx="2" {} }
}

/// From the least to the most, thick between the quartiles, with an arrow where the axis is too short.
fn whisker(axis: &Axis, spread: &Spread) -> Markup {
    let (from, to) = (axis.at(spread.min), axis.at(spread.max));
    html! {
        @if spread.count > 1 {
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
