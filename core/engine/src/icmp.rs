//! ICMP and ICMPv6 echo requests from the guest: one host socket for each echo id that the guest uses.
//!
//! Replies to the guest have its own id, and come from the address to which it has sent. ICMP errors of routers, which
//! traceroute uses, quote the guest's request. All other ICMP messages from the guest are about packets from the
//! engine, and are dropped here.

mod decided;
mod down;
mod enforce;
mod events;
mod requested;
mod state;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use pontoon_wire::frame::{self, Transport};
use pontoon_wire::protocol;
use rand_chacha::ChaCha12Rng;

use self::requested::RequestedAddresses;
use crate::ctx::{Capacity, Ctx, Eviction, Net};
use crate::egress::EgressProtocol;
use crate::egress_check::{self, Packet};
use crate::flow_dump::{Flow, Phase, SLOTS, Traffic};
use crate::flow_events::{Announcement, CloseReason, Grounds, RefusalReason};
use crate::flow_rate::{Admission, FlowOpener};
use crate::host::DatagramMeta;
use crate::icmp_errors::{self, SendFailure};
use crate::local::icmp_error::{self, Reason};
use crate::path_mtu::Treatment;
use crate::table::{Secret, Table};
use crate::timer::Timer;
use crate::{Failure, FlowId, Frame, Host, Instant, Kind, Transmit};
use crate::state::flow_record;

/// The ICMP echo ids of the guest in one worker, with their host sockets.
#[derive(Debug)]
pub struct Icmp<S> {
    /// Echo ids by the guest's address and id.
    echoes: Table<(IpAddr, u16), Echo<S>>,
    /// Addresses to which the guest has sent echo requests, and from which replies are accepted.
    requested: RequestedAddresses,
    /// Buffer for the data of one echo request or reply.
    scratch: Box<[u8]>,
}

/// An ICMP echo id of the guest with its host socket.
#[derive(Debug)]
struct Echo<S> {
    socket: S,
    timer: Timer,
    opened: Instant,
    used: Instant,
    traffic: Traffic,
    /// State of the echo id's opening event.
    announcement: Announcement,
    /// Destination of the last request, as the guest has sent it.
    asked: IpAddr,
    /// True if a host has replied to a request.
    answered: bool,
    /// Sequence number of the last request.
    seq: u16,
    /// True if the flow is in `Net::ready` or `Net::parked`.
    queued: bool,
    /// True if the socket's error queue may have entries.
    troubled: bool,
}

flow_record! { Echo {
    opened, used, traffic, announcement, asked, answered, seq, queued, troubled,
} sockets { socket: S } elsewhere { timer = Timer::default() } }

impl<S> Icmp<S> {
    /// Creates a table without echo ids.
    #[must_use]
    pub fn new(random: &mut ChaCha12Rng) -> Self {
        Self {
            echoes: Table::new(Secret::new(random)),
            requested: RequestedAddresses::new(random),
            scratch: vec![0; SCRATCH].into_boxed_slice(),
        }
    }

    /// Returns the number of open echo ids.
    #[must_use]
    pub fn len(&self) -> usize {
        self.echoes.len()
    }

    /// Returns true if no echo id is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the echo id `flow` is still open.
    pub(crate) fn contains(&mut self, flow: FlowId) -> bool {
        self.echoes.get_mut(flow.index, flow.generation).is_some()
    }

    /// Handles an ICMP message from the guest that no local service has handled.
    pub fn handle_message<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        frame: &Frame<'_>,
        ip: &frame::Ip,
        icmp: &frame::Icmp,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let request = match ip.source {
            IpAddr::V4(_) => (protocol::ICMP, 8, 0),
            IpAddr::V6(_) => (protocol::ICMPV6, 128, 0),
        };
        if (ip.protocol, icmp.kind, icmp.code) != request {
            ctx.net.counters.unknown_protocol += 1;
            return;
        }
        let packet = Packet {
            frame,
            ip,
            transport: Transport::Icmp(*icmp),
        };
        if decided::is_pending(ip, icmp, ctx.net) {
            return;
        }
        let kept = self.kept_remote(ip, icmp.ident, ctx);
        let permitted = match kept {
            Some(remote) => Some((remote, None)),
            None => packet
                .check_egress(ctx)
                .ok()
                .map(|it| (it.remote.ip(), it.ground)),
        };
        let Some((remote, rule)) = permitted else {
            return;
        };
        let Ok(()) = packet.check_hop_limit(remote, ctx) else {
            return;
        };
        let Some((remote, requested, verdict)) = self.judge(&packet, icmp, remote, ctx) else {
            return;
        };
        let data = self.scratch.get_mut(..icmp.payload_len);
        let whole = data.map(|data| frame.copy(icmp.payload_offset, data));
        if whole != Some(icmp.payload_len) {
            ctx.net.counters.malformed += 1;
            return;
        }
        let key = (ip.source, icmp.ident);
        let known = self.echoes.find(&key);
        let Some(index) = known.or_else(|| self.open_or_refuse(key, &packet, ctx)) else {
            return;
        };
        let flow = self.flow(index, ctx.net);
        ctx.net.current_flow = Some(flow);
        self.report_request(
            (index, known.is_none()),
            packet.ends(),
            (
                remote,
                Grounds {
                    rule,
                    verdict,
                    proxy: None,
                },
            ),
            (ctx.net, ctx.now),
        );
        self.requested
            .insert(flow, remote, ip.destination, requested, ctx.now);
        self.echoes.touch(index);
        let echo = self.echoes.at_mut(index);
        echo.used = ctx.now;
        echo.seq = icmp.seq;
        echo.asked = ip.destination;
        self.send_or_refuse(index, remote, &packet, icmp, ctx);
    }

    /// Sends the echo request whose data is in the buffer, or reports the failure to the guest.
    fn send_or_refuse<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        remote: IpAddr,
        packet: &Packet<'_, '_>,
        icmp: &frame::Icmp,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let ip = packet.ip;
        let sent = icmp_errors::send(
            &mut (&mut *self, &mut *ctx),
            |(own, ctx)| own.send(index, remote, ip, icmp, ctx),
            |(own, ctx)| own.report_problems(index, ctx),
        );
        let sent = sent.or_else(|unsent| self.send_in_fragments(index, remote, unsent, ip, icmp, ctx));
        match sent {
            Ok(()) => {
                ctx.net.counters.ping_up += 1;
                self.echoes.at_mut(index).traffic.up += icmp.payload_len as u64;
            }
            Err(unsent) => {
                ctx.net.counters.ping_failed += 1;
                if let Some(reason) = reason(unsent, ip) {
                    packet.refuse(reason, ctx);
                }
            }
        }
    }

    /// Sends an echo request in fragments, because it exceeds the path MTU (module [`crate::path_mtu`]).
    fn send_in_fragments<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        remote: IpAddr,
        unsent: SendFailure,
        ip: &frame::Ip,
        icmp: &frame::Icmp,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), SendFailure> {
        if unsent.failure != Failure::TooBig || !ip.dont_fragment {
            return Err(unsent);
        }
        let treatment = ctx.net.narrow.treat(ip.destination, ip.hop_limit, ctx.now);
        if treatment == Treatment::Refuse {
            return Err(unsent);
        }
        let ip = frame::Ip {
            dont_fragment: false,
            ..*ip
        };
        icmp_errors::send(
            &mut (&mut *self, &mut *ctx),
            |(own, ctx)| own.send(index, remote, &ip, icmp, ctx),
            |(own, ctx)| own.report_problems(index, ctx),
        )?;
        icmp_error::advise_mtu(ctx.net, ctx.link, ip.source, ip.destination, unsent.mtu);
        Ok(())
    }

    /// Returns a page of the list of flows that begins at the slot `first`, and the number of slots.
    pub(crate) fn flow_page(&self, first: u32, net: &Net, now: Instant) -> (Vec<Flow>, u32) {
        let echoes = self.echoes.part(first, SLOTS);
        let flows = echoes.map(|(index, generation, (guest, ident), echo)| Flow {
            id: net.flow(Kind::Icmp, index, generation),
            protocol: EgressProtocol::Icmp,
            guest: SocketAddr::new(*guest, *ident),
            remote: Some(SocketAddr::new(echo.asked, 0)),
            came_in: false,
            phase: match echo.answered {
                true => Phase::Open,
                false => Phase::Unanswered,
            },
            age: now.since(echo.opened),
            traffic: echo.traffic,
        });
        (flows.collect(), self.echoes.slots())
    }

    /// Handles the timer of an echo id, which closes it after `IDLE`.
    pub fn handle_timeout<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(echo) = self.echoes.get_mut(flow.index, flow.generation) else {
            return;
        };
        echo.timer.fired();
        match echo.used + IDLE {
            at if at <= ctx.now => self.remove(flow.index, CloseReason::Timeout, ctx),
            at => ctx.net.timers.arm(&mut echo.timer, flow, at),
        }
    }

    /// Closes an echo id at once, for example after its handler has panicked; returns false if there is none.
    pub fn close<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) -> bool {
        let exists = self.contains(flow);
        if exists {
            self.remove(flow.index, CloseReason::Internal, ctx);
        }
        exists
    }

    /// Closes every echo id of the guest, and its host socket.
    pub fn close_all<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        for index in self.echoes.places() {
            self.remove(index, CloseReason::GuestGone, ctx);
        }
    }

    fn remove<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        reason: CloseReason,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        self.report_closed(index, reason, ctx.net, ctx.now);
        let mut echo = self.echoes.remove(index);
        ctx.net.timers.disarm(&mut echo.timer);
        ctx.net.was_evictable();
        ctx.net.closed();
        ctx.host.close(echo.socket);
    }

    /// Returns the time at which the idlest echo id was last used.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        self.echoes.idlest().map(|index| self.echoes.at(index).used)
    }

    /// Closes the idlest echo id in favour of a new flow.
    pub(crate) fn evict<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) -> Eviction {
        let Some(idlest) = self.echoes.idlest() else {
            return Eviction::NoneLeft;
        };
        self.remove(idlest, CloseReason::Evicted, ctx);
        ctx.net.counters.ping_evicted += 1;
        Eviction::Evicted
    }

    /// Opens the host socket of a new echo id for its first request, or refuses the request.
    fn open_or_refuse<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        key: (IpAddr, u16),
        packet: &Packet<'_, '_>,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Option<u32> {
        let failure = match self.open(key, ctx) {
            Ok(index) => return Some(index),
            Err(failure) => failure,
        };
        let reason = match failure {
            Failure::Exhausted => RefusalReason::Limit,
            failure => RefusalReason::Host(failure),
        };
        ctx.net.report_refused(packet.ends(), reason, ctx.now);
        if failure == Failure::Prohibited {
            packet.refuse(Reason::Prohibited, ctx);
        }
        None
    }

    /// Opens the host socket of a new echo id. If there are too many ids or flows, the idlest is evicted.
    fn open<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        key: (IpAddr, u16),
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<u32, Failure> {
        let capacity = Capacity::new(!self.is_empty() || ctx.net.can_reclaim());
        let admission = ctx.net.admit(capacity, FlowOpener::Guest, ctx.now);
        if admission == Admission::Refused {
            return Err(Failure::Exhausted);
        }
        if self.echoes.len() >= MOST_IDS {
            self.evict(ctx);
        }
        if ctx.net.is_full() {
            let eviction = self.evict(ctx);
            if eviction == Eviction::NoneLeft {
                ctx.net.reclaim();
            }
        }
        if ctx.net.is_full() {
            // The workers together have opened more flows than the limit.
            ctx.net.counters.flows_refused += 1;
            return Err(Failure::Exhausted);
        }
        let (index, generation) = self.echoes.vacant();
        let flow = ctx.net.flow(Kind::Icmp, index, generation);
        let opened = ctx.host.ping_open(flow, key.0);
        match opened {
            Ok(_) => (),
            Err(Failure::Prohibited) => ctx.net.counters.ping_prohibited += 1,
            Err(_) => ctx.net.counters.host_exhausted += 1,
        }
        let mut echo = Echo {
            socket: opened?,
            timer: Timer::default(),
            opened: ctx.now,
            used: ctx.now,
            traffic: Traffic::default(),
            announcement: Announcement::default(),
            asked: key.0,
            answered: false,
            seq: 0,
            queued: false,
            troubled: false,
        };
        ctx.net.timers.arm(&mut echo.timer, flow, ctx.now + IDLE);
        ctx.net.opened();
        ctx.net.became_evictable();
        Ok(self.echoes.insert(key, echo))
    }

    /// Sends the echo request whose data is in the buffer from the id's host socket.
    fn send<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        remote: IpAddr,
        ip: &frame::Ip,
        icmp: &frame::Icmp,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Failure> {
        let meta = DatagramMeta {
            hop_limit: egress_check::next_hop_limit(ip.hop_limit),
            traffic_class: ip.traffic_class,
            dont_fragment: ip.dont_fragment,
        };
        let data = &self.scratch[..icmp.payload_len];
        let socket = &mut self.echoes.at_mut(index).socket;
        ctx.host.ping_send(socket, remote, meta, icmp.seq, data)
    }

    /// Returns the flow id of the echo id at slot `index`.
    fn flow(&self, index: u32, net: &Net) -> FlowId {
        net.flow(Kind::Icmp, index, self.echoes.generation(index))
    }
}

/// Returns the ICMP error that is reported to the guest for a request that was not sent; `None` if the request is
/// dropped silently.
fn reason(unsent: SendFailure, ip: &frame::Ip) -> Option<Reason> {
    match unsent.failure {
        Failure::NetUnreachable => Some(Reason::NetUnreachable),
        Failure::HostUnreachable => Some(Reason::HostUnreachable),
        Failure::Prohibited => Some(Reason::Prohibited),
        Failure::TooBig if ip.dont_fragment => unsent.mtu.map(|mtu| Reason::TooBig { mtu }),
        Failure::TooBig
        | Failure::WouldBlock
        | Failure::Refused
        | Failure::Reset
        | Failure::TimedOut
        | Failure::Exhausted
        | Failure::InUse
        | Failure::Invalid
        | Failure::Other(_) => None,
    }
}

/// Time after the last use until an echo id is closed (RFC 5508 REQ-2: not below 60 s).
const IDLE: Duration = Duration::from_secs(60);

/// Maximum number of echo ids: a fourth of the ids that the host's kernel has for the ping sockets of all programs and
/// both families. One worker owns all echo ids of the guest.
const MOST_IDS: usize = 1 << 14;

/// Length of an echo message's header in bytes: type, code, checksum, id, sequence number.
const HEADER: usize = 8;

/// Size of the data buffer in bytes, larger than the data of any echo message.
const SCRATCH: usize = 65_536;
