//! A decider for tests, which gives one answer to all requests and records them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pontoon_engine::decider::{Answer, Decider, FlowRequest};

/// Decider whose answer a test sets. Clones share their state.
#[derive(Clone, Debug)]
pub struct ScriptedDecider(Arc<Mutex<DeciderState>>);

/// The answer to the next requests, and the requests so far.
#[derive(Debug)]
struct DeciderState {
    answer: Answer,
    requests: Vec<FlowRequest>,
}

impl ScriptedDecider {
    /// Returns a decider that gives this answer.
    #[must_use]
    pub fn new(answer: Answer) -> Self {
        let state = DeciderState {
            answer,
            requests: Vec::new(),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Sets the answer to further requests.
    pub fn set(&self, answer: Answer) {
        self.state().answer = answer;
    }

    /// Removes and returns the requests.
    #[must_use]
    pub fn take(&self) -> Vec<FlowRequest> {
        std::mem::take(&mut self.state().requests)
    }

    fn state(&self) -> MutexGuard<'_, DeciderState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Decider for ScriptedDecider {
    fn decide(&mut self, request: &FlowRequest) -> Answer {
        let mut state = self.state();
        state.requests.push(request.clone());
        state.answer
    }
}
