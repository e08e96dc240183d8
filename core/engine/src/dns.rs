//! The DNS forwarder over UDP: forwards queries of the guest to the host's resolvers.
//!
//! Messages with an opcode other than QUERY are not forwarded: a resolver might permit to the host, for example an
//! UPDATE, what it would not permit to the guest.
//!
//! Each query has its own host socket, connected to the resolver: port and id are new for each query, and the host's
//! kernel drops datagrams of other senders. A response is accepted if it also has the query's id and question (RFC 5452
//! section 9.1). Equal queries of several clients are sent once, because each further query in flight would increase
//! the chance of a forged response (RFC 5452 section 5). If a resolver does not respond within a second, the query is
//! sent to the next one, and for half a minute the silent resolver is not the first one that is queried.
//!
//! If a resolver responds with an error (SERVFAIL, NOTIMP, REFUSED), each of the other resolvers is queried once, as a
//! stub resolver does, before the error is forwarded to the guest. Other queries are not affected.
//!
//! Responses wait in their sockets while `--max-bandwidth` permits no data for the guest, and are then sent before the
//! data of other flows, but take at most half of the bandwidth from them. A response that still waits at the query's
//! timeout is sent then instead of SERVFAIL, unless DNS has used its half.
//!
//! The number of pending queries is limited. Beyond the limit new queries are dropped, and the guest retransmits them.
//!
//! DNS over TCP is a TCP flow to [`Forwarder::current_resolver`], which is reset at the first message that is not a
//! query.

mod clients;
mod message;
mod proxied;
mod resolvers;
mod responses;
mod state;
pub(crate) mod stream;

use core::net::SocketAddr;
use core::time::Duration;

use hashbrown::HashTable;
use pontoon_wire::frame;
use pontoon_wire::vnet::Segmentation;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::RngCore;
use vm_memory::VolatileSlice;

use self::clients::{Client, Clients};
use self::message::Query;
use self::resolvers::Resolvers;
use self::responses::reply;
use crate::ctx::Ctx;
use crate::host::DatagramMeta;
use crate::slab::Slab;
use crate::table::Secret;
use crate::timer::Timer;
use crate::{Failure, FlowId, Frame, Host, Instant, Kind, Transmit, udp_emit};
use crate::state::flow_record;

/// DNS forwarder of one worker. `S` is the type of a host socket.
#[derive(Debug)]
pub struct Forwarder<S> {
    resolvers: Resolvers,
    pending: Slab<PendingQuery<S>>,
    /// Slots of the pending queries by question. Queries with the same question differ in flags, EDNS options or other
    /// records.
    by_question: HashTable<u32>,
    /// Total number of clients that wait for responses.
    clients: usize,
    secret: Secret,
    /// Buffer for one datagram, shared by all queries.
    buffer: Box<[u8]>,
}

/// A query that was sent to a resolver and waits for a response.
#[derive(Debug)]
struct PendingQuery<S> {
    flow: FlowId,
    clients: Clients,
    /// The DNS query as the first client has sent it.
    query: Query,
    /// The resolver to which the query was sent last.
    resolver: Option<SocketAddr>,
    /// Resolvers to which the query was sent before.
    before: Vec<SocketAddr>,
    /// The first error response, which is forwarded to the clients if no resolver responds without error.
    declined: Option<Vec<u8>>,
    /// Host socket connected to `resolver`.
    socket: Option<S>,
    /// Id of the query to the resolver.
    id: u16,
    /// Time at which the first client's query was received.
    began: Instant,
    /// Time at which the query was sent to `resolver`.
    sent: Instant,
    /// Number of resolvers that could not be reached.
    refusals: usize,
    /// True if the socket was not read, because `--max-bandwidth` permits no data for the guest. The response may be in
    /// the socket.
    held_back: bool,
    /// True if the flow is in `Net::ready` or `Net::parked_first`.
    queued: bool,
    timer: Timer,
}

flow_record! { PendingQuery {
    flow, clients, query, resolver, before, declined, id, began, sent, refusals, held_back, queued,
} sockets { socket: Option<S> } elsewhere { timer = Timer::default() } }

impl<S> PendingQuery<S> {
    /// Returns the time at which the next resolver is queried or, at the end of [`GIVE_UP`], the query fails.
    fn deadline(&self) -> Instant {
        (self.sent + SILENCE).min(self.began + GIVE_UP)
    }

    /// Returns true if the timeout of the query has expired: no other resolver is queried.
    fn is_given_up(&self, now: Instant) -> bool {
        now >= self.began + GIVE_UP
    }
}

impl<S> Forwarder<S> {
    /// Creates a forwarder to `resolvers`, which are in order of preference.
    #[must_use]
    pub fn new(resolvers: &[SocketAddr], random: &mut ChaCha12Rng) -> Self {
        Self {
            resolvers: Resolvers::new(resolvers),
            pending: Slab::default(),
            by_question: HashTable::new(),
            clients: 0,
            secret: Secret::new(random),
            buffer: vec![0; BUFFER].into(),
        }
    }

    /// Replaces the resolvers. Pending queries still wait for the resolvers to which they were sent.
    pub fn set_resolvers(&mut self, resolvers: &[SocketAddr]) {
        self.resolvers.set(resolvers);
    }

    /// Returns the resolver that is queried first now, of either address family; `None` if there is no resolver.
    #[must_use]
    pub fn current_resolver(&self, now: Instant) -> Option<SocketAddr> {
        self.resolvers.first(now)
    }

    /// Returns the number of pending queries.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns true if the query `flow` is pending.
    pub(crate) fn contains(&self, flow: FlowId) -> bool {
        self.pending.get(flow.index, flow.generation).is_some()
    }

    /// Handles a UDP datagram from the guest, or a super-frame of several, to port 53 of the forwarder's address.
    pub fn handle_query<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        frame: &Frame<'_>,
        ip: &frame::Ip,
        udp: &frame::Udp,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let guest = SocketAddr::new(ip.source, udp.source_port);
        let asked = SocketAddr::new(ip.destination, udp.destination_port);
        let stride = match frame.offload.segmentation {
            Segmentation::Udp { len } => usize::from(len).max(1),
            Segmentation::Whole | Segmentation::Tcp4 { .. } | Segmentation::Tcp6 { .. } => {
                udp.payload_len.max(1)
            }
        };
        for at in (0..udp.payload_len).step_by(stride) {
            let len = stride.min(udp.payload_len - at).min(BUFFER);
            let len = frame.copy(udp.payload_offset + at, &mut self.buffer[..len]);
            self.take(guest, asked, len, ctx);
        }
    }

    /// Handles the expiry of a query's timer.
    pub fn handle_timeout<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        flow: FlowId,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Some(pending) = self.pending.get_mut(flow.index, flow.generation) else {
            return;
        };
        pending.timer.fired();
        let deadline = pending.deadline();
        if ctx.now < deadline {
            ctx.net.timers.arm(&mut pending.timer, flow, deadline);
        } else if pending.is_given_up(ctx.now) {
            self.give_up(flow, ctx);
        } else if pending.held_back {
            // The response may be in the socket already.
            let next = (ctx.now + SILENCE).min(pending.began + GIVE_UP);
            ctx.net.timers.arm(&mut pending.timer, flow, next);
        } else {
            if let Some(resolver) = pending.resolver {
                self.resolvers.silent(resolver, pending.sent, ctx.now);
            }
            self.ask_another(flow.index, ctx);
        }
    }

    /// Drops all pending queries, and closes their sockets.
    pub fn close_all<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        let waiting: Vec<u32> = self.pending.iter().map(|(index, ..)| index).collect();
        for index in waiting {
            self.remove(index, ctx);
        }
    }

    /// Handles the client's query in the first `len` bytes of the buffer.
    fn take<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        guest: SocketAddr,
        asked: SocketAddr,
        len: usize,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let datagram = &self.buffer[..len];
        if let Some(answer) = message::not_implemented(datagram) {
            ctx.net.counters.dns_unsupported += 1;
            if ctx.net.admits_answer() {
                emit(ctx, asked, guest, &answer);
            }
            return;
        }
        let Some(query) = Query::parse(datagram) else {
            ctx.net.counters.malformed += 1;
            return;
        };
        if query.is_cut() {
            // The query fits into DNS over TCP (RFC 1035 section 4.2.1).
            ctx.net.counters.dns_queries += 1;
            if ctx.net.admits_answer() {
                emit(ctx, asked, guest, &query.truncated());
            }
            return;
        }
        if let Some(answer) = proxied::answer(&query, ctx.net, ctx.now) {
            ctx.net.counters.dns_queries += 1;
            ctx.net.counters.dns_proxied += 1;
            ctx.net.policy.learn(&answer, ctx.now);
            if ctx.net.admits_answer() {
                emit(ctx, asked, guest, &answer);
            }
            return;
        }
        // Each query uses a host port and a flow; most of both are reserved for the guest.
        let config = &ctx.net.config;
        let most = config.max_udp_ports.min((config.max_flows / 4).max(1));
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let client = Client::new(guest, asked, &query);
        let hash = self.secret.hash(&query);
        let mut forms = 0;
        for &index in self.by_question.iter_hash(hash) {
            let pending = self.pending.at_mut(index);
            if pending.query.shares_answers_with(&query) {
                if pending.clients.iter().any(|known| *known == client) {
                    return;
                }
                if self.clients >= LIMIT || pending.clients.is_full() {
                    ctx.net.counters.dns_dropped += 1;
                    return;
                }
                pending.clients.add(client);
                self.clients += 1;
                ctx.net.counters.dns_queries += 1;
                return;
            }
            forms += usize::from(pending.query.has_question_of(&query));
        }
        if self.clients == LIMIT || forms == FORMS || self.pending.len() >= most {
            ctx.net.counters.dns_dropped += 1;
            return;
        }
        ctx.net.counters.dns_queries += 1;
        self.begin(client, query, hash, ctx);
    }

    /// Sends a client's query for which no equal query is pending.
    fn begin<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        client: Client,
        query: Query,
        hash: u64,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let (index, _) = self.pending.insert_with(|index, generation| PendingQuery {
            flow: ctx.net.flow(Kind::Dns, index, generation),
            clients: Clients::new(client),
            query,
            resolver: None,
            before: Vec::new(),
            declined: None,
            socket: None,
            id: 0,
            began: ctx.now,
            sent: ctx.now,
            refusals: 0,
            held_back: false,
            queued: false,
            timer: Timer::default(),
        });
        self.clients += 1;
        ctx.net.opened();
        self.by_question.insert_unique(hash, index, |index| {
            self.secret.hash(&self.pending.at(*index).query)
        });
        self.pursue(index, self.resolvers.first(ctx.now), ctx);
    }

    /// Sends the query to `resolver`, or to the next resolver for which sending succeeds. If there is none, the query
    /// fails.
    fn pursue<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        resolver: Option<SocketAddr>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        ctx.net.current_flow = Some(self.pending.at(index).flow);
        let Some(resolver) = resolver else {
            self.fail(index, ctx);
            return;
        };
        match self.ask(index, resolver, ctx) {
            // A datagram that the full socket did not accept counts as lost; the timer retransmits it.
            Ok(()) | Err(Failure::WouldBlock) => {}
            Err(Failure::Exhausted) => {
                ctx.net.counters.host_exhausted += 1;
                if self.pending.at(index).declined.is_some() {
                    self.fail(index, ctx);
                } else {
                    self.remove(index, ctx);
                }
            }
            Err(_) => self.refused(index, ctx),
        }
    }

    /// Sends the query to `resolver`, from the same socket if the query was sent to that resolver before.
    fn ask<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        resolver: SocketAddr,
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<(), Failure> {
        let pending = self.pending.at_mut(index);
        pending.sent = ctx.now;
        let deadline = pending.deadline();
        ctx.net.timers.arm(&mut pending.timer, pending.flow, deadline);
        if pending.resolver != Some(resolver) {
            if let Some(former) = pending.resolver.replace(resolver) {
                ctx.net.counters.dns_failovers += 1;
                if !pending.before.contains(&former) {
                    pending.before.push(former);
                }
            }
            if let Some(socket) = pending.socket.take() {
                ctx.host.close(socket);
            }
        }
        let socket = match &mut pending.socket {
            Some(socket) => socket,
            none => {
                pending.id = fresh_id(&mut ctx.net.random);
                let socket = none.insert(ctx.host.udp_open(pending.flow, resolver.ip())?);
                ctx.host.udp_connect(socket, Some(resolver))?;
                socket
            }
        };
        let mut id = pending.id.to_be_bytes();
        let parts = [
            VolatileSlice::from(&mut id[..]),
            VolatileSlice::from(pending.query.after_id()),
        ];
        ctx.host.udp_send(socket, None, None, META, None, &parts)
    }

    /// Sends the query to the next resolver at once, because this one cannot be reached. If no resolver can be reached,
    /// the query fails.
    fn refused<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let pending = self.pending.at_mut(index);
        pending.refusals += 1;
        if let Some(resolver) = pending.resolver {
            self.resolvers.refused(resolver, ctx.now);
        }
        if pending.declined.is_none() && pending.refusals >= self.resolvers.len() {
            self.fail(index, ctx);
        } else {
            self.ask_another(index, ctx);
        }
    }

    /// Sends the query to the next resolver; after an error response, to one that was not queried before. If there is
    /// none, the error response is forwarded.
    fn ask_another<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let pending = self.pending.at(index);
        let another = match pending.declined {
            Some(_) => self.resolvers.untried(pending.resolver, &pending.before, ctx.now),
            None => self.resolvers.after(pending.resolver, ctx.now),
        };
        self.pursue(index, another, ctx);
    }

    /// Ends a query: sends the stored error response to the clients, or SERVFAIL if there is none.
    fn fail<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let pending = self.pending.at_mut(index);
        if let Some(mut answer) = pending.declined.take() {
            ctx.net.policy.learn(&answer, ctx.now);
            reply(pending, &mut answer, ctx);
        } else {
            ctx.net.counters.dns_failed += pending.clients.len() as u64;
            if ctx.net.admits_answer() {
                reply(pending, &mut pending.query.server_failure(), ctx);
            }
        }
        self.remove(index, ctx);
    }

    /// Closes a query without a response, for example after its handler has panicked. The guest retransmits the query.
    pub fn close<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if self.pending.get(flow.index, flow.generation).is_some() {
            self.remove(flow.index, ctx);
        }
    }

    fn remove<H: Host<Socket = S>, T: Transmit>(&mut self, index: u32, ctx: &mut Ctx<'_, H, T>) {
        let mut pending = self.pending.remove(index);
        ctx.net.closed();
        ctx.net.timers.disarm(&mut pending.timer);
        if let Some(socket) = pending.socket.take() {
            ctx.host.close(socket);
        }
        self.clients -= pending.clients.len();
        let hash = self.secret.hash(&pending.query);
        if let Ok(entry) = self.by_question.find_entry(hash, |other| *other == index) {
            entry.remove();
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "any 16 bits will do")]
fn fresh_id(random: &mut ChaCha12Rng) -> u16 {
    random.next_u32() as u16
}

fn emit<H, T: Transmit>(ctx: &mut Ctx<'_, H, T>, asked: SocketAddr, guest: SocketAddr, message: &[u8]) {
    udp_emit::datagram(ctx.net, ctx.link, asked, guest, META, message);
}

/// Time without a response after which the query is sent to the next resolver.
const SILENCE: Duration = Duration::from_secs(1);

/// Time without a response after which SERVFAIL is sent to the guest: the default timeout of a stub resolver.
const GIVE_UP: Duration = Duration::from_secs(5);

/// Maximum number of waiting clients, and therefore of queries, each of which holds a descriptor.
const LIMIT: usize = 4_096;

/// Maximum number of pending queries with the same question but different flags, EDNS options or records; each further
/// query increases the chance of a forged response.
const FORMS: usize = 32;

/// Size of the datagram buffer in bytes: the maximum of a datagram, whatever the guest's EDNS size (RFC 6891 section
/// 6.2.3).
const BUFFER: usize = 65_535;

const META: DatagramMeta = DatagramMeta {
    hop_limit: 64,
    traffic_class: 0,
    dont_fragment: false,
};

#[cfg(test)]
mod tests;
