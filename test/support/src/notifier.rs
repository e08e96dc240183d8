//! A notification flag in place of an eventfd, for tests with several threads.

use std::time::Duration;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex};

/// A notification flag. Any number of notifications end one wait.
#[derive(Default)]
pub struct Notifier {
    notified: Mutex<bool>,
    condvar: Condvar,
}

impl Notifier {
    /// Wakes the waiting thread, or makes its next wait return at once.
    pub fn notify(&self) {
        *self.notified.lock().unwrap() = true;
        self.condvar.notify_one();
    }

    /// Waits for a notification. Panics after 60 seconds without one.
    pub fn wait(&self) {
        let mut notified = self.notified.lock().unwrap();
        while !*notified {
            // loom does not model time: it reports a lost notification as a deadlock.
            let (guard, timeout) = self
                .condvar
                .wait_timeout(notified, Duration::from_secs(60))
                .unwrap();
            assert!(!timeout.timed_out(), "a notification was lost");
            notified = guard;
        }
        *notified = false;
    }
}
