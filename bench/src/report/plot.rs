//! Plots as inline SVG. Their background is white in both colour themes of the page.

mod bars;
mod curves;
mod distribution;
mod rate_loss;

use std::io;

use maud::{Markup, PreEscaped, html};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::schema::{StackDescription, StackRole};

use super::number;

pub(super) use bars::{BarRow, Bars};
pub(super) use distribution::distribution;
pub(super) use rate_loss::rate_loss;

/// An SVG image or a part of it, on which a plot is drawn.
type DrawArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Result of drawing on an [`DrawArea`].
type DrawResult = Result<(), DrawingAreaErrorKind<io::Error>>;

const INK: RGBColor = RGBColor(0x1b, 0x1f, 0x24);
const FAINT: RGBColor = RGBColor(0x66, 0x70, 0x80);
const GRID: RGBColor = RGBColor(0xe1, 0xe5, 0xea);

/// Colours of the stacks of one role, in turn: greys for the kernel, blues for pontoon, warm colours for other
/// projects.
const KERNEL: [RGBColor; 5] = [
    RGBColor(0x9a, 0xa1, 0xab),
    RGBColor(0x5d, 0x66, 0x73),
    RGBColor(0xbc, 0xc2, 0xca),
    RGBColor(0x7c, 0x85, 0x91),
    RGBColor(0x41, 0x49, 0x53),
];
const PONTOON: [RGBColor; 5] = [
    RGBColor(0x0b, 0x57, 0xc2),
    RGBColor(0x4f, 0x9d, 0xf0),
    RGBColor(0x0b, 0x9a, 0x9a),
    RGBColor(0x6a, 0x5c, 0xd8),
    RGBColor(0x0f, 0x3a, 0x70),
];
const PEER: [RGBColor; 5] = [
    RGBColor(0xd9, 0x66, 0x0b),
    RGBColor(0xb0, 0x20, 0x3f),
    RGBColor(0xc7, 0x9a, 0x00),
    RGBColor(0x8a, 0x4a, 0x1f),
    RGBColor(0xc0, 0x4f, 0xa8),
];

/// Returns the colour of a stack, which is the same in every plot of a page.
pub(super) fn colour(stacks: &[&StackDescription], of: &StackDescription) -> RGBColor {
    let same_role = stacks.iter().filter(|stack| stack.role == of.role);
    let index = same_role.take_while(|stack| stack.name != of.name).count();
    let colours = match of.role {
        StackRole::Kernel => &KERNEL,
        StackRole::Pontoon => &PONTOON,
        StackRole::Peer => &PEER,
    };
    colours[index % colours.len()]
}

/// Returns an SVG image of this size in pixels, on which `draw` has drawn.
fn svg(size: (u32, u32), draw: impl FnOnce(&DrawArea<'_>) -> DrawResult) -> Markup {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    let drawn = draw(&area).and_then(|()| area.present());
    drop(area);
    match drawn {
        // SVG inside HTML needs no namespace declaration.
        Ok(()) => PreEscaped(text.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1)),
        Err(error) => html! { p { "This plot cannot be drawn: " (error) } },
    }
}

fn font(size: u32, colour: &RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(colour)
}

/// Formats a value as the label of an axis: `500`, `20k`, `1.5M`.
fn short(value: f64) -> String {
    let (value, suffix) = match value {
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    trimmed(value) + suffix
}

/// Formats a value with at most three significant digits.
fn trimmed(value: f64) -> String {
    let text = number::figure(value);
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
