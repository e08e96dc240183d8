//! Datagrams with DF that the host may fragment.
//!
//! Linux sets DF on what fits the interface's MTU, whether the program asked for that or not: a large datagram with DF
//! comes from a program that knows nothing of MTUs (`IP_PMTUDISC_WANT`, the default), or from one that looks for the
//! path's (`IP_PMTUDISC_DO`, `IP_PMTUDISC_PROBE`). Where the host's interface takes less than the guest's, the host's
//! kernel would have fragmented the first one's. So the first datagrams to a destination are fragmented, and the
//! guest's kernel learns the path's MTU by an ICMP error that concerns none of its sockets: from then on it fragments,
//! or refuses, by itself. What is too big and has DF even so is refused, as by any router.

use core::net::IpAddr;
use core::time::Duration;

use arrayvec::ArrayVec;

use crate::Instant;

/// Destinations to which datagrams were too big for the host's interface.
#[derive(Debug, Default)]
pub(crate) struct NarrowPaths(ArrayVec<(IpAddr, Instant), MOST>);

impl NarrowPaths {
    /// Returns true if a datagram of the guest's with DF that is too big for the path may be fragmented. If so, the
    /// guest's kernel is to learn the path's MTU.
    pub(crate) fn admit(&mut self, destination: IpAddr, hop_limit: u8, now: Instant) -> bool {
        if hop_limit < LEAST_HOPS {
            return false;
        }
        let known = self.0.iter().position(|&(known, _)| known == destination);
        match known.map(|at| (at, now.since(self.0[at].1))) {
            Some((_, age)) if age <= LEARNING => return true,
            Some((_, age)) if age <= MEMORY => return false,
            Some((at, _)) => drop(self.0.remove(at)),
            None if self.0.is_full() => drop(self.0.remove(0)),
            None => {}
        }
        self.0.push((destination, now));
        true
    }
}

/// Destinations that are remembered; the one that was learned first is forgotten for another.
const MOST: usize = 64;

/// The time for which datagrams to a destination are fragmented: those that the guest sends before its kernel has
/// learned the MTU.
const LEARNING: Duration = Duration::from_secs(1);

/// The time for which a destination is remembered: shorter than Linux keeps an MTU (`net.ipv4.route.mtu_expires`, 600
/// s), so that the guest's kernel never forgets first.
const MEMORY: Duration = Duration::from_secs(60);

/// Programs that measure a path count its routers up from 1 (`traceroute --mtu`, `tracepath`); others send with 64 and
/// more.
const LEAST_HOPS: u8 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    #[test]
    fn a_destination_is_learned_for_a_second_each_minute() {
        let mut paths = NarrowPaths::default();
        let asked = [0, 1_000, 1_001, 60_000, 60_001, 61_001, 61_002];
        let answers = asked.map(|millis| paths.admit(REMOTE, 64, at(millis)));
        assert_eq!(answers, [true, true, false, false, true, true, false]);
    }

    #[test]
    fn few_hops_measure_the_path() {
        let mut paths = NarrowPaths::default();
        let answers = [1, 31, 32, 255].map(|hops| paths.admit(REMOTE, hops, at(0)));
        assert_eq!(answers, [false, false, true, true]);
    }

    #[test]
    fn the_first_destination_is_forgotten_for_another() {
        let mut paths = NarrowPaths::default();
        for last in 0..=64 {
            assert!(paths.admit([192, 0, 2, last].into(), 64, at(0)));
        }
        assert!(!paths.admit([192, 0, 2, 1].into(), 64, at(2_000)));
        assert!(paths.admit([192, 0, 2, 0].into(), 64, at(2_000)));
    }
}
