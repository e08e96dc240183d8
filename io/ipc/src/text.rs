//! Serialization of values as their text, for types that implement `Display` and `FromStr` but not serde's traits:
//! `#[serde(with = "text")]`, and `#[serde(with = "text::list")]` for a list.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serializer};

/// Serializes the text of a value.
///
/// # Errors
/// The serializer fails.
pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Parses the text of a value.
///
/// # Errors
/// The text is not a value of the type.
pub fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    parse(&String::deserialize(deserializer)?)
}

fn parse<T: FromStr, E: serde::de::Error>(text: &str) -> Result<T, E> {
    text.parse().map_err(|_| E::custom("invalid text of a value"))
}

/// Serialization of a list of values as their texts.
pub mod list {
    use super::{Deserialize, Deserializer, Display, FromStr, Serializer};

    /// Serializes the text of each value of a list.
    ///
    /// # Errors
    /// The serializer fails.
    pub fn serialize<T: Display, S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(ToString::to_string))
    }

    /// Parses the text of each value of a list.
    ///
    /// # Errors
    /// A text is not a value of the type.
    pub fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| super::parse(text)).collect()
    }
}
