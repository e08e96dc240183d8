//! Proof of the name to which a connection of the guest leads, if only rules with `/tls` or `/tls-strict` permit it.
//!
//! The guest's data is held until it contains a ClientHello that names the domain of such a rule. Nothing is sent to the
//! remote host before, and nothing that the remote host sends, its FIN included, is sent to the guest. The data is checked in
//! the engine's copy, which is then sent, so that the guest cannot change it after the check. Without the proof, both sides
//! are reset.

use core::time::Duration;

use pontoon_names::HostName;
use pontoon_names::client_hello::{self, ClientHello, ClientHelloReader};
use vm_memory::VolatileSlice;

use super::Ended;
use super::connection::{Connection, TcpState};
use super::events;
use crate::ctx::{Ctx, Net};
use crate::egress::{Unproven, UnprovenCause};
use crate::flow_events::CloseReason;
use crate::pool::Pool;
use crate::state::{Reader, Record, StateError, Writer, check, record_enum};
use crate::{Failure, FlowId, Host, Instant, Transmit};

/// Time for the ClientHello, from the end of the handshake with the guest.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum number of connections of a worker whose proof is pending.
const MOST: u32 = 1_024;

/// Receive window of a connection whose proof is pending: the longest ClientHello, and a step of the window field, to a
/// multiple of which the window is rounded down.
const WINDOW: u32 = client_hello::LIMIT as u32 + 256;

/// Maximum number of held bytes in a state: those of a window before the rules required the proof, and of the window since.
const MOST_HELD: usize = (4 << 20) + WINDOW as usize;

/// State of the proof of a connection.
#[derive(Debug)]
pub(super) struct NameProof {
    stage: Stage,
    reader: ClientHelloReader,
    /// Data of the guest, and the number of its bytes that were sent to the host.
    held: Vec<u8>,
    sent: usize,
    /// The ClientHello that has proved the name.
    hello: Option<ClientHello>,
    /// Time at which the proof fails; `None` before the handshake with the guest is complete.
    until: Option<Instant>,
    /// True if the connection counts as one of [`MOST`].
    is_counted: bool,
    /// True if the host connection is opened after the proof (module [`early`](super::early)).
    precedes_connect: bool,
}

/// Progress of a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The ClientHello is not complete.
    Reading,
    /// There is no room for one more connection whose proof is pending.
    Overflowed,
    /// The rules permit the connection, and the host connection has to be opened.
    Routing,
    /// The host connection is being opened.
    Connecting {
        since: Instant,
        /// Time at which the connect is abandoned; `None` leaves the timeout to the host's kernel.
        give_up: Option<Instant>,
    },
    /// The rules permit the connection, and the held data has to be sent to the host.
    Sending,
    /// The connection is like others.
    Done,
}

record_enum! { Stage {
    0 = Reading, 1 = Overflowed, 2 = Sending, 3 = Done, 4 = Routing, 5 = Connecting { since, give_up },
} }

/// The result of advancing a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The connection must not carry data yet.
    Unproven,
    /// The connection may carry data, and all held data is sent.
    Proven,
}

impl From<Unproven> for Ended {
    fn from(why: Unproven) -> Self {
        Self::Unproven(Box::new(why))
    }
}

impl NameProof {
    /// Returns true if the connection must not carry data.
    pub(super) fn is_unproven(&self) -> bool {
        self.stage != Stage::Done
    }

    /// Returns the ClientHello that has proved the name.
    pub(super) fn hello(&self) -> Option<&ClientHello> {
        self.hello.as_ref()
    }

    /// Begins to wait for the ClientHello, because the handshake with the guest is complete.
    pub(super) fn begin(&mut self, net: &mut Net, now: Instant) {
        self.until = Some(now + PATIENCE);
        if net.proving >= MOST {
            if let Stage::Reading | Stage::Routing = self.stage {
                self.stage = Stage::Overflowed;
            }
            return;
        }
        net.proving += 1;
        self.is_counted = true;
    }

    /// Permits the connection without a proof.
    pub(super) fn waive(&mut self) {
        if self.stage == Stage::Reading {
            self.permit();
        }
    }

    /// Continues after the rules have permitted the connection.
    fn permit(&mut self) {
        self.stage = match self.precedes_connect {
            true => Stage::Routing,
            false => Stage::Sending,
        };
    }

    /// Frees the memory for the guest's data.
    pub(super) fn end(&mut self, net: &mut Net) {
        if core::mem::take(&mut self.is_counted) {
            net.proving -= 1;
        }
        self.held = Vec::new();
        self.sent = 0;
        self.reader = ClientHelloReader::new();
    }

    /// Appends data of the guest.
    fn hold(&mut self, part: VolatileSlice<'_>) {
        let begin = self.held.len();
        self.held.resize(begin + part.len(), 0);
        part.copy_to(&mut self.held[begin..]);
    }
}

impl<S> Connection<S> {
    /// Requires a proof before the connection carries data.
    pub(super) fn require_proof(&mut self) {
        let precedes_connect = self.proof.as_ref().is_some_and(|proof| proof.precedes_connect);
        self.proof = Some(Box::new(NameProof {
            stage: Stage::Reading,
            reader: ClientHelloReader::new(),
            held: Vec::new(),
            sent: 0,
            hello: None,
            until: None,
            is_counted: false,
            precedes_connect,
        }));
        self.up.want = self.up.next + WINDOW;
    }

    /// Returns true if the connection must not carry data before its proof.
    pub(super) fn is_unproven(&self) -> bool {
        self.proof.as_ref().is_some_and(|proof| proof.is_unproven())
    }

    /// Opens the host connection after the proof that the connection requires.
    pub(super) fn precede_connect(&mut self) {
        if let Some(proof) = &mut self.proof {
            proof.precedes_connect = true;
        }
    }

    /// Returns true if the connection has to prove a name and has not.
    pub(super) fn awaits_hello(&self) -> bool {
        let proof = self.proof.as_ref();
        proof.is_some_and(|proof| matches!(proof.stage, Stage::Reading | Stage::Overflowed))
    }

    /// Returns true if the host connection has to be opened now, after an early accept.
    pub(super) fn awaits_connect(&self) -> bool {
        let proof = self.proof.as_ref();
        self.state == TcpState::Open && proof.is_some_and(|proof| proof.stage == Stage::Routing)
    }

    /// Returns the name that the connection has proved.
    pub(super) fn proven_name(&self) -> Option<&HostName> {
        let hello = self.proof.as_ref()?.hello.as_ref();
        hello.map(|hello| &hello.name)
    }

    /// Begins to open the host connection after an early accept.
    pub(super) fn begin_connect(&mut self, since: Instant, give_up: Option<Instant>) {
        if let Some(proof) = &mut self.proof {
            proof.stage = Stage::Connecting { since, give_up };
        }
    }

    /// Returns true if the SYN was answered and the host connection has still to be opened, so that there is no host socket.
    pub(super) fn precedes_socket(&self) -> bool {
        let proof = self.proof.as_ref();
        proof.is_some_and(|proof| {
            proof.precedes_connect
                && matches!(proof.stage, Stage::Reading | Stage::Overflowed | Stage::Routing)
        })
    }

    /// Returns true if the host connection is being opened after an early accept.
    pub(super) fn connects_after_accept(&self) -> bool {
        let proof = self.proof.as_ref();
        proof.is_some_and(|proof| matches!(proof.stage, Stage::Connecting { .. }))
    }

    /// Permits the data of a connection whose host connection was opened after an early accept.
    pub(super) fn end_connect(&mut self) {
        if let Some(proof) = &mut self.proof {
            proof.stage = Stage::Sending;
        }
    }

    /// Returns the time at which the host connection began to be opened.
    pub(super) fn connect_began(&self) -> Instant {
        match self.proof.as_ref().map(|proof| proof.stage) {
            Some(Stage::Connecting { since, .. }) => since,
            _ => self.opened,
        }
    }

    /// Returns the time at which a pending proof fails, or the connect after it.
    pub(super) fn proof_deadline(&self) -> Option<Instant> {
        let proof = self.proof.as_ref()?;
        match proof.stage {
            Stage::Reading => proof.until.filter(|_| self.state == TcpState::Open),
            Stage::Connecting { give_up, .. } => give_up,
            Stage::Overflowed | Stage::Routing | Stage::Sending | Stage::Done => None,
        }
    }

    /// Returns true if a pending proof, or the connect after it, has failed because of its deadline.
    pub(super) fn is_proof_late(&self, now: Instant) -> bool {
        self.proof_deadline().is_some_and(|at| now >= at)
    }

    /// Holds the guest's data of the burst `parts` until the connection has proved a name, and then sends it to the host.
    ///
    /// # Errors
    /// The connection cannot prove a name any more, or the host socket has failed.
    pub(super) fn prove<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        id: FlowId,
        parts: &[VolatileSlice<'_>],
        ctx: &mut Ctx<'_, H, T>,
    ) -> Result<Progress, Ended> {
        let begin = match self.proof.as_ref() {
            Some(proof) if proof.is_unproven() => proof.held.len(),
            Some(_) | None => return Ok(Progress::Proven),
        };
        self.hold(parts, &mut ctx.net.pool);
        let Some(proof) = &mut self.proof else {
            return Ok(Progress::Proven);
        };
        match proof.stage {
            Stage::Done => return Ok(Progress::Proven),
            Stage::Sending => {}
            Stage::Routing | Stage::Connecting { .. } => return Ok(Progress::Unproven),
            Stage::Overflowed => return Err(Unproven::TooMany.into()),
            Stage::Reading => {
                let hello = match proof.reader.push(&proof.held[begin..]) {
                    client_hello::Progress::NeedMore if self.up.fin == Some(self.up.next) => {
                        return Err(Unproven::Ended.into());
                    }
                    client_hello::Progress::NeedMore => return Ok(Progress::Unproven),
                    client_hello::Progress::Failed(why) => return Err(Unproven::Hello(why).into()),
                    client_hello::Progress::Name(hello) => hello,
                };
                let ground = ctx.net.policy.prove(self.key.remote, &hello, self.opened)?;
                ctx.net.counters.tls_proven += 1;
                let ends = events::ends(&self.key, false);
                ctx.net
                    .report_proof(id, ends, (Ok(()), Some(ground)), Some(&hello.name), ctx.now);
                proof.hello = Some(hello);
                proof.permit();
                if proof.stage == Stage::Routing {
                    return Ok(Progress::Unproven);
                }
            }
        }
        self.send_held(ctx)
    }

    /// Copies the guest's data of the burst `parts`, and data from the reorder buffer that follows it.
    fn hold(&mut self, parts: &[VolatileSlice<'_>], pool: &mut Pool) {
        let Some(proof) = &mut self.proof else { return };
        let up = &mut self.up;
        if core::mem::take(&mut up.gathered) > 0 {
            parts.iter().for_each(|part| proof.hold(*part));
        }
        up.reorder.advance(up.next, pool);
        while let Some(front) = up.reorder.front(up.next, pool) {
            proof.hold(front);
            up.next += u32::try_from(front.len()).expect("at most a block");
            up.reorder.advance(up.next, pool);
            self.pending.ack = true;
        }
    }

    /// Sends the held data to the host.
    fn send_held<H: Host<Socket = S>, T>(&mut self, ctx: &mut Ctx<'_, H, T>) -> Result<Progress, Ended> {
        let (Some(proof), Some(socket)) = (&mut self.proof, &mut self.socket) else {
            return Ok(Progress::Unproven);
        };
        while proof.sent < proof.held.len() {
            let rest = [VolatileSlice::from(&mut proof.held[proof.sent..])];
            match ctx.host.tcp_send(socket, &rest) {
                Ok(sent) => proof.sent += sent,
                // The host reports room for more by an event.
                Err(Failure::WouldBlock) => return Ok(Progress::Unproven),
                Err(failure) => return Err(Ended::Failed(failure)),
            }
        }
        proof.end(ctx.net);
        proof.stage = Stage::Done;
        if proof.hello.is_none() {
            self.proof = None;
        }
        Ok(Progress::Proven)
    }

    /// Resets the connection of the host socket, because it has not proved a name, and counts and reports that.
    pub(super) fn refuse_unproven<H: Host<Socket = S>, T>(
        &mut self,
        id: FlowId,
        socket: Option<S>,
        why: &Unproven,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        if let Some(socket) = socket {
            ctx.host.abort(socket);
        }
        let net = &mut *ctx.net;
        let ground = net
            .policy
            .refuse_unproven(self.key.remote, why, self.opened, ctx.now);
        let cause = why.cause();
        net.counters.policy_refused += 1;
        *match cause {
            UnprovenCause::NotTls => &mut net.counters.tls_refused_not_tls,
            UnprovenCause::Malformed => &mut net.counters.tls_refused_malformed,
            UnprovenCause::TooLong => &mut net.counters.tls_refused_too_long,
            UnprovenCause::NoName => &mut net.counters.tls_refused_no_name,
            UnprovenCause::OtherName => &mut net.counters.tls_refused_other_name,
            UnprovenCause::Ech => &mut net.counters.tls_refused_ech,
            UnprovenCause::Timeout => &mut net.counters.tls_refused_timeout,
            UnprovenCause::Ended => &mut net.counters.tls_refused_ended,
            UnprovenCause::Limit => &mut net.counters.tls_refused_limit,
        } += 1;
        let ends = events::ends(&self.key, false);
        net.report_proof(id, ends, (Err(cause), ground), why.name(), ctx.now);
        self.ends_by(CloseReason::Unproven);
    }
}

/// The reader is not a part of the record, because it has read `held` and nothing else.
impl Record for NameProof {
    fn save(&self, to: &mut Writer<'_>) {
        let Self {
            stage,
            reader: _,
            held,
            sent,
            hello,
            until,
            is_counted,
            precedes_connect,
        } = self;
        to.put(stage);
        to.put(held);
        to.put(sent);
        to.put(&hello.is_some());
        if let Some(ClientHello { name, ech }) = hello {
            to.put(&name.as_str().as_bytes().to_vec());
            to.put(ech);
        }
        to.put(until);
        to.put(is_counted);
        to.put(precedes_connect);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let (stage, held): (_, Vec<u8>) = from.get()?;
        let sent = from.get()?;
        let hello = match from.get()? {
            true => Some(ClientHello {
                name: HostName::from_octets(&from.get::<Vec<u8>>()?).map_err(|_| StateError::Malformed)?,
                ech: from.get()?,
            }),
            false => None,
        };
        let mut reader = ClientHelloReader::new();
        check(stage != Stage::Reading || reader.push(&held) == client_hello::Progress::NeedMore)?;
        // The data is limited by the receive window, and what the reorder buffer holds.
        if sent > held.len() || held.len() > MOST_HELD {
            return Err(StateError::Limit);
        }
        Ok(Self {
            stage,
            reader,
            held,
            sent,
            hello,
            until: from.get()?,
            is_counted: from.get()?,
            precedes_connect: from.get()?,
        })
    }
}

impl NameProof {
    /// Returns true if the proof counts as one of [`MOST`] pending ones.
    pub(super) const fn is_counted(&self) -> bool {
        self.is_counted
    }
}
