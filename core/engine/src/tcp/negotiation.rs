//! Opens connections through the upstream proxy: the handshake with the proxy precedes the answer to the guest's SYN.
//!
//! The answers of the proxy are peeked, and exactly their octets are discarded: those behind the last answer belong to the
//! connection. The connect timeout applies to the connect and the handshake together.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::sync::Arc;

use pontoon_names::HostName;
use pontoon_proxy::{Handshake, Progress, Refusal, Target};
use vm_memory::VolatileSlice;

use super::Tcp;
use super::connection::ConnectionKey;
use super::decided::HostTarget;
use super::open::is_to_forwarder;
use crate::ctx::{Ctx, Net};
use crate::flow_events::CloseReason;
use crate::host::Connect;
use crate::proxy::{ProxiedConnection, Proxy};
use crate::state::{Reader, StateError, Writer, check};
use crate::{Failure, FlowId, Host, Instant, Transmit};

/// Time for the connect to the proxy and the handshake with it if `--connect-timeout` is not given: less than the 127 s
/// after which Linux abandons the guest's own connect.
pub(super) const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(120);

/// Size of the buffer for the proxy's answers in bytes.
const BUFFER: usize = 2048;

/// Maximum number of octets of requests in a state; each of the three has less than 2 KiB.
const MOST_UNSENT: usize = 3 * 2048;

/// The handshake with the upstream proxy about a connection of the guest.
#[derive(Debug)]
pub(super) struct Negotiation {
    proxy: Arc<Proxy>,
    /// The destination that the proxy receives.
    target: Target,
    /// Index of the proxy's address to which the next connect leads.
    next: usize,
    handshake: Handshake,
    /// The answers that the handshake has read, less than 32 KiB.
    answers: Vec<u8>,
    /// Requests that the host socket has not accepted yet.
    unsent: Vec<u8>,
    /// True if the host socket is connected to the proxy.
    pub(super) is_connected: bool,
    /// True if the proxy has established the connection.
    is_established: bool,
}

/// State of a handshake after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
enum Negotiated {
    /// The proxy has established the connection, and all requests are sent.
    Yes,
    /// An event continues the handshake.
    NotYet,
}

impl Negotiation {
    /// Returns the host's side of a connection that the policy and the decider permit, and the handshake if it is opened
    /// through the proxy. A redirected connection is not.
    pub(super) fn begin(
        key: &ConnectionKey,
        target: HostTarget,
        now: Instant,
        net: &Net,
    ) -> (HostTarget, Option<Self>) {
        let proxied = match target {
            HostTarget::Destination(to) if !is_to_forwarder(key, net) => {
                net.policy.proxied(key.remote, to, now)
            }
            _ => None,
        };
        let Some(ProxiedConnection { proxy, target: to }) = proxied else {
            return (target, None);
        };
        let first = proxy.addresses.first().copied();
        let negotiation = Self {
            handshake: proxy.handshake(&to),
            proxy,
            target: to,
            next: 0,
            answers: Vec::new(),
            unsent: Vec::new(),
            is_connected: false,
            is_established: false,
        };
        (first.map_or(target, HostTarget::Proxy), Some(negotiation))
    }

    /// Returns true if the proxy has an address to which no connect has led.
    pub(super) fn has_next(&self) -> bool {
        self.next < self.proxy.addresses.len()
    }

    /// Connects to the next addresses of the proxy until a connect does not fail at once.
    pub(super) fn connect<H: Host>(
        &mut self,
        flow: FlowId,
        host: &mut H,
    ) -> Result<(H::Socket, Connect), Failure> {
        let mut result = Err(Failure::Invalid);
        while let (Err(failure), Some(&to)) = (&result, self.proxy.addresses.get(self.next)) {
            if *failure == Failure::Exhausted {
                break;
            }
            self.next += 1;
            result = host.tcp_connect(flow, to);
        }
        result
    }

    /// Continues the handshake as far as the host socket permits.
    fn proceed<H: Host>(
        &mut self,
        socket: &mut H::Socket,
        host: &mut H,
        has_error: bool,
    ) -> Result<Negotiated, CloseReason> {
        loop {
            self.send(socket, host).map_err(CloseReason::ProxyFailed)?;
            if self.is_established {
                return Ok(match self.unsent.is_empty() {
                    true => Negotiated::Yes,
                    false => Negotiated::NotYet,
                });
            }
            let mut buffer = [0; BUFFER];
            let len = match host.tcp_peek(socket, 0, &[VolatileSlice::from(&mut buffer[..])]) {
                Ok(0) => return Err(CloseReason::ProxyRefused(Refusal::Closed)),
                Ok(len) => len,
                Err(Failure::WouldBlock) => {
                    // Behind all data, the event's error is pending.
                    let error = if has_error { host.tcp_error(socket) } else { None };
                    return error.map_or(Ok(Negotiated::NotYet), |it| Err(CloseReason::ProxyFailed(it)));
                }
                Err(failure) => return Err(CloseReason::ProxyFailed(failure)),
            };
            let consumed = match self.handshake.read(&buffer[..len]) {
                Progress::NeedMore => len,
                Progress::Done { consumed } => {
                    self.is_established = true;
                    consumed
                }
                Progress::Refused(refusal) => return Err(CloseReason::ProxyRefused(refusal)),
            };
            self.answers.extend_from_slice(&buffer[..consumed]);
            if let Ok(consumed @ 1..) = u32::try_from(consumed) {
                let discarded = host.tcp_discard(socket, consumed);
                discarded.map_err(CloseReason::ProxyFailed)?;
            }
        }
    }

    /// Sends the requests that are due, as far as the host socket accepts them.
    fn send<H: Host>(&mut self, socket: &mut H::Socket, host: &mut H) -> Result<(), Failure> {
        self.unsent
            .extend(self.handshake.take_request().into_iter().flatten());
        while !self.unsent.is_empty() {
            match host.tcp_send(socket, &[VolatileSlice::from(&mut self.unsent[..])]) {
                Ok(len) => drop(self.unsent.drain(..len)),
                Err(Failure::WouldBlock) => return Ok(()),
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }
}

/// The record contains the proxy's answers in place of the handshake, which reads them again. The proxy is that of the
/// configuration.
impl Negotiation {
    pub(super) fn save(&self, to: &mut Writer<'_>) {
        let Self {
            proxy: _,
            target,
            next,
            handshake: _,
            answers,
            unsent,
            is_connected,
            is_established,
        } = self;
        match &target.host {
            pontoon_proxy::Host::Address(address) => to.put(&Some(*address)),
            pontoon_proxy::Host::Name(name) => {
                to.put(&None::<IpAddr>);
                to.put(&name.as_str().as_bytes().to_vec());
            }
        }
        to.put(&target.port);
        to.put(next);
        to.put(answers);
        to.put(unsent);
        to.put(is_connected);
        to.put(is_established);
    }

    pub(super) fn load(from: &mut Reader<'_>, proxy: Arc<Proxy>) -> Result<Self, StateError> {
        let host = match from.get::<Option<IpAddr>>()? {
            Some(address) => pontoon_proxy::Host::Address(address),
            None => {
                let name = HostName::from_octets(&from.get::<Vec<u8>>()?);
                pontoon_proxy::Host::Name(name.map_err(|_| StateError::Malformed)?)
            }
        };
        let target = Target {
            host,
            port: from.get()?,
        };
        let mut negotiation = Self {
            handshake: proxy.handshake(&target),
            target,
            next: from.get()?,
            answers: from.get()?,
            unsent: from.get()?,
            is_connected: from.get()?,
            is_established: from.get()?,
            proxy,
        };
        check(negotiation.unsent.len() <= MOST_UNSENT && negotiation.answers.len() <= 2 * pontoon_proxy::LIMIT)?;
        if negotiation.is_connected {
            // These requests are in `unsent`, or were sent.
            negotiation.handshake.take_request();
            let progress = negotiation.handshake.read(&negotiation.answers);
            negotiation.handshake.take_request();
            check(match progress {
                Progress::NeedMore => !negotiation.is_established,
                Progress::Done { consumed } => {
                    negotiation.is_established && consumed == negotiation.answers.len()
                }
                Progress::Refused(_) => false,
            })?;
        }
        Ok(negotiation)
    }

    /// Returns the addresses of the proxy.
    pub(super) fn proxy_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.proxy.addresses.iter().copied()
    }
}

impl<S> Tcp<S> {
    /// Returns the reason for a connection whose host socket has failed before the guest's SYN was answered.
    pub(super) fn open_failed(&self, index: u32, failure: Failure) -> CloseReason {
        match self.negotiations.contains_key(&index) {
            true => CloseReason::ProxyFailed(failure),
            false => CloseReason::ConnectFailed(failure),
        }
    }

    /// Continues the handshake with the proxy, and answers the guest's SYN at its end.
    pub(super) fn negotiate<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        index: u32,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let id = self.id(index, ctx.net);
        ctx.net.current_flow = Some(id);
        let connection = self.connections.at_mut(index);
        let negotiation = self.negotiations.get_mut(&index);
        let (Some(socket), Some(negotiation)) = (&mut connection.socket, negotiation) else {
            return;
        };
        match negotiation.proceed(socket, ctx.host, connection.pending.error) {
            Ok(Negotiated::NotYet) => self.flush(index, &[], ctx),
            Ok(Negotiated::Yes) => {
                ctx.net.counters.proxy_opened += 1;
                self.negotiations.remove(&index);
                // Octets behind the answer may be in the receive queue, and no further event reports them.
                connection.pending.readable = true;
                self.answer_syn(index, ctx);
            }
            Err(reason) => self.refuse(index, reason, ctx),
        }
    }
}
