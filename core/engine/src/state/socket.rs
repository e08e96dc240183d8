//! The host sockets of a state: their descriptions, and their adoption by a new engine.

use core::net::SocketAddr;

use thiserror::Error;

use super::{StateError, check};
use crate::FlowId;

/// Host socket of a flow in a state.
#[derive(Debug)]
pub struct SavedSocket<'a, S> {
    /// The socket, which still belongs to the engine.
    pub socket: &'a S,
    /// Description of the socket.
    pub description: SocketDescription,
}

/// Properties that a host socket of a flow has to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketDescription {
    /// The flow for whose events the socket is registered.
    pub flow: FlowId,
    /// Kind of the socket.
    pub kind: SocketKind,
    /// The socket has to be connected to one of these addresses. If there is none, the engine does not know the peer.
    pub peers: Vec<SocketAddr>,
    /// Address and port to which the socket has to be bound, if the engine knows them; the address may be unspecified.
    pub local: Option<SocketAddr>,
}

/// Kinds of host sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// TCP, with a connect whose result was not reported yet. The peer is compared when the connect has succeeded.
    TcpConnecting,
    /// TCP, connected by the engine.
    TcpConnected,
    /// TCP, accepted from a client of a published port. The socket is bound to the port's address.
    TcpAccepted,
    /// A stream that the decider has chosen: TCP or a Unix socket, connected or with a connect in flight.
    Stream,
    /// TCP, a socket of the guest's network namespace, connected or with a connect in flight.
    GuestTcp,
    /// UDP, not connected.
    Udp,
    /// UDP, connected.
    UdpConnected,
    /// UDP, the socket of the published port at this index of the configuration.
    UdpPublished(u32),
    /// A ping socket, or the raw socket for echo requests.
    Ping,
    /// UDP, connected to a resolver.
    Dns,
}

/// Function that returns the host socket with an index of a state, after it has compared it with its description and registered it.
pub type Adopt<'f, S> = &'f mut dyn FnMut(u32, &SocketDescription) -> Result<S, SocketRefused>;

/// Error: a descriptor is not the socket that a state describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the descriptor is not the socket of the flow")]
pub struct SocketRefused;

impl SocketDescription {
    /// Describes a socket whose addresses the engine does not know.
    pub(crate) const fn new(flow: FlowId, kind: SocketKind) -> Self {
        Self {
            flow,
            kind,
            peers: Vec::new(),
            local: None,
        }
    }

    /// Adds the addresses to one of which the socket is connected.
    pub(crate) fn connected_to(mut self, peers: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.peers.extend(peers);
        self
    }

    /// Sets the address to which the socket is bound.
    pub(crate) const fn bound_to(mut self, local: SocketAddr) -> Self {
        self.local = Some(local);
        self
    }
}

/// The host sockets of a state that is being written.
#[derive(Debug)]
pub(crate) struct Sockets<'a, S>(Vec<SavedSocket<'a, S>>);

impl<'a, S> Sockets<'a, S> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a socket, and returns its index.
    pub(crate) fn add(&mut self, socket: &'a S, description: SocketDescription) -> u32 {
        let index = u32::try_from(self.0.len()).expect("fewer sockets than descriptors");
        self.0.push(SavedSocket { socket, description });
        index
    }

    pub(crate) fn into_list(self) -> Vec<SavedSocket<'a, S>> {
        self.0
    }
}

/// The host sockets of a state that is being read.
pub(crate) struct Adoption<'f, S> {
    adopt: Adopt<'f, S>,
    /// Lowest index that was not used.
    next: u32,
    /// Number of flows whose sockets were refused.
    refused: u32,
}

impl<'f, S> Adoption<'f, S> {
    pub(crate) fn new(adopt: Adopt<'f, S>) -> Self {
        Self {
            adopt,
            next: 0,
            refused: 0,
        }
    }

    /// Returns the socket with this index, each at most once; `None` if the caller of the engine has refused it, or the policy
    /// has, which returns no description.
    pub(crate) fn take(
        &mut self,
        index: u32,
        description: Option<&SocketDescription>,
    ) -> Result<Option<S>, StateError> {
        check(index >= self.next)?;
        self.next = index.checked_add(1).ok_or(StateError::Malformed)?;
        Ok(description.and_then(|description| (self.adopt)(index, description).ok()))
    }

    /// As [`Self::take`], for the only socket of a flow, which ends if it is refused.
    pub(crate) fn take_only(
        &mut self,
        index: u32,
        description: Option<&SocketDescription>,
    ) -> Result<Option<S>, StateError> {
        let socket = self.take(index, description)?;
        if socket.is_none() {
            self.refuse();
        }
        Ok(socket)
    }

    /// Counts a flow that ends.
    pub(crate) fn refuse(&mut self) {
        self.refused += 1;
    }

    pub(crate) const fn refused(&self) -> u32 {
        self.refused
    }
}
