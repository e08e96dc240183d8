//! Retry of a listening socket after a pause when accept(2) has failed, for example with EMFILE.

use std::time::{Duration, Instant};

/// Time between a failed accept(2) and the next attempt. Other processes may hold the missing descriptors or memory for
/// longer, and no event reports that they were released; without a pause the worker would retry in a loop.
const PAUSE: Duration = Duration::from_millis(100);

/// State of the pause after a failed accept(2). Connections that wait in a listener's backlog at that time are reported
/// by no further event, because listeners are registered edge triggered.
#[derive(Debug, Default)]
pub struct AcceptBackoff {
    until: Option<Instant>,
}

impl AcceptBackoff {
    /// Begins a pause after accept(2) has failed, unless a pause has begun already.
    pub fn begin(&mut self) {
        self.until.get_or_insert_with(|| Instant::now() + PAUSE);
    }

    /// Ends the pause. It is called when the backlogs are empty or a new event will report them.
    pub fn end(&mut self) {
        self.until = None;
    }

    /// Returns the longest time for which the worker may sleep; `None` without a pause. When the pause is over, it
    /// calls `register` to register the listeners again, so that epoll reports the connections in their backlogs. If
    /// `register` fails, another pause begins.
    pub fn sleep<E>(&mut self, register: impl FnOnce() -> Result<(), E>) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        self.until = None;
        register().err().map(|_| {
            self.begin();
            PAUSE
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_registered_again_when_the_pause_is_over() {
        let mut backoff = AcceptBackoff::default();
        assert_eq!(backoff.sleep(|| -> Result<(), ()> { panic!("no pause") }), None);
        backoff.begin();
        let left = backoff.sleep(|| -> Result<(), ()> { panic!("during the pause") });
        assert!(left.is_some_and(|left| left <= PAUSE), "{left:?}");

        backoff.until = Some(Instant::now());
        assert_eq!(backoff.sleep(|| Err(())), Some(PAUSE));
        backoff.until = Some(Instant::now());
        assert_eq!(backoff.sleep(|| Ok::<_, ()>(())), None);
        assert_eq!(backoff.until, None);
    }

    #[test]
    fn further_failures_do_not_extend_the_pause() {
        let mut backoff = AcceptBackoff::default();
        backoff.begin();
        let until = backoff.until;
        backoff.begin();
        assert_eq!(backoff.until, until);
        backoff.end();
        assert_eq!(backoff.until, None);
    }
}
