//! Reports of a run: for people ([`markdown()`], [`html()`]), for programs ([`write_json`], [`void_box()`]), and the comparison
//! of two of them ([`compare()`]).
//!
//! All of them show the same `summary::Summary` with the same `warnings`.

mod compare;
mod completeness;
pub(crate) mod html;
mod json;
mod label;
pub(crate) mod machine;
mod markdown;
pub(crate) mod number;
mod outcome;
mod overhead;
mod plot;
mod summary;
mod void_box;
mod warnings;

pub use compare::compare;
pub use completeness::Completeness;
pub use html::html;
pub(crate) use json::write_figures;
pub use json::{read_json, write_json};
pub use markdown::markdown;
pub use void_box::{VOID_BOX_FIELDS, VoidBoxField, void_box};
