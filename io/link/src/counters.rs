//! Counters of a link: frames that the link has dropped, and failures of the link.

pontoon_engine::counters! {
/// Counters of the link of one worker, or their sum for several workers.
    pub struct LinkCounters {
        /// Frames that the link dropped for meaningless offload metadata.
        link_malformed,
        /// Times that vhost-net failed and the tap was used instead.
        link_withdrawals,
        /// Queues in shared memory that were closed because of invalid contents.
        link_queue_faults,
    }
}
