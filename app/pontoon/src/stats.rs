//! Statistics of a network.

use pontoon_worker::stats::Distribution;

/// Counters and gauges of an engine, summed over all of its workers. Each worker publishes its own before it sleeps, and every
/// millisecond while it does not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Open flows.
    pub flows: u64,
    /// Bytes of memory that hold data which the host has not accepted yet, or which arrived out of order.
    pub pool_bytes: u64,
    /// Number of packets for each egress rule: those of the `allow` and `deny` calls in their order. Zeros until the workers
    /// have received the rules.
    pub rules: Vec<u64>,
    /// Number of packets to destinations that no allow rule permits.
    pub unlisted: u64,
    /// Number of DNS queries to other resolvers than the forwarder that were refused because rules name domains.
    pub other_resolvers: u64,
    /// Number of calls of the decider that panicked; their flows were denied.
    pub decider_panics: u64,
    /// Number of calls of the decider that took 10 ms or longer, during which no packet was processed.
    pub slow_decisions: u64,
    /// Measured values since the start.
    pub histograms: Vec<HistogramValues>,
    /// Counters since the start, by name. The page `docs/control.md` describes where to find their meanings.
    pub counters: Vec<(&'static str, u64)>,
}

/// Histogram of a measured quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistogramValues {
    /// Name of the quantity, with the unit at its end.
    pub name: &'static str,
    /// Value of one unit: `sum` and `bounds` are multiples of it. 1,000,000,000 if the unit is the second and the values are
    /// nanoseconds.
    pub unit: u64,
    /// Upper bounds of the buckets.
    pub bounds: &'static [u64],
    /// Number of values up to each bound and above the one before; the last is the number above all bounds.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: u64,
}

impl Stats {
    /// Returns the counter `name`; `None` if there is none with this name.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        let mut counters = self.counters.iter();
        counters
            .find(|(known, _)| *known == name)
            .map(|(_, count)| *count)
    }
}

impl HistogramValues {
    pub(crate) fn of(from: Distribution) -> Self {
        Self {
            name: from.quantity.name,
            unit: from.quantity.one,
            bounds: from.quantity.bounds,
            counts: from.counts,
            sum: from.sum,
        }
    }
}
