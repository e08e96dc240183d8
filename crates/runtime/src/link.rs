//! Links: what carries Ethernet frames to and from a guest. One link is one file.

pub mod tap;
