//! Existing flows that new egress rules refuse.

use core::fmt;
use core::str::FromStr;

/// Treatment of existing flows that new egress rules refuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusedFlows {
    /// They are closed, and TCP connections are reset.
    #[default]
    Reset,
    /// They continue until they end. New flows are subject to the new rules.
    Keep,
}

impl fmt::Display for RefusedFlows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "reset",
            Self::Keep => "keep",
        })
    }
}

impl FromStr for RefusedFlows {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "reset" => Ok(Self::Reset),
            "keep" => Ok(Self::Keep),
            _ => Err(format!("'{text}' is neither 'reset' nor 'keep'")),
        }
    }
}
