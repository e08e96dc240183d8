//! The pending decisions of a state.

use pontoon_wire::frame::HEAD;

use super::{Decisions, Kept, KeptDatagrams, KeptFrame, Pending, PendingKey};
use crate::Instant;
use crate::decider::{DecisionToken, MOST_PENDING, SEQUENCE_BITS};
use crate::state::{Reader, StateError, Writer, check, record, record_enum};

record_enum! { PendingKey {
    0 = Tcp { guest, written },
    1 = Udp { guest, written },
    2 = Echo { guest, ident, written },
    3 = UdpClient { guest, client },
} }
record_enum! { Kept { 0 = Frame(frame), 1 = Client, 2 = Datagrams(datagrams), 3 = Nothing } }
record! { KeptFrame { offload, head, bytes, len, dont_fragment } }
record! { KeptDatagrams { index, generation, received, payload } }
record! { Pending { protocol, asker, key, remote, kept } }

impl Decisions {
    /// Appends the pending decisions. The decider is not a part of the state.
    pub(crate) fn save(&self, to: &mut Writer<'_>) {
        let Self {
            decider: _,
            deadline: _,
            worker: _,
            sequence,
            pending,
            by_key: _,
            deadlines,
            shares: _,
            verdict,
        } = self;
        debug_assert!(verdict.is_none(), "no frame is being handled");
        to.put(sequence);
        to.count(pending.len());
        for (token, decision) in pending {
            to.put(&token.0);
            to.put(decision);
        }
        to.count(deadlines.len());
        for (at, token) in deadlines {
            to.put(at);
            to.put(&token.0);
        }
    }

    /// Reads what [`Self::save`] has written into this table, which is empty.
    pub(crate) fn load(&mut self, from: &mut Reader<'_>) -> Result<(), StateError> {
        self.sequence = from.get()?;
        check(self.sequence < 1 << SEQUENCE_BITS)?;
        for _ in 0..from.count(MOST_PENDING)? {
            let token = DecisionToken(from.get()?);
            let decision: Pending = from.get()?;
            check(token.worker() == self.worker && token.0 >> SEQUENCE_BITS < 256 && decision.is_sound())?;
            if let Some(key) = decision.key {
                check(self.by_key.insert(key, token).is_none())?;
            }
            self.shares.add(decision.asker, decision.kept.len());
            check(self.pending.insert(token, decision).is_none())?;
        }
        check(self.shares.are_within_limits())?;
        let mut last = Instant::default();
        for (at, token) in from.list::<(Instant, u64)>(2 * MOST_PENDING)? {
            check(at >= last)?;
            last = at;
            self.deadlines.push_back((at, DecisionToken(token)));
        }
        // Each decision has a deadline.
        let pending = self.deadlines.iter().filter(|(_, token)| self.pending.contains_key(token));
        check(pending.count() == self.pending.len())
    }

    /// Returns true if the decision about the accepted client with this token is pending.
    pub(crate) fn awaits_client(&self, token: DecisionToken) -> bool {
        let pending = self.pending.get(&token);
        pending.is_some_and(|pending| matches!(pending.kept, Kept::Client))
    }
}

impl Pending {
    fn is_sound(&self) -> bool {
        match &self.kept {
            Kept::Frame(frame) => {
                let head = frame.len.min(HEAD);
                let is_head = frame.head.len() <= head && (frame.bytes.is_empty() || frame.head.len() == head);
                let has_all = frame.bytes.is_empty()
                    || frame.bytes.len() == frame.len && frame.bytes.starts_with(&frame.head);
                self.key.is_some() && is_head && has_all
            }
            Kept::Datagrams(kept) => {
                let received = &kept.received;
                self.key.is_some() && received.len == kept.payload.len() && received.stride > 0
            }
            Kept::Client | Kept::Nothing => self.key.is_none(),
        }
    }
}
