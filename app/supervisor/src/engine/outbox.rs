//! What the engine has not been told yet.

use std::io;
use std::time::Instant;

use pontoon_runtime::Update;

use crate::refused::{PAUSE, Refused};

/// Updates in order, and when to try again where the kernel has refused one for want of something else than room.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    unsent: Vec<Update>,
    again: Option<Instant>,
}

impl Outbox {
    /// Puts an update in, in the place of those that it replaces.
    pub(crate) fn put(&mut self, update: Update) {
        self.unsent.retain(|older| !update.replaces(older));
        self.unsent.push(update);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether something waits for room.
    pub(crate) fn wants_room(&self) -> bool {
        !self.unsent.is_empty() && self.again.is_none()
    }

    /// When to try again, where room is not what is wanted.
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        self.again
    }

    /// Sends what can be sent. A command of the same user can have so many descriptors in flight that the kernel sends no
    /// other (`ETOOMANYREFS`): an update with descriptors then waits, and what is no event overtakes it.
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
                        tracing::debug!(%error, "the engine is told of a change later");
                        self.again = Some(now + PAUSE);
                        if update.descriptors().is_empty() {
                            return;
                        }
                        at += 1;
                        continue;
                    }
                    // Its successor starts with what it was to be told.
                    Refused::Gone => tracing::debug!(%error, "the engine was not told of a change"),
                    Refused::Never => tracing::error!(%error, "the engine cannot be told of a change"),
                }
            }
            self.unsent.remove(at);
        }
    }
}

/// Whether an update is a state that events before it do not concern. The answer to a question says that everything before
/// it holds.
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

    use pontoon_runtime::messages::{Order, Start};

    use super::*;

    /// What gets through to an engine that the kernel lets nothing through to but with `result`.
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
