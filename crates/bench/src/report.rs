//! What a report's samples mean: for people ([`markdown`], [`html`]), for programs ([`write_json`], [`void_box`]), and
//! beside another report ([`compare`]).
//!
//! All of them show the same [`summary::Summary`] and the same [`words`]: a figure that means nothing is never shown
//! without saying so.

mod compare;
mod completeness;
pub(crate) mod html;
mod json;
mod label;
pub(crate) mod machine;
mod markdown;
pub(crate) mod number;
mod plot;
mod summary;
mod void_box;
mod words;

pub use compare::compare;
pub use completeness::Completeness;
pub use html::html;
pub use json::{read_json, write_json};
pub use markdown::markdown;
pub use void_box::{VOID_BOX_FIELDS, VoidBoxField, void_box};
