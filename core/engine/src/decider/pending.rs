//! The table of pending decisions, with the frames, clients and datagrams that are kept for them.

mod state;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use pontoon_wire::frame::Ip;
use pontoon_wire::vnet::Offload;
use vm_memory::VolatileSlice;

use super::shares::{Asker, Shares};
use super::{Answer, Decider, DecisionToken, FlowRequest, MOST_PENDING, NewFlow, SEQUENCE_BITS, Verdict};
use crate::egress::EgressProtocol;
use crate::host::Received;
use crate::siblings::FlowKey;
use crate::{Frame, Instant, WorkerId};

/// Key of a flow whose decision is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PendingKey {
    /// A connection that the guest opens, by both ends as the guest sees them.
    Tcp { guest: SocketAddr, written: SocketAddr },
    /// A destination of a UDP endpoint of the guest.
    Udp { guest: SocketAddr, written: SocketAddr },
    /// A destination of an echo id of the guest.
    Echo {
        guest: IpAddr,
        ident: u16,
        written: IpAddr,
    },
    /// A client of a published UDP port, by the guest's endpoint and the client's address.
    UdpClient { guest: SocketAddr, client: SocketAddr },
}

impl PendingKey {
    /// Returns the key of the flow in the directory of flow owners, if flows of this kind are listed there.
    pub(crate) const fn flow_key(&self) -> Option<FlowKey> {
        match *self {
            Self::Tcp { guest, written } => Some(FlowKey::Tcp {
                guest,
                remote: written,
            }),
            Self::Udp { guest, .. } => Some(FlowKey::Udp(guest)),
            Self::Echo { .. } | Self::UdpClient { .. } => None,
        }
    }
}

/// Part of a flow that is kept while the decision is pending.
#[derive(Debug)]
pub(crate) enum Kept {
    /// The first frame from the guest.
    Frame(KeptFrame),
    /// A client of a published TCP port, whose socket the TCP table holds under the token.
    Client,
    /// The first datagrams of a client of a published UDP port.
    Datagrams(KeptDatagrams),
    /// Nothing: the guest has reset the connection, or has gone. The decision stays in the table until its verdict or deadline:
    /// the decider has the request, so that it would otherwise have more work than the limit on pending decisions permits.
    Nothing,
}

/// Copy of a frame from the guest.
#[derive(Debug)]
pub(crate) struct KeptFrame {
    offload: Offload,
    head: Vec<u8>,
    /// The whole frame; empty for a segment that opens a connection, of which the headers suffice.
    bytes: Vec<u8>,
    len: usize,
    dont_fragment: bool,
}

/// Datagrams that a published UDP port has received from a new client by one call.
#[derive(Debug)]
pub(crate) struct KeptDatagrams {
    /// Slot and generation of the endpoint whose socket has received the datagrams.
    pub(crate) index: u32,
    pub(crate) generation: u16,
    pub(crate) received: Received,
    pub(crate) payload: Vec<u8>,
}

impl KeptFrame {
    /// Copies the headers of a segment that opens a connection.
    pub(crate) fn headers(frame: &Frame<'_>, ip: &Ip) -> Self {
        Self {
            offload: frame.offload,
            head: frame.head.to_vec(),
            bytes: Vec::new(),
            len: frame.len,
            dont_fragment: ip.dont_fragment,
        }
    }

    /// Copies a whole frame.
    pub(crate) fn whole(frame: &Frame<'_>, ip: &Ip) -> Self {
        let mut bytes = vec![0; frame.len];
        let copied = frame.copy(0, &mut bytes);
        bytes.truncate(copied);
        Self {
            bytes,
            ..Self::headers(frame, ip)
        }
    }

    /// Passes the frame to `sink`, with the DF bit of the packet: that of a reassembled packet is not the one in its
    /// first fragment.
    pub(crate) fn open<R>(&mut self, sink: impl FnOnce(&Frame<'_>, bool) -> R) -> R {
        let parts = [VolatileSlice::from(&mut *self.bytes)];
        let frame = Frame {
            offload: self.offload,
            head: &self.head,
            parts: if parts[0].is_empty() { &[] } else { &parts },
            len: self.len,
        };
        sink(&frame, self.dont_fragment)
    }
}

impl Kept {
    /// Returns the number of bytes that count against [`MOST_BYTES`](super::MOST_BYTES).
    fn len(&self) -> usize {
        match self {
            Self::Frame(frame) => frame.head.len() + frame.bytes.len(),
            Self::Client | Self::Nothing => 0,
            Self::Datagrams(datagrams) => datagrams.payload.len(),
        }
    }
}

/// A pending decision.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) protocol: EgressProtocol,
    asker: Asker,
    /// Key by which frames of the flow are recognized; `None` for an accepted client, and for a cancelled decision.
    pub(crate) key: Option<PendingKey>,
    /// The address on the host's side about which the decider was asked.
    remote: SocketAddr,
    pub(crate) kept: Kept,
}

impl Pending {
    /// Returns this verdict about the flow, for [`Net::judge`](crate::ctx::Net::judge); `None` for a client with a socket of
    /// its own.
    pub(crate) fn decided(&self, verdict: Verdict) -> Option<DecidedFlow> {
        Some(DecidedFlow {
            key: self.key?,
            remote: self.remote,
            verdict,
        })
    }
}

/// The verdict about a flow whose kept frame is handled next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecidedFlow {
    pub(super) key: PendingKey,
    /// The address on the host's side about which the decider was asked.
    pub(super) remote: SocketAddr,
    pub(super) verdict: Verdict,
}

impl DecidedFlow {
    /// Returns the verdict if it is about `flow`. Permission for an address on the host's side permits no other one, which the
    /// flow may have by a changed guest forward.
    fn verdict_about(&self, flow: &NewFlow) -> Option<Verdict> {
        let is_about =
            flow.key == Some(self.key) && (self.verdict != Verdict::Allow || flow.remote == self.remote);
        is_about.then_some(self.verdict)
    }
}

/// The decider of one worker, and its pending decisions.
#[derive(Debug)]
pub(crate) struct Decisions {
    decider: Box<dyn Decider>,
    deadline: Duration,
    worker: WorkerId,
    sequence: u64,
    pending: BTreeMap<DecisionToken, Pending>,
    by_key: BTreeMap<PendingKey, DecisionToken>,
    /// Deadlines of requests, the earliest first: all requests have the same time, and are added in order. Entries of
    /// decisions that were made may remain.
    deadlines: VecDeque<(Instant, DecisionToken)>,
    shares: Shares,
    /// The verdict about the flow whose kept frame is being handled.
    verdict: Option<DecidedFlow>,
}

impl Decisions {
    /// Creates a table without pending decisions. `sequence` is the first sequence number.
    pub(crate) fn new(
        decider: Box<dyn Decider>,
        deadline: Duration,
        worker: WorkerId,
        sequence: u64,
    ) -> Self {
        Self {
            decider,
            deadline,
            worker,
            sequence,
            pending: BTreeMap::new(),
            by_key: BTreeMap::new(),
            deadlines: VecDeque::new(),
            shares: Shares::default(),
            verdict: None,
        }
    }

    /// Returns true if the decision about `flow` may not be pending, because too many are.
    pub(super) fn is_full(&self, flow: &NewFlow) -> bool {
        self.shares.are_full_for(&Asker::of(flow))
    }

    /// Returns true if the decision about the flow `key` is pending.
    pub(crate) fn awaits(&self, key: &PendingKey) -> bool {
        self.by_key.contains_key(key)
    }

    pub(super) const fn has_verdict(&self) -> bool {
        self.verdict.is_some()
    }

    /// Sets or removes the verdict about the flow whose kept frame is handled.
    pub(crate) const fn set_verdict(&mut self, verdict: Option<DecidedFlow>) {
        self.verdict = verdict;
    }

    /// Returns and removes the verdict of the kept frame that is being handled, if it is about `flow`.
    pub(super) fn take_verdict(&mut self, flow: &NewFlow) -> Option<Verdict> {
        let verdict = self.verdict.as_ref()?.verdict_about(flow)?;
        self.verdict = None;
        Some(verdict)
    }

    /// Asks the decider, with a new token.
    pub(super) fn ask(&mut self, flow: &NewFlow, rule: Option<String>) -> (DecisionToken, Answer) {
        self.sequence = self.sequence.wrapping_add(1) & ((1 << SEQUENCE_BITS) - 1);
        let token = DecisionToken(u64::from(self.worker.0) << SEQUENCE_BITS | self.sequence);
        let request = FlowRequest {
            token,
            protocol: flow.protocol,
            direction: flow.direction,
            guest: flow.guest,
            remote: flow.remote,
            rule,
            deadline: self.deadline,
        };
        (token, self.decider.decide(&request))
    }

    pub(super) fn insert(&mut self, token: DecisionToken, flow: &NewFlow, kept: Kept, now: Instant) {
        if let Some(key) = flow.key {
            self.by_key.insert(key, token);
        }
        let asker = Asker::of(flow);
        self.shares.add(asker, kept.len());
        self.deadlines.push_back((now + self.deadline, token));
        let pending = Pending {
            protocol: flow.protocol,
            asker,
            key: flow.key,
            remote: flow.remote,
            kept,
        };
        self.pending.insert(token, pending);
        // Without this, the queue would grow with the rate of decisions.
        if self.deadlines.len() > 2 * MOST_PENDING {
            self.deadlines
                .retain(|(_, token)| self.pending.contains_key(token));
        }
    }

    /// Replaces the kept frame of the connection `key` by that of a later SYN.
    pub(crate) fn replace_frame(&mut self, key: &PendingKey, frame: KeptFrame) {
        if let Some(token) = self.by_key.get(key).copied() {
            self.replace_kept(token, Kept::Frame(frame));
        }
    }

    fn replace_kept(&mut self, token: DecisionToken, kept: Kept) {
        if let Some(pending) = self.pending.get_mut(&token) {
            self.shares.remove(&pending.asker, pending.kept.len());
            pending.kept = kept;
            self.shares.add(pending.asker, pending.kept.len());
        }
    }

    /// Removes a pending decision.
    pub(crate) fn remove(&mut self, token: DecisionToken) -> Option<Pending> {
        let pending = self.pending.remove(&token)?;
        if let Some(key) = &pending.key {
            self.by_key.remove(key);
        }
        self.shares.remove(&pending.asker, pending.kept.len());
        while let Some((_, first)) = self.deadlines.front()
            && !self.pending.contains_key(first)
        {
            self.deadlines.pop_front();
        }
        Some(pending)
    }

    /// Cancels the pending decision about the connection `key`; returns false if there is none.
    pub(crate) fn cancel_connection(&mut self, key: &PendingKey) -> bool {
        let token = self.by_key.get(key).copied();
        token.and_then(|token| self.cancel(token)).is_some()
    }

    /// Cancels a pending decision, which counts until its verdict or deadline. Returns its key.
    pub(crate) fn cancel(&mut self, token: DecisionToken) -> Option<PendingKey> {
        let key = self.pending.get_mut(&token)?.key.take();
        if let Some(key) = &key {
            self.by_key.remove(key);
        }
        self.replace_kept(token, Kept::Nothing);
        key
    }

    /// Returns the tokens of all pending decisions with their protocols, the oldest first.
    pub(crate) fn tokens(&self) -> Vec<(DecisionToken, EgressProtocol)> {
        let tokens = self.deadlines.iter();
        tokens
            .filter_map(|(_, token)| Some((*token, self.pending.get(token)?.protocol)))
            .collect()
    }

    /// Returns the time at which the next decision is made by its deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, _)| *at)
    }

    /// Returns the oldest pending decision if its deadline has passed.
    pub(crate) fn expired(&self, now: Instant) -> Option<(DecisionToken, EgressProtocol)> {
        let (at, token) = self.deadlines.front()?;
        let pending = self.pending.get(token)?;
        (*at <= now).then_some((*token, pending.protocol))
    }

    #[cfg(test)]
    pub(super) fn is_bounded(&self) -> bool {
        self.deadlines.len() <= 2 * MOST_PENDING
    }

    /// Returns the number of pending decisions.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns true if a decision about a destination of the UDP endpoint `guest` is pending.
    pub(crate) fn awaits_endpoint(&self, guest: SocketAddr) -> bool {
        let is_of = |key: &PendingKey| matches!(key, PendingKey::Udp { guest: of, .. } if *of == guest);
        self.by_key.keys().any(is_of)
    }
}
