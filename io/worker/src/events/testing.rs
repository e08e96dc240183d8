//! A writer of events without an engine, for tests of programs that read them.

use std::sync::Arc;

use pontoon_engine::WorkerId;
use pontoon_engine::flow_events::{FlowEvent, FlowEvents, Reported};

use super::{Doorbell, EventSetup, EventWriter, connect};

/// A worker's access to its ring; each event is followed by the end of a turn.
#[derive(Debug)]
pub struct Writer {
    writer: EventWriter,
    doorbell: Doorbell,
}

impl Writer {
    /// Returns the access of `worker`, with egress rules of this generation.
    ///
    /// # Panics
    /// There is no such worker, or no free descriptor.
    #[must_use]
    pub fn new(setup: &EventSetup, worker: WorkerId, generation: u64) -> Self {
        let event = Arc::new(setup.doorbell.try_clone().expect("a descriptor"));
        let (writer, doorbell) = connect(&setup.rings, worker, &event, generation, None).expect("a worker");
        Self { writer, doorbell }
    }

    /// Sets the generation of the egress rules.
    pub fn set_generation(&self, generation: u64) {
        self.doorbell.set_generation(generation);
    }
}

impl FlowEvents for Writer {
    fn report(&mut self, event: &FlowEvent) -> Reported {
        let reported = self.writer.report(event);
        self.doorbell.notify();
        reported
    }
}
