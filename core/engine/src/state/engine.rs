//! Saves the state of a whole engine, and restores it into a new one.

use super::{Adoption, Reader, Restored, SavedState, SocketDescription, SocketRefused, Sockets, StateError};
use super::{Writer, check, envelope};
use crate::config::Protocol;
use crate::engine::{Engine, ProtocolHandlers};
use crate::fragment::Reassembly;
use crate::pool::Pool;
use crate::timer::Timer;
use crate::{FlowId, Host, Instant, Kind, Transmit};

impl<H: Host> Engine<H> {
    /// Returns the state of the engine between two calls of its handlers, with the host sockets to which it refers. The engine
    /// can go on as if nothing had happened.
    #[must_use]
    pub fn save_state(&self, now: Instant) -> SavedState<'_, H::Socket> {
        let Self {
            net,
            reassembly,
            protocols: ProtocolHandlers { tcp, udp, icmp, dns },
        } = self;
        let mut to = Writer::new(&net.pool);
        let mut sockets = Sockets::new();
        net.save(&mut to);
        reassembly.save(&mut to);
        tcp.save(net, &mut to, &mut sockets);
        udp.save(net, &mut to, &mut sockets);
        icmp.save(net, &mut to, &mut sockets);
        dns.save(&mut to, &mut sockets);
        net.timers.save(&mut to);
        to.put(&net.decisions.is_some());
        if let Some(decisions) = &net.decisions {
            to.frame(|to| decisions.save(to));
        }
        SavedState {
            bytes: envelope::seal(&to.into_bytes(), now),
            sockets: sockets.into_list(),
        }
    }

    /// Restores a state in an engine that has been created with the present configuration, has handled nothing yet, and has its
    /// siblings, ledger, receiver of events, decider and the host's addresses. `now` takes the place of the time at which the
    /// state was saved: the time in between does not count.
    ///
    /// `adopt` returns the host socket with an index of the state, after it has compared the socket with its description and
    /// registered it for events of the flow. Each index is used once at most. No socket is used before
    /// [`Self::handle_restored`].
    ///
    /// # Errors
    /// The state is refused as a whole. The engine must be dropped.
    pub fn restore_state(
        &mut self,
        bytes: &[u8],
        now: Instant,
        adopt: &mut dyn FnMut(u32, &SocketDescription) -> Result<H::Socket, SocketRefused>,
    ) -> Result<Restored, StateError> {
        let envelope = envelope::open(bytes)?;
        let shift = i64::try_from(i128::from(now.0) - i128::from(envelope.at.0));
        let shift = shift.map_err(|_| StateError::Malformed)?;
        let mut adoption = Adoption::new(adopt);
        // The blocks are taken while the policy and the configuration are read.
        let mut pool = core::mem::replace(&mut self.net.pool, Pool::empty());
        let mut from = Reader::new(envelope.records, envelope.version, shift, &mut pool);
        let restored = self.load(&mut from, &mut adoption, now);
        self.net.pool = pool;
        restored?;
        Ok(Restored {
            flows: self.net.flows,
            refused: adoption.refused(),
        })
    }

    fn load(
        &mut self,
        from: &mut Reader<'_>,
        adoption: &mut Adoption<'_, H::Socket>,
        now: Instant,
    ) -> Result<(), StateError> {
        let Self {
            net,
            reassembly,
            protocols,
        } = self;
        let lists = net.load(from)?;
        *reassembly = Reassembly::load(from)?;
        protocols.tcp.load(net, from, adoption)?;
        protocols.udp.load(net, from, adoption)?;
        protocols.icmp.load(net, from, adoption)?;
        protocols.dns.load(net, from, adoption)?;
        let most_timers = 8 * net.most_flows() + 1024;
        for (flow, at) in net.timers.load(from, now, most_timers)? {
            check(flow.worker == net.worker)?;
            // The socket of another flow may have been refused.
            if let Some(timer) = protocols.timer_of(flow) {
                check(!timer.is_armed())?;
                net.timers.arm(timer, flow, at);
            }
        }
        if from.get()? {
            let decisions = net.decisions.as_mut();
            from.frame(|from| decisions.map(|decisions| decisions.load(from)).transpose())?;
        }
        from.finish()?;
        let (worker, ports) = (net.worker, net.config.published.len());
        lists.move_to(net, |flow| {
            flow.worker == worker
                && match flow.kind {
                    Kind::Listener => (flow.index as usize) < ports,
                    _ => protocols.timer_of(flow).is_some(),
                }
        });
        Ok(())
    }

    /// Begins to handle packets after [`Self::restore_state`]: ends the flows whose sockets were refused and those that the
    /// policy refuses, and opens published UDP ports that the state does not contain. No other handler is called before.
    pub fn handle_restored<T: Transmit>(&mut self, link: &mut T, host: &mut H, now: Instant) {
        self.net.policy.egress.judge_again();
        let (protocols, ctx) = &mut self.split(link, host, now);
        protocols.tcp.end_refused(ctx);
        let decisions = ctx.net.decisions.as_ref();
        let is_awaited = |token| decisions.is_some_and(|decisions| decisions.awaits_client(token));
        let forgotten: Vec<_> = protocols.tcp.undecided().filter(|token| !is_awaited(*token)).collect();
        for token in forgotten {
            protocols.tcp.abort_client(token, ctx);
        }
        protocols.udp.end_refused(ctx);
        let open: Vec<u32> = protocols.udp.published().collect();
        let ports = (0_u32..).zip(self.net.config.published.clone());
        for (place, port) in ports.filter(|(_, port)| port.protocol == Protocol::Udp) {
            if !open.contains(&place) && self.publish(place, port, link, host, now).is_err() {
                self.net.counters.host_exhausted += 1;
            }
        }
        link.flush();
    }
}

impl<S> ProtocolHandlers<S> {
    /// Returns the timer of a flow; `None` if there is no such flow.
    fn timer_of(&mut self, flow: FlowId) -> Option<&mut Timer> {
        match flow.kind {
            Kind::Tcp | Kind::Joined => self.tcp.timer_of(flow),
            Kind::Udp => self.udp.timer_of(flow),
            Kind::Icmp => self.icmp.timer_of(flow),
            Kind::Dns => self.dns.timer_of(flow),
            Kind::JoinedGuest | Kind::Listener | Kind::Edge => None,
        }
    }
}
