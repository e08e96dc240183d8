//! Detection of packet rings that the kernel has stopped permanently.
//!
//! The kernel marks a slot as used before it writes a packet's `virtio_net_hdr`. If the header cannot express the packet's
//! segmentation type, the packet is dropped and the mark stays (`tpacket_rcv`, Linux net/packet/af_packet.c): every later
//! packet finds the slot used and is dropped, although the ring is empty. Such a packet is written to a tap by a program
//! that requests segmentation into IP fragments (UFO); before Linux 6.2 it is any UDP packet with requested segmentation.
//! Only a new ring receives packets again.
//!
//! poll(2) does not report dropped packets, but SIGIO does. The signal is enabled while a ring is idle. After a packet has
//! arrived, the kernel's counters are checked four times a second until the ring is idle again. So an idle relay sleeps,
//! and a busy relay has no additional cost for each packet.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_sys::packet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Detector of stopped rings of one ingress, which has one ring for each worker.
#[derive(Debug)]
pub(super) struct RingWatchdog {
    /// Time of the next check; `None` while SIGIO is awaited.
    due: Option<Instant>,
    /// Kernel's counters since the last check, and the worker's position in the ring at that time, for each ring.
    rings: Vec<RingCounts>,
}

/// Packets that the kernel has counted for one ring since the last check, and the position of the worker in the ring.
#[derive(Clone, Copy, Debug, Default)]
struct RingCounts {
    packets: u64,
    dropped: u64,
    position: u64,
}

/// Result of a check of the rings of an ingress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingCheck {
    /// The kernel has stopped a ring permanently.
    Stalled,
    /// The kernel has stopped none of the rings.
    Working,
}

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl RingWatchdog {
    /// Creates a detector that waits for SIGIO of the first packet.
    pub(super) fn new(sockets: &[Arc<OwnedFd>], now: Instant) -> Self {
        let mut watchdog = Self {
            due: None,
            rings: vec![RingCounts::default(); sockets.len()],
        };
        watchdog.wait_for_signal(sockets, now);
        watchdog
    }

    /// Adds the packets that the kernel has received and dropped at a ring since its counters were read last.
    pub(super) fn count(&mut self, ring: usize, packets: u32, dropped: u32) {
        if let Some(counts) = self.rings.get_mut(ring) {
            counts.packets += u64::from(packets);
            counts.dropped += u64::from(dropped);
        }
    }

    /// Returns the time of the next check.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Begins periodic checks, because a packet may have arrived at one of these rings.
    pub(super) fn wake(&mut self, sockets: &[Arc<OwnedFd>], now: Instant) {
        if self.due.is_none() {
            self.due = Some(now + CHECK_INTERVAL);
            let _ = set_signals(sockets, false);
        }
    }

    /// Checks the rings, after the kernel's counters were added. `positions` are the workers' positions in the rings.
    pub(super) fn check(
        &mut self,
        sockets: &[Arc<OwnedFd>],
        positions: impl IntoIterator<Item = u64>,
        now: Instant,
    ) -> RingCheck {
        let mut result = RingCheck::Working;
        let received = self.rings.iter().any(|counts| counts.packets > 0);
        for ((counts, socket), position) in self.rings.iter_mut().zip(sockets).zip(positions) {
            if counts.is_stalled(position, || is_empty(socket)) {
                result = RingCheck::Stalled;
            }
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
        result
    }

    fn wait_for_signal(&mut self, sockets: &[Arc<OwnedFd>], now: Instant) {
        // If signals cannot be enabled, the periodic checks continue.
        self.due = set_signals(sockets, true)
            .is_err()
            .then_some(now + CHECK_INTERVAL);
    }
}

impl RingCounts {
    /// Returns true if every packet was dropped although the ring has no packet for the worker to receive.
    fn is_stalled(&self, position: u64, is_empty: impl FnOnce() -> bool) -> bool {
        self.packets > 0 && self.dropped == self.packets && self.position == position && is_empty()
    }
}

/// Returns true if the worker has received the latest packet of the ring.
fn is_empty(socket: &OwnedFd) -> bool {
    poll(
        &mut [PollFd::new(socket, PollFlags::IN)],
        Some(&Timespec::default()),
    ) == Ok(0)
}

fn set_signals(sockets: &[Arc<OwnedFd>], on: bool) -> io::Result<()> {
    let result: io::Result<()> = sockets
        .iter()
        .try_for_each(|socket| packet::set_sigio(socket, on));
    if let Err(error) = &result {
        tracing::debug!(%error, "cannot enable SIGIO");
    }
    result
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
    fn empty_ring_that_drops_every_packet_is_stopped() {
        assert!(counts(3, 3).is_stalled(7, || true));
        // These rings are not stopped: nothing has arrived; not all was dropped; the worker has received something; packets
        // remain in the ring.
        assert!(!counts(0, 0).is_stalled(7, || true));
        assert!(!counts(3, 2).is_stalled(7, || true));
        assert!(!counts(3, 3).is_stalled(8, || true));
        assert!(!counts(3, 3).is_stalled(7, || false));
    }

    #[test]
    fn checks_end_when_the_ring_is_idle() {
        // The socket stands for a ring: it is never readable and raises no signal in a test.
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let sockets = [Arc::new(OwnedFd::from(socket))];
        let now = Instant::now();
        let mut watchdog = RingWatchdog::new(&sockets, now);
        assert_eq!(watchdog.due(), None);
        watchdog.wake(&sockets, now);
        assert_eq!(watchdog.due(), Some(now + CHECK_INTERVAL));
        watchdog.count(0, 2, 2);
        let check = watchdog.check(&sockets, [0], now + CHECK_INTERVAL);
        assert_eq!(check, RingCheck::Stalled);
        assert_eq!(watchdog.due(), Some(now + 2 * CHECK_INTERVAL));
        let check = watchdog.check(&sockets, [0], now + 2 * CHECK_INTERVAL);
        assert_eq!(check, RingCheck::Working);
        assert_eq!(watchdog.due(), None);
    }
}
