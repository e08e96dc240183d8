//! Existing flows that new egress rules refuse.

use core::fmt;
use core::str::FromStr;

/// Treatment of existing flows that new egress rules refuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusedFlows {
    /// The refused flows are closed; TCP connections are reset on both sides.
    #[default]
    Reset,
    /// The refused flows continue until they end. Only new flows are subject to the new rules.
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
