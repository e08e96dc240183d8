//! Verdicts of the decider: applies them to the flows that wait for them.

use core::time::Duration;

use rand_chacha::rand_core::RngCore;

use super::{Engine, ProtocolHandlers};
use crate::ctx::{Ctx, Net};
use crate::decider::{Decider, DecisionToken, Decisions, Kept, Pending, PendingKey, TokenState, Verdict};
use crate::siblings::Origin;
use crate::{Host, Instant, Transmit};

impl<H: Host> Engine<H> {
    /// Sets the decider, which is asked about all flows from now on. A flow without a verdict after `deadline` is denied.
    pub fn set_decider(&mut self, decider: Box<dyn Decider>, deadline: Duration) {
        // Tokens of an engine that this one replaces must not refer to its requests.
        let sequence = self.net.random.next_u64();
        let decisions = Decisions::new(decider, deadline, self.net.worker, sequence);
        self.net.decisions = Some(Box::new(decisions));
    }

    /// Applies a verdict that was announced by [`Answer::Later`](crate::decider::Answer::Later).
    pub fn take_verdict<T: Transmit>(
        &mut self,
        token: DecisionToken,
        verdict: Verdict,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) -> TokenState {
        let state = self.conclude(token, verdict, link, host, now);
        let is_denied = state == TokenState::Known && matches!(verdict, Verdict::Deny(_));
        self.net.counters.decisions_denied += u64::from(is_denied);
        state
    }

    /// Denies all flows whose decision is pending, because the decider has disconnected.
    pub fn deny_pending<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        for (token, protocol) in self.net.pending_decisions() {
            let state = self.conclude(token, Verdict::denial(protocol), link, host, now);
            self.net.counters.decisions_unavailable += u64::from(state == TokenState::Known);
        }
    }

    /// Returns the number of pending decisions. Those about connections that the guest has reset, and about flows of a guest
    /// that has gone, are among them.
    #[must_use]
    pub fn pending_decisions(&self) -> usize {
        self.net.decisions.as_ref().map_or(0, |decisions| decisions.len())
    }

    /// Denies the flows whose deadline has passed.
    pub(super) fn expire_decisions<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        while let Some((token, protocol)) = self.net.decisions.as_ref().and_then(|it| it.expired(now)) {
            let state = self.conclude(token, Verdict::denial(protocol), link, host, now);
            self.net.counters.decisions_expired += u64::from(state == TokenState::Known);
        }
    }

    /// Returns the time at which [`Self::expire_decisions`] has to be called next.
    pub(super) fn next_decision(&self) -> Option<Instant> {
        self.net.decisions.as_ref()?.next_deadline()
    }

    fn conclude<T: Transmit>(
        &mut self,
        token: DecisionToken,
        verdict: Verdict,
        link: &mut T,
        host: &mut H,
        now: Instant,
    ) -> TokenState {
        let pending = self.net.decisions.as_mut().and_then(|it| it.remove(token));
        let Some(pending) = pending else {
            return TokenState::Unknown;
        };
        if let Kept::Nothing = pending.kept {
            return TokenState::Unknown;
        }
        self.net.mtu = link.limits().mtu;
        self.net.set_verdict(pending.decided(verdict));
        // The frame is not handed over: the verdict is here, and so is the claim on the flow.
        self.net.origin = Origin::Peer;
        let Pending { key, kept, .. } = pending;
        self.guarded(None, link, host, now, |_, protocols, ctx| match kept {
            Kept::Frame(mut frame) => {
                frame.open(|frame, dont_fragment| protocols.take_kept(frame, dont_fragment, ctx));
            }
            Kept::Client => protocols.tcp.conclude_client(token, verdict, ctx),
            Kept::Datagrams(datagrams) => protocols.udp.conclude_client(&datagrams, verdict, ctx),
            Kept::Nothing => {}
        });
        self.net.origin = Origin::Link;
        self.net.set_verdict(None);
        if let Some(key) = key {
            self.protocols.release_unused(&key, &self.net);
        }
        link.flush();
        TokenState::Known
    }
}

impl<S> ProtocolHandlers<S> {
    /// Cancels all pending decisions after the guest's flows were closed.
    pub(super) fn cancel_decisions<H: Host<Socket = S>, T: Transmit>(&mut self, ctx: &mut Ctx<'_, H, T>) {
        for (token, _) in ctx.net.pending_decisions() {
            self.tcp.abort_client(token, ctx);
            let cancelled = ctx.net.decisions.as_mut().and_then(|it| it.cancel(token));
            if let Some(key) = cancelled {
                self.release_unused(&key, ctx.net);
            }
        }
    }

    /// Releases this worker's claim on a flow about which the decider was asked, unless the flow was opened or another decision
    /// about it is pending.
    fn release_unused(&self, key: &PendingKey, net: &Net) {
        let (Some(siblings), Some(claimed)) = (&net.siblings, key.flow_key()) else {
            return;
        };
        // The handler of the frame may have released the claim.
        if siblings.owner(&claimed) != Some(net.worker) {
            return;
        }
        match *key {
            PendingKey::Tcp { .. } => self.tcp.release_unused(key, net),
            PendingKey::Udp { guest, .. } => self.udp.release_unused(guest, net),
            PendingKey::Echo { .. } | PendingKey::UdpClient { .. } => {}
        }
    }
}
