//! Datagrams with DF that the host may fragment.
//!
//! Linux sets DF on every datagram that fits the interface's MTU: a large datagram with DF is from a program without path
//! MTU discovery (`IP_PMTUDISC_WANT`, the default), or from one that discovers the path's MTU (`IP_PMTUDISC_DO`,
//! `IP_PMTUDISC_PROBE`). If the MTU of the host's interface is smaller than the guest's, the host's kernel would have
//! fragmented the datagrams of the former. So the first datagrams to a destination are fragmented, and an ICMP error that
//! concerns none of the guest's sockets reports the path's MTU to its kernel, which fragments or refuses later datagrams
//! itself. Later datagrams that are too big and have DF are refused, as by any router.

use core::net::IpAddr;
use core::time::Duration;

use arrayvec::ArrayVec;

use crate::Instant;

/// Destinations to which datagrams were too big for the host's interface.
#[derive(Debug, Default)]
pub(crate) struct NarrowPaths(ArrayVec<(IpAddr, Instant), MOST>);

/// The treatment of a datagram with DF that is too big for the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Treatment {
    /// It is fragmented, and the guest's kernel is sent the path's MTU.
    Fragment,
    /// It is refused by an ICMP error.
    Refuse,
}

impl NarrowPaths {
    /// Decides about a datagram of the guest with DF that is too big for the path, and remembers its destination.
    pub(crate) fn treat(&mut self, destination: IpAddr, hop_limit: u8, now: Instant) -> Treatment {
        if hop_limit < LEAST_HOPS {
            return Treatment::Refuse;
        }
        let known = self.0.iter().position(|&(known, _)| known == destination);
        match known.map(|at| (at, now.since(self.0[at].1))) {
            Some((_, age)) if age <= LEARNING => return Treatment::Fragment,
            Some((_, age)) if age <= MEMORY => return Treatment::Refuse,
            Some((at, _)) => drop(self.0.remove(at)),
            None if self.0.is_full() => drop(self.0.remove(0)),
            None => {}
        }
        self.0.push((destination, now));
        Treatment::Fragment
    }
}

/// Destinations that are remembered; a new one replaces the oldest.
const MOST: usize = 64;

/// The time for which datagrams to a destination are fragmented: those that the guest sends before its kernel has
/// learned the MTU.
const LEARNING: Duration = Duration::from_secs(1);

/// The time for which a destination is remembered: shorter than the time for which Linux keeps an MTU
/// (`net.ipv4.route.mtu_expires`, 600 s), so that the guest's kernel never forgets first.
const MEMORY: Duration = Duration::from_secs(60);

/// Programs that measure a path count its routers up from 1 (`traceroute --mtu`, `tracepath`); others send with 64 and
/// more.
const LEAST_HOPS: u8 = 32;

#[cfg(test)]
mod tests {
    use super::Treatment::{Fragment, Refuse};
    use super::*;

    const REMOTE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    #[test]
    fn datagrams_to_a_destination_are_fragmented_for_one_second_per_minute() {
        let mut paths = NarrowPaths::default();
        let asked = [0, 1_000, 1_001, 60_000, 60_001, 61_001, 61_002];
        let answers = asked.map(|millis| paths.treat(REMOTE, 64, at(millis)));
        let expected = [Fragment, Fragment, Refuse, Refuse, Fragment, Fragment, Refuse];
        assert_eq!(answers, expected);
    }

    #[test]
    fn datagram_with_low_hop_limit_is_refused() {
        let mut paths = NarrowPaths::default();
        let answers = [1, 31, 32, 255].map(|hops| paths.treat(REMOTE, hops, at(0)));
        assert_eq!(answers, [Refuse, Refuse, Fragment, Fragment]);
    }

    #[test]
    fn full_list_forgets_the_oldest_destination() {
        let mut paths = NarrowPaths::default();
        for last in 0..=64 {
            assert_eq!(paths.treat([192, 0, 2, last].into(), 64, at(0)), Fragment);
        }
        assert_eq!(paths.treat([192, 0, 2, 1].into(), 64, at(2_000)), Refuse);
        assert_eq!(paths.treat([192, 0, 2, 0].into(), 64, at(2_000)), Fragment);
    }
}
