//! Counters of a link: frames that it dropped or could not send.

/// Counters of a worker's link, or the sum of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames that were dropped for invalid offload metadata or an invalid length.
    pub malformed: u64,
    /// The number of times that the link fell back to a slower method after a faster one had failed.
    pub withdrawals: u64,
    /// Queues in shared memory that were disabled for invalid content.
    pub queue_faults: u64,
}

impl LinkCounters {
    /// Adds another worker's counters.
    pub fn add(&mut self, other: &Self) {
        let Self {
            malformed,
            withdrawals,
            queue_faults,
        } = other;
        self.malformed += malformed;
        self.withdrawals += withdrawals;
        self.queue_faults += queue_faults;
    }

    /// Returns names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self {
            malformed,
            withdrawals,
            queue_faults,
        } = *self;
        [
            ("link_malformed", malformed),
            ("link_withdrawals", withdrawals),
            ("link_queue_faults", queue_faults),
        ]
        .into_iter()
    }
}
