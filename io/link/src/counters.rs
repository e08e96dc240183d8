//! Counters of a link: frames that it dropped or could not send.

pontoon_engine::counters! {
    /// Counters of a worker's link, or the sum of several.
    pub struct LinkCounters {
        /// Frames that the link dropped for meaningless offload metadata.
        link_malformed,
        /// Times that vhost-net failed and the tap was used instead.
        link_withdrawals,
        /// Queues in shared memory that were closed because of invalid contents.
        link_queue_faults,
    }
}
