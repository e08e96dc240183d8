//! Body of a request that adds and removes values of an option.

use std::fmt::Display;
use std::str::FromStr;

use serde::Deserialize;

/// Values to add and to remove: either all changes are applied, or none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeRequest {
    #[serde(default)]
    pub(super) add: Vec<String>,
    #[serde(default)]
    pub(super) remove: Vec<String>,
}

/// Parses the values of one list.
///
/// # Errors
/// The first value that cannot be parsed, and the reason.
pub(super) fn parse_values<T: FromStr<Err: Display>>(texts: &[String]) -> Result<Vec<T>, String> {
    let value = |text: &String| text.parse().map_err(|why| format!("'{text}': {why}"));
    texts.iter().map(value).collect()
}
