//! Timer with a descriptor to poll (timerfd_create(2)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// Timer of the monotonic clock, whose descriptor is readable from its end until it is set again.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Creates a timer that is not set.
    ///
    /// # Errors
    /// No descriptor or no memory is free.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Sets the time after which the descriptor is readable, in place of an earlier one; `None` for none.
    ///
    /// # Errors
    /// The time is out of the kernel's range.
    pub fn set(&self, after: Option<Duration>) -> io::Result<()> {
        let time = |after: Duration| Timespec {
            tv_sec: after.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: after.subsec_nanos().into(),
        };
        let timer = Itimerspec {
            it_interval: time(Duration::ZERO),
            // Zero would disable the timer.
            it_value: after.map_or(time(Duration::ZERO), |after| {
                time(after.max(Duration::from_nanos(1)))
            }),
        };
        // Setting the timer also ends its readability.
        Ok(timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &timer).map(drop)?)
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(timer: &Timer, seconds: i64) -> bool {
        let timeout = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(timer, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    }

    #[test]
    fn timer_is_readable_from_its_end_until_it_is_set_again() {
        let timer = Timer::new().unwrap();
        assert!(!is_readable(&timer, 0));
        for after in [Duration::ZERO, Duration::from_millis(1)] {
            timer.set(Some(after)).unwrap();
            assert!(is_readable(&timer, 10) && is_readable(&timer, 0));
            timer.set(None).unwrap();
            assert!(!is_readable(&timer, 0));
        }
        timer.set(Some(Duration::from_secs(1000))).unwrap();
        assert!(!is_readable(&timer, 0));
    }
}
