//! Plots as inline SVG. Colours and fonts come from the page's style sheet, so that a plot follows its light or dark theme.

mod axis;
mod bars;
mod distribution;
mod rate_loss;

use maud::{Markup, html};

use crate::schema::{Role, Stack};

pub(super) use bars::{Bars, Row};
pub(super) use distribution::distribution;
pub(super) use rate_loss::rate_loss;

use axis::Axis;

/// Colours per role in the style sheet.
const TINTS: usize = 5;

/// The class that gives a stack its colour, the same in every plot of a page: greys for the kernel, blues for pontoon,
/// warm colours for peers.
pub(super) fn tint(stacks: &[&Stack], of: &Stack) -> String {
    let same_role = stacks.iter().filter(|stack| stack.role == of.role);
    let index = same_role.take_while(|stack| stack.name != of.name).count() % TINTS;
    let role = match of.role {
        Role::Kernel => "kernel",
        Role::Pontoon => "pontoon",
        Role::Peer => "peer",
    };
    format!("{role}-{index}")
}

/// A line through points, one for each stack that has any.
struct Curve {
    name: String,
    tint: String,
    points: Vec<(f64, f64)>,
}

/// A plot of curves, with its axes, guides at some heights, and a legend.
struct Curves {
    x: Axis,
    y: Axis,
    x_title: String,
    guides: Vec<f64>,
    curves: Vec<Curve>,
    /// Marks each point.
    dots: bool,
}

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 38.0;

impl Curves {
    fn x_axis(from: f64, to: f64) -> Axis {
        Axis::log(from, to, LEFT, WIDTH - RIGHT)
    }

    fn markup(&self) -> Markup {
        let (left, right, top, bottom) = (LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM);
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" {
                @for (at, text) in self.y.ticks() {
                    line class="grid" x1=(left) x2=(right) y1=(px(at)) y2=(px(at)) {}
                    text class="tick" x=(left - 6.0) y=(px(at + 4.0)) text-anchor="end" { (text) }
                }
                @for (at, text) in self.x.ticks() {
                    line class="grid" x1=(px(at)) x2=(px(at)) y1=(top) y2=(bottom) {}
                    text class="tick" x=(px(at)) y=(bottom + 15.0) text-anchor="middle" { (text) }
                }
                @for &guide in &self.guides {
                    @let at = px(self.y.at(guide));
                    line class="guide" x1=(left) x2=(right) y1=(at) y2=(at) {}
                }
                text class="tick" x=((left + right) / 2.0) y=(HEIGHT - 6.0) text-anchor="middle" { (self.x_title) }
                @for curve in &self.curves {
                    @let points: Vec<_> = curve.points.iter().map(|&(x, y)| (self.x.at(x), self.y.at(y))).collect();
                    @let path: Vec<_> = points.iter().map(|&(x, y)| format!("{},{}", px(x), px(y))).collect();
                    g class=(curve.tint) {
                        title { (curve.name) }
                        polyline class="curve" points=(path.join(" ")) {}
                        @if self.dots {
                            @for (x, y) in points { circle class="dot" cx=(px(x)) cy=(px(y)) r="2.5" {} }
                        }
                    }
                }
            }
            ul class="legend" {
                @for curve in &self.curves { li class=(curve.tint) { (curve.name) } }
            }
        }
    }
}

/// A tenth of a pixel is enough.
fn px(value: f64) -> String {
    format!("{:.1}", value)
}
