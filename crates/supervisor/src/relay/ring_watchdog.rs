//! Rings that the kernel has stopped for good.
//!
//! The kernel marks a slot as taken before it writes a packet's `virtio_net_hdr`. Where that header has no word for the way
//! in which the packet is to be cut, the packet is dropped and the mark stays (`tpacket_rcv`, Linux
//! net/packet/af_packet.c): all that comes later finds the slot taken and is dropped, though the ring is empty. Such a packet
//! is one that whoever writes to a tap wants cut into fragments, and before Linux 6.2 a super-frame of UDP. Only a new ring
//! helps.
//!
//! Of a packet that is dropped no poll(2) tells. SIGIO does: it is asked for while nothing comes. Once something has come, a
//! look is taken four times a second, until nothing comes again: so an idle relay sleeps, and a busy one pays nothing for
//! each packet.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pontoon_sys::packet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Looks at the rings of a door, one for each worker.
#[derive(Debug)]
pub(super) struct RingWatchdog {
    /// When to look next; `None`: when SIGIO says so.
    due: Option<Instant>,
    /// What has come since the last look, and where each worker was then.
    rings: Vec<RingCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RingCounts {
    packets: u64,
    dropped: u64,
    position: u64,
}

/// Between two looks.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl RingWatchdog {
    /// Waits for the first packet.
    pub(super) fn new(sockets: &[OwnedFd], now: Instant) -> Self {
        let mut watchdog = Self {
            due: None,
            rings: vec![RingCounts::default(); sockets.len()],
        };
        watchdog.wait_for_signal(sockets, now);
        watchdog
    }

    /// Takes in what the kernel has counted for a ring since it was last asked.
    pub(super) fn count(&mut self, ring: usize, packets: u32, dropped: u32) {
        if let Some(counts) = self.rings.get_mut(ring) {
            counts.packets += u64::from(packets);
            counts.dropped += u64::from(dropped);
        }
    }

    /// When to look.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Something has come, perhaps here.
    pub(super) fn wake(&mut self, sockets: &[OwnedFd], now: Instant) {
        if self.due.is_none() {
            self.due = Some(now + CHECK_INTERVAL);
            set_signals(sockets, false);
        }
    }

    /// Whether a ring is stopped, now that the kernel's counts have been taken in. `positions` is where the workers are.
    pub(super) fn check(
        &mut self,
        sockets: &[OwnedFd],
        positions: impl IntoIterator<Item = u64>,
        now: Instant,
    ) -> bool {
        let mut stopped = false;
        let received = self.rings.iter().any(|counts| counts.packets > 0);
        for ((counts, socket), position) in self.rings.iter_mut().zip(sockets).zip(positions) {
            stopped |= counts.is_stalled(position, || is_empty(socket));
            *counts = RingCounts {
                position,
                ..RingCounts::default()
            };
        }
        if received {
            self.due = Some(now + CHECK_INTERVAL);
        } else {
            self.wait_for_signal(sockets, now);
        }
        stopped
    }

    fn wait_for_signal(&mut self, sockets: &[OwnedFd], now: Instant) {
        // Without signals there is no end of looking.
        self.due = (!set_signals(sockets, true)).then_some(now + CHECK_INTERVAL);
    }
}

impl RingCounts {
    /// All that came was dropped, and yet there is nothing in the ring that the worker could have taken.
    fn is_stalled(&self, position: u64, is_empty: impl FnOnce() -> bool) -> bool {
        self.packets > 0 && self.dropped == self.packets && self.position == position && is_empty()
    }
}

/// Whether the latest packet has been taken.
fn is_empty(socket: &OwnedFd) -> bool {
    poll(
        &mut [PollFd::new(socket, PollFlags::IN)],
        Some(&Timespec::default()),
    ) == Ok(0)
}

fn set_signals(sockets: &[OwnedFd], on: bool) -> bool {
    let asked: std::io::Result<()> = sockets.iter().try_for_each(|socket| packet::raise(socket, on));
    if let Err(error) = &asked {
        tracing::debug!(%error, "no signal for packets");
    }
    asked.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(packets: u64, dropped: u64) -> RingCounts {
        RingCounts {
            packets,
            dropped,
            position: 7,
        }
    }

    #[test]
    fn an_empty_ring_that_drops_all_is_stopped() {
        assert!(counts(3, 3).is_stalled(7, || true));
        // Nothing has come; some of it has gone in; a worker has taken something; one has been slow.
        assert!(!counts(0, 0).is_stalled(7, || true));
        assert!(!counts(3, 2).is_stalled(7, || true));
        assert!(!counts(3, 3).is_stalled(8, || true));
        assert!(!counts(3, 3).is_stalled(7, || false));
    }

    #[test]
    fn looks_end_when_nothing_comes() {
        // In the place of a ring: something that is never readable and raises no signal in a test.
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let sockets = [OwnedFd::from(socket)];
        let now = Instant::now();
        let mut watchdog = RingWatchdog::new(&sockets, now);
        assert_eq!(watchdog.due(), None);
        watchdog.wake(&sockets, now);
        assert_eq!(watchdog.due(), Some(now + CHECK_INTERVAL));
        watchdog.count(0, 2, 2);
        assert!(watchdog.check(&sockets, [0], now + CHECK_INTERVAL));
        assert_eq!(watchdog.due(), Some(now + 2 * CHECK_INTERVAL));
        assert!(!watchdog.check(&sockets, [0], now + 2 * CHECK_INTERVAL));
        assert_eq!(watchdog.due(), None);
    }
}
