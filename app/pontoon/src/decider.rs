//! Decider of a network: a value of the VMM that decides about each new flow.

use std::fmt;
use std::time::Duration;

use pontoon_engine::decider::Decider;
use pontoon_worker::{DeciderPlace, DeciderSetup};

/// Decider about the new flows of a guest, and the time within which its verdicts have to arrive.
pub struct FlowDecider {
    /// Function that returns a clone of the decider for each of a number of workers.
    clones: Box<dyn FnOnce(u8) -> Vec<Box<dyn Decider>> + Send>,
    deadline: Duration,
}

impl FlowDecider {
    /// Wraps a decider, of which each worker of the engine has a clone. [`Decider::decide`] is called in the worker's thread,
    /// between two packets, and must not wait: a decider that needs time returns
    /// [`Answer::Later`](pontoon_engine::decider::Answer::Later), and the VMM calls [`Network::decide`](crate::Network::decide). A
    /// flow without a verdict after `deadline` is denied.
    #[must_use]
    pub fn new<D: Decider + Clone + 'static>(decider: D, deadline: Duration) -> Self {
        let clones = move |workers| {
            let clone = || Box::new(decider.clone()) as Box<dyn Decider>;
            std::iter::repeat_with(clone).take(usize::from(workers)).collect()
        };
        Self {
            clones: Box::new(clones),
            deadline,
        }
    }

    pub(crate) fn into_setup(self, workers: u8) -> DeciderSetup {
        DeciderSetup {
            deadline: self.deadline,
            decider: DeciderPlace::Process((self.clones)(workers)),
        }
    }
}

impl fmt::Debug for FlowDecider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowDecider")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
