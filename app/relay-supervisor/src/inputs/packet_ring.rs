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
    /// The device passes up every group (PACKET_MR_ALLMULTI).
    all_groups: bool,
}

/// Bytes of a ring: 8 ms at 10 Gbit/s, with the unused part of slots.
const RING_BYTES: u32 = 16 << 20;

/// Bytes of the Ethernet header.
const ETHERNET: u32 = 14;

/// Offset of the IP header behind any link-layer header (`SKF_NET_OFF`); slower than a constant.
const NET_OFFSET: u32 = (-0x10_0000_i32).cast_unsigned();

impl PacketRing {
    /// Opens rings whose filters drop every packet.
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
                // Before the sockets form a fanout group, each would receive every packet.
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

    /// Makes a value of rings whose filters drop every packet.
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

    /// Receives what the rules match. For ranges of groups the device has to pass up every group.
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

    /// Returns packets received and dropped since the last call, which has reset the kernel's counters.
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

    /// Returns the time of the next check for a stopped ring.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.watchdog.due()
    }

    /// Starts checks, as a packet may have arrived here.
    pub(super) fn wake(&mut self, now: Instant) {
        self.watchdog.wake(&self.sockets, now);
    }

    /// Checks for a ring that the kernel has stopped, after its counters were read. `positions` are those of the workers.
    pub(super) fn check(&mut self, positions: impl IntoIterator<Item = u64>, now: Instant) -> RingCheck {
        self.watchdog.check(&self.sockets, positions, now)
    }
}

fn instructions(program: &[Instruction]) -> impl Iterator<Item = (u16, u8, u8, u32)> {
    program.iter().map(|one| (one.code, one.jt, one.jf, one.k))
}
