//! Packet rings of an ingress, one for each worker.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use pontoon_relay::filter::{self as program, DROP_ALL, Instruction};
use pontoon_relay::rule::Input;
use pontoon_sys::packet::{self, Fanout, Size};
use pontoon_sys::{Family, filter};

use super::Ingress;
use super::receiver::RingParams;
use super::ring_watchdog::{RingCheck, RingWatchdog};
use crate::links::Link;

/// Packet rings of one ingress, one for each worker, with the filter of their sockets.
#[derive(Debug)]
pub(super) struct PacketRing {
    pub(super) id: u32,
    pub(super) size: Size,
    pub(super) sockets: Vec<Arc<OwnedFd>>,
    filter: RingFilter,
    watchdog: RingWatchdog,
}

/// Packets that a ring is set up to receive.
#[derive(Debug)]
struct RingFilter {
    program: Vec<Instruction>,
    /// True if the device is to deliver every multicast group (PACKET_MR_ALLMULTI).
    all_groups: bool,
}

/// Size of a ring in bytes: 8 ms at 10 Gbit/s, including the unused part of slots.
const RING_BYTES: u32 = 16 << 20;

/// Length of the Ethernet header in bytes.
const ETHERNET: u32 = 14;

/// Offset of the IP header after any link-layer header (`SKF_NET_OFF`); slower in BPF than a constant offset.
const NET_OFFSET: u32 = (-0x10_0000_i32).cast_unsigned();

impl PacketRing {
    /// Opens the rings of an ingress, whose filters drop every packet.
    pub(super) fn open(
        ingress: &Ingress,
        params: RingParams,
        next_id: &mut u32,
        workers: usize,
    ) -> io::Result<Self> {
        let bytes = params.mtu + ETHERNET;
        let slots = RING_BYTES / Size::new(1, bytes).slot_bytes();
        let size = Size::new(slots, bytes);
        let sockets = (0..workers)
            .map(|_| {
                let socket = packet::open(size)?;
                // The filter comes first: before the sockets form a fanout group, each would receive every packet.
                filter::attach(&socket, instructions(&DROP_ALL))?;
                packet::bind(&socket, params.index, ingress.family())?;
                Ok(socket)
            })
            .collect::<io::Result<Vec<_>>>()?;
        let fanout = if workers == 1 { Fanout::One } else { Fanout::Flows };
        packet::group(&sockets, fanout, params.defragment)?;
        *next_id += 1;
        let sockets = sockets.into_iter().map(Arc::new).collect();
        Ok(Self::of(*next_id, size, sockets))
    }

    /// Wraps the rings `sockets`, whose filters drop every packet.
    pub(super) fn of(id: u32, size: Size, sockets: Vec<Arc<OwnedFd>>) -> Self {
        Self {
            id,
            size,
            watchdog: RingWatchdog::new(&sockets, Instant::now()),
            sockets,
            filter: RingFilter {
                program: DROP_ALL.to_vec(),
                all_groups: false,
            },
        }
    }

    pub(super) fn describe(&self) -> String {
        let (slots, count) = (self.size.slots(), self.sockets.len());
        format!("packet ring, {count} x {slots} slots")
    }

    /// Attaches filters that accept the packets that the rules match. For ranges of groups the device has to deliver every
    /// group.
    pub(super) fn adapt<'a>(
        &mut self,
        ingress: &Ingress,
        link: &Link,
        rules: impl Iterator<Item = &'a Input> + Clone,
    ) -> io::Result<()> {
        let base = if link.ethernet { ETHERNET } else { NET_OFFSET };
        let wanted = match ingress.family() {
            Family::V4 => program::v4(base, rules.clone()),
            Family::V6 => program::v6(base, rules.clone()),
        };
        let wanted = program::only_own(link.index, wanted);
        if wanted != self.filter.program {
            for socket in &self.sockets {
                filter::attach(socket, instructions(&wanted))?;
            }
            self.filter.program = wanted;
        }
        let is_range =
            |input: &Input| input.is_multicast() && input.to.prefix_len() < input.to.max_prefix_len();
        let all_groups = rules.clone().any(is_range);
        if let Some(first) = self.sockets.first()
            && all_groups != self.filter.all_groups
        {
            packet::all_groups(first, link.index, all_groups)?;
            self.filter.all_groups = all_groups;
        }
        Ok(())
    }

    /// Returns the numbers of packets received and dropped since the last call; reading them resets the kernel's counters.
    pub(super) fn count(&mut self) -> (u64, u64) {
        let mut sum = (0, 0);
        for (number, socket) in self.sockets.iter().enumerate() {
            let Ok((packets, dropped)) = packet::statistics(socket) else {
                continue;
            };
            sum.0 += u64::from(packets);
            sum.1 += u64::from(dropped);
            self.watchdog.count(number, packets, dropped);
        }
        sum
    }

    /// Returns the time of the next check whether the kernel has stopped a ring.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.watchdog.due()
    }

    /// Begins periodic checks, because a packet may have arrived at one of these rings.
    pub(super) fn wake(&mut self, now: Instant) {
        self.watchdog.wake(&self.sockets, now);
    }

    /// Checks whether the kernel has stopped a ring, after its counters were read. `positions` are the workers' positions
    /// in the rings.
    pub(super) fn check(&mut self, positions: impl IntoIterator<Item = u64>, now: Instant) -> RingCheck {
        self.watchdog.check(&self.sockets, positions, now)
    }
}

/// Returns the instructions of a program as [`filter::attach`] takes them.
pub(crate) fn instructions(program: &[Instruction]) -> impl Iterator<Item = (u16, u8, u8, u32)> {
    program.iter().map(|one| (one.code, one.jt, one.jf, one.k))
}
