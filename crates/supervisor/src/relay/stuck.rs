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
pub(super) struct Stuck {
    /// When to look next; `None`: when SIGIO says so.
    due: Option<Instant>,
    /// What has come since the last look, and where each worker was then.
    rings: Vec<Seen>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    packets: u64,
    dropped: u64,
    position: u64,
}

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);

impl Stuck {
    /// Waits for the first packet.
    pub(super) fn new(sockets: &[OwnedFd], now: Instant) -> Self {
        let mut stuck = Self {
            due: None,
            rings: vec![Seen::default(); sockets.len()],
        };
        stuck.rest(sockets, now);
        stuck
    }

    /// Takes in what the kernel has counted for a ring since it was last asked.
    pub(super) fn count(&mut self, ring: usize, packets: u32, dropped: u32) {
        if let Some(seen) = self.rings.get_mut(ring) {
            seen.packets += u64::from(packets);
            seen.dropped += u64::from(dropped);
        }
    }

    /// When to look.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Something has come, perhaps here.
    pub(super) fn wake(&mut self, sockets: &[OwnedFd], now: Instant) {
        if self.due.is_none() {
            self.due = Some(now + PAUSE);
            ask_for_signals(sockets, false);
        }
    }

    /// Whether a ring is stopped, now that the kernel's counts have been taken in. `positions` is where the workers are.
    pub(super) fn look(
        &mut self,
        sockets: &[OwnedFd],
        positions: impl IntoIterator<Item = u64>,
        now: Instant,
    ) -> bool {
        let mut stopped = false;
        let came = self.rings.iter().any(|seen| seen.packets > 0);
        for ((seen, socket), position) in self.rings.iter_mut().zip(sockets).zip(positions) {
            stopped |= seen.is_stopped(position, || is_empty(socket));
            *seen = Seen {
                position,
                ..Seen::default()
            };
        }
        if came {
            self.due = Some(now + PAUSE);
        } else {
            self.rest(sockets, now);
        }
        stopped
    }

    fn rest(&mut self, sockets: &[OwnedFd], now: Instant) {
        // Without signals there is no end of looking.
        self.due = (!ask_for_signals(sockets, true)).then_some(now + PAUSE);
    }
}

impl Seen {
    /// All that came was dropped, and yet there is nothing in the ring that the worker could have taken.
    fn is_stopped(&self, position: u64, is_empty: impl FnOnce() -> bool) -> bool {
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

fn ask_for_signals(sockets: &[OwnedFd], on: bool) -> bool {
    let asked: std::io::Result<()> = sockets.iter().try_for_each(|socket| packet::raise(socket, on));
    if let Err(error) = &asked {
        tracing::debug!(%error, "no signal for packets");
    }
    asked.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(packets: u64, dropped: u64) -> Seen {
        Seen {
            packets,
            dropped,
            position: 7,
        }
    }

    #[test]
    fn an_empty_ring_that_drops_all_is_stopped() {
        assert!(seen(3, 3).is_stopped(7, || true));
        // Nothing has come; some of it has gone in; a worker has taken something; one has been slow.
        assert!(!seen(0, 0).is_stopped(7, || true));
        assert!(!seen(3, 2).is_stopped(7, || true));
        assert!(!seen(3, 3).is_stopped(8, || true));
        assert!(!seen(3, 3).is_stopped(7, || false));
    }

    #[test]
    fn looks_end_when_nothing_comes() {
        // In the place of a ring: something that is never readable and raises no signal in a test.
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let sockets = [OwnedFd::from(socket)];
        let now = Instant::now();
        let mut stuck = Stuck::new(&sockets, now);
        assert_eq!(stuck.due(), None);
        stuck.wake(&sockets, now);
        assert_eq!(stuck.due(), Some(now + PAUSE));
        stuck.count(0, 2, 2);
        assert!(stuck.look(&sockets, [0], now + PAUSE));
        assert_eq!(stuck.due(), Some(now + 2 * PAUSE));
        assert!(!stuck.look(&sockets, [0], now + 2 * PAUSE));
        assert_eq!(stuck.due(), None);
    }
}
