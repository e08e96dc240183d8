//! What an eventfd is to a process.

use std::time::Duration;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex};

/// Rung any number of times, it wakes once.
#[derive(Default)]
pub struct Notifier {
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Notifier {
    pub fn notify(&self) {
        *self.rung.lock().unwrap() = true;
        self.bell.notify_one();
    }

    pub fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            // loom knows no time: there nobody is left to run, which it reports.
            let (guard, timeout) = self.bell.wait_timeout(rung, Duration::from_secs(60)).unwrap();
            assert!(!timeout.timed_out(), "a notification was lost");
            rung = guard;
        }
        *rung = false;
    }
}
