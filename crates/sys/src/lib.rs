//! (crate doc)
