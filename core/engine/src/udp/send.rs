//! Sends gathered datagrams to host sockets, by one call if the socket supports that.

use vm_memory::VolatileSlice;

use super::Udp;
use super::gather::{DatagramRun, RunHeaders, range};
use crate::ctx::Ctx;
use crate::egress_check;
use crate::host::DatagramMeta;
use crate::icmp_errors::{self, SendFailure};
use crate::local::icmp_error;
use crate::path_mtu::Treatment;
use crate::{Failure, Host, Transmit};

impl<S> Udp<S> {
    pub(super) fn send<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        run: &DatagramRun,
        parts: &[VolatileSlice<'_>],
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let count = run.count as u64;
        let Some(endpoint) = self.endpoints.get_mut(run.route.index, run.route.generation) else {
            ctx.net.counters.udp_send_failed += count;
            return;
        };
        let together = u16::try_from(run.segment)
            .ok()
            .filter(|&segment| run.count > 1 && segment <= endpoint.largest_segment);
        let Some(segment) = together else {
            return self.send_singly(run, parts, ctx);
        };
        let Err(unsent) = self.try_send(run, Some(segment), parts, ctx) else {
            ctx.net.counters.udp_up += count;
            ctx.net.counters.udp_batches_up += 1;
            self.endpoints.at_mut(run.route.index).traffic.up += run.len as u64;
            return;
        };
        // The reduced limit applies to this endpoint only, because an error of the path or the device does not concern
        // other endpoints; after an error of size it still permits smaller datagrams.
        let largest = match unsent.failure {
            Failure::TooBig => segment - 1,
            Failure::Invalid => 0,
            _ => {
                ctx.net.counters.udp_send_failed += count;
                return self.report_unsent(run, parts, unsent, ctx);
            }
        };
        self.endpoints.at_mut(run.route.index).largest_segment = largest;
        self.send_singly(run, parts, ctx);
    }

    fn send_singly<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        run: &DatagramRun,
        parts: &[VolatileSlice<'_>],
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let mut reported = false;
        for nth in 0..run.count {
            let at = nth * run.segment;
            let piece;
            let one = if run.count == 1 {
                parts
            } else {
                piece = range(parts, at, run.segment.min(run.len - at));
                &piece[..]
            };
            let sent = self.try_send(run, None, one, ctx);
            let Err(unsent) = sent.or_else(|unsent| self.send_in_fragments(run, one, unsent, ctx)) else {
                ctx.net.counters.udp_up += 1;
                let len = run.segment.min(run.len - at);
                self.endpoints.at_mut(run.route.index).traffic.up += len as u64;
                continue;
            };
            ctx.net.counters.udp_send_failed += 1;
            if !reported {
                self.report_unsent(run, one, unsent, ctx);
                reported = true;
            }
        }
    }

    /// Sends a datagram that exceeds the MTU of the host's interface in fragments, as the host would send its own
    /// datagrams, if [`NarrowPaths`] permits that. The path MTU is reported to the guest's kernel.
    ///
    /// [`NarrowPaths`]: crate::path_mtu::NarrowPaths
    fn send_in_fragments<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        run: &DatagramRun,
        parts: &[VolatileSlice<'_>],
        unsent: SendFailure,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), SendFailure> {
        let RunHeaders { guest, written, meta } = run.heading;
        if unsent.failure != Failure::TooBig || !meta.dont_fragment {
            return Err(unsent);
        }
        let treatment = ctx.net.narrow.treat(written.ip(), meta.hop_limit, ctx.now);
        if treatment == Treatment::Refuse {
            return Err(unsent);
        }
        let mut run = *run;
        run.heading.meta.dont_fragment = false;
        self.try_send(&run, None, parts, ctx)?;
        icmp_error::advise_mtu(ctx.net, ctx.link, guest.ip(), written.ip(), unsent.mtu);
        Ok(())
    }

    fn try_send<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        run: &DatagramRun,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), SendFailure> {
        icmp_errors::send(
            &mut (self, ctx),
            |(udp, ctx)| udp.send_once(run, segment, parts, ctx),
            |(udp, ctx)| udp.report_problems(run.route.index, ctx),
        )
    }

    fn send_once<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        run: &DatagramRun,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Failure> {
        let meta = DatagramMeta {
            hop_limit: egress_check::next_hop_limit(run.heading.meta.hop_limit),
            ..run.heading.meta
        };
        let socket = &mut self.endpoints.at_mut(run.route.index).socket;
        ctx.host
            .udp_send(socket, run.route.to, run.route.from, meta, segment, parts)
    }
}
