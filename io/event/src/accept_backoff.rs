//! Pauses a listening socket after accept(2) has failed.

use std::time::{Duration, Instant};

/// The pause. Descriptors or memory may be short for longer, other processes may hold them, and no event reports that
/// they have been released. Without a pause each attempt would follow the one before at once.
const PAUSE: Duration = Duration::from_millis(100);

/// The pause of listeners whose backlog may hold connections that no event reports: they are registered edge triggered,
/// and the connections were reported before accept(2) failed.
#[derive(Debug, Default)]
pub struct AcceptBackoff {
    until: Option<Instant>,
}

impl AcceptBackoff {
    /// Begins a pause after accept(2) has failed, unless one is under way.
    pub fn begin(&mut self) {
        self.until.get_or_insert_with(|| Instant::now() + PAUSE);
    }

    /// Ends the pause: the backlog is empty, or an event reports it.
    pub fn end(&mut self) {
        self.until = None;
    }

    /// Returns the longest time for which the worker may sleep. At the end of the pause the listeners are registered
    /// again by `register`, so that connections in their backlogs are reported; another pause follows if that fails.
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
    fn a_pause_is_not_extended_by_further_failures() {
        let mut backoff = AcceptBackoff::default();
        backoff.begin();
        let until = backoff.until;
        backoff.begin();
        assert_eq!(backoff.until, until);
        backoff.end();
        assert_eq!(backoff.until, None);
    }
}
