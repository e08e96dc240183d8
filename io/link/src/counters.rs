//! Counters of a link: frames that the link has dropped, and failures of the link.

/// Counters of the link of one worker, or their sum for several workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames from the guest that were dropped because of invalid offload metadata or an invalid length.
    pub malformed: u64,
    /// Number of times that the link changed to a slower method after a faster one had failed, for example from
    /// vhost-net to the tap.
    pub withdrawals: u64,
    /// Number of virtqueues in the guest's memory that were disabled because their content was invalid.
    pub queue_faults: u64,
}

impl LinkCounters {
    /// Adds the counters of another worker's link.
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

    /// Returns name and value of each counter.
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
