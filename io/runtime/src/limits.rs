//! Reports flows that limits have refused.

use std::fmt;
use std::time::Duration;

use pontoon_engine::{Config, Counters, Instant};

/// The limits on flows, and how many were refused by them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    max_flows: u32,
    max_flow_rate: Option<u32>,
    /// Refusals that have been logged.
    known: u64,
    told: Option<Instant>,
}

/// A limit that has refused flows, to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bite {
    refused: u64,
    max_flows: u32,
    max_flow_rate: Option<u32>,
}

impl Limits {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            max_flows: config.max_flows,
            max_flow_rate: config.max_flow_rate,
            known: 0,
            told: None,
        }
    }

    /// Returns a limit to be logged, at most once a minute.
    pub(crate) fn bite(&mut self, counters: &Counters, now: Instant) -> Option<Bite> {
        let refused = counters.flows_refused - self.known;
        if refused == 0 || self.told.is_some_and(|told| now.since(told) < QUIET) {
            return None;
        }
        self.known = counters.flows_refused;
        self.told = Some(now);
        Some(Bite {
            refused,
            max_flows: self.max_flows,
            max_flow_rate: self.max_flow_rate,
        })
    }
}

impl fmt::Display for Bite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            refused, max_flows, ..
        } = self;
        write!(f, "{refused} flows refused (limits: --max-flows {max_flows}")?;
        match self.max_flow_rate {
            Some(rate) => write!(f, ", --max-flow-rate {rate})"),
            None => f.write_str(")"),
        }
    }
}

const QUIET: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_flows_are_reported_once_a_minute() {
        let mut limits = Limits {
            max_flows: 9,
            max_flow_rate: None,
            known: 0,
            told: None,
        };
        let mut counters = Counters::default();
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        assert_eq!(limits.bite(&counters, at(0)), None);
        counters.flows_refused = 2;
        let first = limits.bite(&counters, at(1)).unwrap();
        assert_eq!(first.to_string(), "2 flows refused (limits: --max-flows 9)");
        counters.flows_refused = 5;
        assert_eq!(limits.bite(&counters, at(60)), None);
        let second = limits.bite(&counters, at(61)).unwrap();
        assert_eq!(second.refused, 3);
        assert_eq!(limits.bite(&counters, at(200)), None);
        let both = Bite {
            max_flow_rate: Some(7),
            ..second
        };
        assert_eq!(
            both.to_string(),
            "3 flows refused (limits: --max-flows 9, --max-flow-rate 7)"
        );
    }
}
