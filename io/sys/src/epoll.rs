//! Waiting for events by epoll_wait(2), for environments without epoll_pwait2(2): valgrind before version 3.22.

use std::os::fd::{AsFd, AsRawFd as _};
use std::time::Duration;

use rustix::io::Errno;

/// Waits for events of an epoll instance, at most for `timeout`, which is rounded up to milliseconds; without limit if `None`.
/// Calls `take` for each event with its flags and data.
///
/// # Errors
/// Errors of epoll_wait(2).
pub fn wait<const N: usize>(
    epoll: impl AsFd,
    timeout: Option<Duration>,
    mut take: impl FnMut(u32, u64),
) -> Result<(), Errno> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; N];
    let milliseconds = |timeout: Duration| {
        let rounded = timeout.as_nanos().div_ceil(1_000_000);
        i32::try_from(rounded).unwrap_or(i32::MAX)
    };
    let timeout = timeout.map_or(-1, milliseconds);
    let most = i32::try_from(N).unwrap_or(i32::MAX);
    let epoll = epoll.as_fd().as_raw_fd();
    // SAFETY: the array has room for `most` events, and is exclusively borrowed.
    let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most, timeout) };
    let Ok(count) = usize::try_from(count) else {
        let error = std::io::Error::last_os_error().raw_os_error();
        return Err(Errno::from_raw_os_error(error.unwrap_or(libc::EIO)));
    };
    for event in events.iter().take(count) {
        take(event.events, event.u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

    #[test]
    fn events_have_flags_and_data() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        epoll::add(&epoll, &reader, EventData::new_u64(7), EventFlags::IN).unwrap();
        let mut seen = Vec::new();
        wait::<4>(&epoll, Some(Duration::from_micros(10)), |flags, data| {
            seen.push((flags, data))
        })
        .unwrap();
        assert!(seen.is_empty());
        rustix::io::write(&writer, b"x").unwrap();
        wait::<4>(&epoll, None, |flags, data| seen.push((flags, data))).unwrap();
        assert_eq!(seen, [(EventFlags::IN.bits(), 7)]);
        assert_eq!(wait::<4>(&reader, None, |_, _| ()), Err(Errno::INVAL));
    }
}
