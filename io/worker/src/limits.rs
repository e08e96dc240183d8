//! Log of the flows that limits have refused, written at most once a minute.

use std::fmt;
use std::time::Duration;

use pontoon_engine::{Config, Counters, Instant};

/// Limits on flows, and the number of flows that they have refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowLimits {
    max_flows: u32,
    max_flow_rate: Option<u32>,
    /// Number of refusals that have been logged.
    known: u64,
    logged: Option<Instant>,
}

/// Number of flows that limits have refused since the last log line, and the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedFlows {
    refused: u64,
    max_flows: u32,
    max_flow_rate: Option<u32>,
}

impl FlowLimits {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            max_flows: config.max_flows,
            max_flow_rate: config.max_flow_rate,
            known: 0,
            logged: None,
        }
    }

    /// Returns the refused flows that are to be logged, at most once a minute.
    pub(crate) fn take_refused(&mut self, counters: &Counters, now: Instant) -> Option<RefusedFlows> {
        let refused = counters.flows_refused - self.known;
        if refused == 0 || self.logged.is_some_and(|logged| now.since(logged) < QUIET) {
            return None;
        }
        self.known = counters.flows_refused;
        self.logged = Some(now);
        Some(RefusedFlows {
            refused,
            max_flows: self.max_flows,
            max_flow_rate: self.max_flow_rate,
        })
    }
}

impl fmt::Display for RefusedFlows {
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
        let mut limits = FlowLimits {
            max_flows: 9,
            max_flow_rate: None,
            known: 0,
            logged: None,
        };
        let mut counters = Counters::default();
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        assert_eq!(limits.take_refused(&counters, at(0)), None);
        counters.flows_refused = 2;
        let first = limits.take_refused(&counters, at(1)).unwrap();
        assert_eq!(first.to_string(), "2 flows refused (limits: --max-flows 9)");
        counters.flows_refused = 5;
        assert_eq!(limits.take_refused(&counters, at(60)), None);
        let second = limits.take_refused(&counters, at(61)).unwrap();
        assert_eq!(second.refused, 3);
        assert_eq!(limits.take_refused(&counters, at(200)), None);
        let both = RefusedFlows {
            max_flow_rate: Some(7),
            ..second
        };
        assert_eq!(
            both.to_string(),
            "3 flows refused (limits: --max-flows 9, --max-flow-rate 7)"
        );
    }
}
