//! Updates that have not been sent to the engine yet.

use std::io;
use std::time::Instant;

use pontoon_worker::Update;

use crate::refused::{PAUSE, Refused};

/// Unsent updates in order, and the time of the next attempt if a send failed for another reason than a full socket buffer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    unsent: Vec<Update>,
    again: Option<Instant>,
}

impl Outbox {
    /// Appends an update, and removes older ones that it replaces.
    pub(crate) fn put(&mut self, update: Update) {
        self.unsent.retain(|older| !update.replaces(older));
        self.unsent.push(update);
    }

    /// Removes all updates.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns true if updates wait for room in the socket buffer.
    pub(crate) fn wants_room(&self) -> bool {
        !self.unsent.is_empty() && self.again.is_none()
    }

    /// Returns the time of the next attempt, if updates wait for something else than room.
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        self.again
    }

    /// Sends as many updates as possible. The user's other processes can have so many descriptors in flight that the kernel
    /// refuses to send another (`ETOOMANYREFS`): an update with descriptors then waits, and state updates overtake it.
    pub(crate) fn flush(&mut self, now: Instant, send: impl Fn(&Update) -> io::Result<()>) {
        if self.again.is_some_and(|again| now < again) {
            return;
        }
        self.again = None;
        let mut at = 0;
        while let Some(update) = self.unsent.get(at) {
            if at > 0 && !may_overtake(update) {
                at += 1;
                continue;
            }
            if let Err(error) = send(update) {
                match Refused::why(&error) {
                    Refused::Full => return,
                    Refused::ForNow => {
                        tracing::debug!(%error, "the update of the engine is delayed");
                        self.again = Some(now + PAUSE);
                        if update.descriptors().is_empty() {
                            return;
                        }
                        at += 1;
                        continue;
                    }
                    // The next engine is started with the update applied.
                    Refused::Gone => {
                        tracing::debug!(%error, "the update was not sent, as the engine has exited")
                    }
                    Refused::Never => tracing::error!(%error, "cannot send an update to the engine"),
                }
            }
            self.unsent.remove(at);
        }
    }
}

/// Returns true if the update is a state that does not depend on earlier events. A reply to a query confirms all updates
/// before the query, so that queries must not overtake.
fn may_overtake(update: &Update) -> bool {
    match update {
        Update::Resolvers(_)
        | Update::Owned(_)
        | Update::SomeOwned(_)
        | Update::Ipv6Route(_)
        | Update::Rules(_)
        | Update::LogLevel(_) => true,
        Update::Published(_) | Update::Capture(_) | Update::Ask(_) | Update::Flows(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use pontoon_worker::messages::{Order, Start};

    use super::*;

    /// Flushes to an engine for which every send returns `error`; returns the updates that were sent.
    fn flush(outbox: &mut Outbox, now: Instant, error: Option<i32>) -> Vec<Update> {
        let sent = RefCell::new(Vec::new());
        outbox.flush(now, |update| match error {
            Some(number) => Err(io::Error::from_raw_os_error(number)),
            None => {
                sent.borrow_mut().push(update.clone());
                Ok(())
            }
        });
        sent.into_inner()
    }

    fn outbox() -> Outbox {
        let mut outbox = Outbox::default();
        outbox.put(Update::Ipv6Route(false));
        outbox.put(Update::Ask(1));
        outbox.put(Update::Ipv6Route(true));
        outbox
    }

    #[test]
    fn what_the_host_is_short_of_loses_nothing() {
        for number in [libc::ENOBUFS, libc::ENOMEM, libc::ETOOMANYREFS] {
            let (mut outbox, start) = (outbox(), Instant::now());
            assert_eq!(flush(&mut outbox, start, Some(number)), []);
            assert_eq!(outbox.next_turn(), Some(start + PAUSE));
            assert!(!outbox.wants_room());
            assert_eq!(flush(&mut outbox, start, None), []);
            let all = flush(&mut outbox, start + PAUSE, None);
            assert_eq!(all, [Update::Ask(1), Update::Ipv6Route(true)]);
            assert_eq!((outbox.next_turn(), outbox.wants_room()), (None, false));
        }
    }

    #[test]
    fn states_do_not_wait_for_descriptors() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let capture = Update::Capture(Order::Start(Start {
            number: 1,
            file: Arc::new(OwnedFd::from(file)).into(),
            snap: 96,
            size: None,
            time: None,
        }));
        let (mut outbox, start) = (Outbox::default(), Instant::now());
        let sent = RefCell::new(Vec::new());
        let short = |update: &Update| match update.descriptors().is_empty() {
            false => Err(io::Error::from_raw_os_error(libc::ETOOMANYREFS)),
            true => {
                sent.borrow_mut().push(update.clone());
                Ok(())
            }
        };
        for update in [capture.clone(), Update::Ask(1), Update::Owned(Vec::new())] {
            outbox.put(update);
        }
        outbox.flush(start, short);
        assert_eq!(sent.take(), [Update::Owned(Vec::new())]);
        outbox.put(Update::Ipv6Route(true));
        outbox.flush(start + PAUSE, short);
        assert_eq!(sent.take(), [Update::Ipv6Route(true)]);
        let left = flush(&mut outbox, start + 2 * PAUSE, None);
        assert_eq!(left, [capture, Update::Ask(1)]);
    }

    #[test]
    fn what_there_is_no_room_for_waits_for_it() {
        let (mut outbox, now) = (outbox(), Instant::now());
        assert_eq!(flush(&mut outbox, now, Some(libc::EAGAIN)), []);
        assert_eq!((outbox.next_turn(), outbox.wants_room()), (None, true));
        assert_eq!(flush(&mut outbox, now, None).len(), 2);
    }

    #[test]
    fn what_nothing_helps_is_given_up() {
        for number in [libc::EPIPE, libc::ECONNRESET, libc::EMSGSIZE] {
            let (mut outbox, now) = (outbox(), Instant::now());
            assert_eq!(flush(&mut outbox, now, Some(number)), []);
            assert_eq!((outbox.next_turn(), outbox.wants_room()), (None, false));
        }
    }
}
