//! Timers: one wheel per worker.

use crate::{FlowId, Instant};

/// A flow's place in the wheel; keep it in the flow's slot.
#[derive(Debug, Default)]
pub struct Timer(Option<u32>);

/// All timers of one worker: O(1) to arm, disarm and expire.
#[derive(Debug, Default)]
pub struct Wheel {}

impl Wheel {
    /// Sees to it that [`Self::expired`] names `flow` no later than `at` (rounded up to the wheel's tick). A timer that
    /// is armed for an earlier time is left there: on waking, the flow looks at its own deadlines and arms again. That
    /// makes pushing a deadline back, which every packet does, free.
    pub fn arm(&mut self, timer: &mut Timer, flow: FlowId, at: Instant) {
        let _ = (timer, flow, at);
        todo!()
    }

    /// Takes the timer out.
    pub fn disarm(&mut self, timer: &mut Timer) {
        let _ = timer;
        todo!()
    }

    /// Takes one flow whose timer is due, if any. Its timer is disarmed: tell it by [`Timer::fired`].
    pub fn expired(&mut self, now: Instant) -> Option<FlowId> {
        let _ = now;
        todo!()
    }

    /// When [`Self::expired`] can next have something; `None` while no timer is armed.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        todo!()
    }
}

impl Timer {
    /// The wheel has named this flow: the timer is no longer armed.
    pub fn fired(&mut self) {
        self.0 = None;
    }
}
