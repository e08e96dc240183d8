//! Ranges of ports in the values of `--publish` and `--guest-forward`.

use std::fmt;
use std::str::FromStr;

/// Consecutive ports, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    /// First port, at least 1.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl PortRange {
    /// All ports.
    pub const ALL: Self = Self {
        first: 1,
        last: u16::MAX,
    };

    /// Returns the number of ports.
    #[must_use]
    pub fn count(self) -> u16 {
        // A range does not contain port 0, so at most 65,535 ports.
        self.last - self.first + 1
    }

    /// Returns true if `port` is one of these ports.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Returns true if a port is in both ranges.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns the ports of this range that are in none of `excluded`.
    #[must_use]
    pub fn without(self, excluded: &[Self]) -> Vec<Self> {
        let mut rest = vec![self];
        for gap in excluded {
            let split = |range: Self| {
                let below = Self {
                    first: range.first,
                    last: range.last.min(gap.first - 1),
                };
                let above = Self {
                    first: range.first.max(gap.last.saturating_add(1)),
                    last: range.last,
                };
                let is_above = gap.last < range.last;
                let below = Some(below).filter(|below| below.first <= below.last);
                below.into_iter().chain(Some(above).filter(|_| is_above))
            };
            rest = rest.into_iter().flat_map(split).collect();
        }
        rest
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            match text.parse() {
                Ok(port @ 1..) if is_number => Ok(port),
                _ => Err(format!("'{text}' is not a port (1 to 65535)")),
            }
        };
        let (first, last) = match text.split_once('-') {
            None => (port(text)?, port(text)?),
            Some((first, last)) => (port(first)?, port(last)?),
        };
        if last < first {
            return Err(format!("'{text}' runs backwards"));
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last == self.first {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}
