//! Decides whether a datagram with DF that exceeds the MTU of the host's interface is fragmented.
//!
//! Linux sets DF on every datagram that fits the interface's MTU. So a large datagram with DF comes from a program
//! without path MTU discovery (`IP_PMTUDISC_WANT`, the default), or from one that discovers the path MTU
//! (`IP_PMTUDISC_DO`, `IP_PMTUDISC_PROBE`). If the MTU of the host's interface is smaller than the guest's, a host
//! program of the first kind would send fragments. Therefore the first datagrams to a destination are fragmented, and
//! an ICMP error that concerns none of the guest's sockets reports the path MTU to the guest's kernel, which fragments
//! or refuses later datagrams itself. Later datagrams that are too big and have DF are refused with an ICMP error, as
//! by any router.

use core::net::IpAddr;
use core::time::Duration;

use arrayvec::ArrayVec;

use crate::Instant;
use crate::state::{Reader, Record, StateError, Writer};

/// Destinations to which a datagram of the guest exceeded the MTU of the host's interface, each with the time of the
/// first one.
#[derive(Debug, Default)]
pub(crate) struct NarrowPaths(ArrayVec<(IpAddr, Instant), MOST>);

/// Treatment of a datagram with DF that exceeds the path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Treatment {
    /// The engine fragments the datagram, and reports the path MTU to the guest's kernel.
    Fragment,
    /// The datagram is refused by an ICMP error.
    Refuse,
}

impl Record for NarrowPaths {
    fn save(&self, to: &mut Writer<'_>) {
        let Self(paths) = self;
        to.put(paths);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        from.get().map(Self)
    }
}

impl NarrowPaths {
    /// Decides about a datagram of the guest with DF that exceeds the path MTU, and stores its destination.
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

/// Maximum number of destinations that are stored; a new one replaces the oldest.
const MOST: usize = 64;

/// Time for which datagrams to a destination are fragmented, because the guest's kernel has not processed the reported
/// path MTU yet.
const LEARNING: Duration = Duration::from_secs(1);

/// Time for which a destination is stored. It is shorter than the time for which Linux keeps a path MTU
/// (`net.ipv4.route.mtu_expires`, 600 s), so that the guest's kernel never forgets the path MTU first.
const MEMORY: Duration = Duration::from_secs(60);

/// Minimum hop limit of datagrams that are fragmented. Programs that measure a path send with hop limits from 1 upwards
/// (`traceroute --mtu`, `tracepath`); others send with 64 or more.
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
