//! Handling of the supervisor's messages by a worker.

use std::io;

use pontoon_engine::config::Protocol;
use pontoon_engine::policy::GuestForwards;
use pontoon_engine::{Failure, Instant, Token, siblings};
use pontoon_ipc::Descriptor;
use pontoon_link::Link;
use tracing::warn;

use super::Worker;
use crate::messages::{
    EndFlows, EndedFlows, FlowPage, FlowSelection, ForwardUpdate, PortError, PortUpdate, Report, Update,
};

/// State of the supervisor's channel after its messages were received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelState {
    /// The channel is empty; an event reports the next message.
    Drained,
    /// The supervisor has closed its end.
    Closed,
}

impl<L: Link> Worker<L> {
    /// Receives and applies the supervisor's messages.
    pub(super) fn receive_updates(&mut self, now: Instant) -> io::Result<ChannelState> {
        while let Some(supervisor) = &mut self.supervisor {
            let update = match supervisor.receive() {
                Ok(Some(update)) => update,
                Ok(None) => return Ok(ChannelState::Closed),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    warn!("ignoring a message of the supervisor: {error}");
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ChannelState::Drained),
                Err(error) => return Err(error),
            };
            // The update is forwarded afterwards: the other workers process a UDP port once this worker has its socket,
            // close their endpoints that the port replaces, and do not open them again.
            let forwarded = self.handle.is_some().then(|| update.clone());
            self.apply(update, now);
            if let (Some(handle), Some(update)) = (&self.handle, forwarded) {
                handle.forward(&update);
            }
        }
        Ok(ChannelState::Drained)
    }

    /// Applies an update of the supervisor to this worker.
    pub(super) fn apply(&mut self, update: Update, now: Instant) {
        let Self {
            engine, host, link, ..
        } = self;
        match update {
            Update::Resolvers(list) => engine.set_resolvers(list),
            Update::Owned(list) => engine.set_owned_addresses(&list, &mut link.transmitter(), host, now),
            Update::OwnedPart(some) => {
                if let Some(list) = self.gathered.add(some) {
                    engine.set_owned_addresses(&list, &mut link.transmitter(), host, now);
                }
            }
            Update::HostAddresses(addresses) => {
                engine.set_host_addresses(addresses, &mut link.transmitter(), host, now);
            }
            Update::Ipv6Route(exists) => engine.set_ipv6_route(exists),
            Update::Rules(update) => {
                if let Some(doorbell) = &self.doorbell {
                    doorbell.set_generation(update.generation);
                }
                let link = &mut link.transmitter();
                engine.replace_rules(&update.rules, update.refused, link, host, now);
                self.rules_generation = update.generation;
            }
            Update::Published(port_updates) => {
                for port_update in port_updates {
                    self.change(port_update, now);
                }
            }
            Update::Forwards(updates) => {
                let change = |forwards: &mut GuestForwards| {
                    for update in &updates {
                        match update {
                            ForwardUpdate::Add(forward) => forwards.add(*forward),
                            ForwardUpdate::Remove(forward) => forwards.remove(forward),
                        }
                    }
                };
                engine.change_forwards(change, &mut link.transmitter(), host, now);
            }
            Update::SocketHelper(cookie, channels) => {
                let place = usize::from(engine.worker().0);
                match channels.into_iter().nth(place).map(Descriptor::into_inner) {
                    Some(Ok(channel)) => host.set_socket_helper(cookie, channel),
                    Some(Err(error)) => warn!("clients on this host are forwarded over the link: {error}"),
                    None => {}
                }
            }
            Update::LogLevel(level) => (self.set_log_level)(level),
            Update::Confirm(round) => self.confirm(round, now),
            Update::Flows(request) if request.worker == engine.worker().0 => {
                let page = engine.flows_from(request.from, now);
                self.report(&Report::Flows(FlowPage {
                    number: request.number,
                    page,
                }));
            }
            Update::Flows(_) => {}
            Update::EndFlows(request) => self.end_flows(&request, now),
            Update::Verdicts(verdicts) => self.take_verdicts(verdicts, now),
            Update::DeciderConnected(connected) => self.set_decider_connected(connected, now),
            Update::Capture(order) => {
                self.capture_queue = self.capture_control.apply(order, &self.reports);
                self.pending.capture = true;
            }
        }
    }

    /// Ends flows, and records their number for the next report.
    fn end_flows(&mut self, request: &EndFlows, now: Instant) {
        let Self {
            engine, host, link, ..
        } = self;
        let link = &mut link.transmitter();
        let count = match &request.which {
            FlowSelection::Id(token) => match Token(*token).flow() {
                Some(flow) if flow.worker == engine.worker() => engine.end_flow(flow, link, host, now),
                Some(_) | None => 0,
            },
            FlowSelection::To(what) => engine.end_flows_to(what, link, host, now),
        };
        if count == 0 {
            return;
        }
        if self.ended.len() >= EndedFlows::MOST {
            self.ended.pop_front();
        }
        self.ended.push_back(EndedFlows {
            number: request.number,
            count,
        });
    }

    /// Opens, redirects or closes a published port, and records a failure for the next report.
    fn change(&mut self, port_update: PortUpdate, now: Instant) {
        let published = port_update.published();
        let key = published.key();
        self.port_errors.remove(&key);
        if let Err(why) = self.try_change(port_update, now) {
            warn!("cannot publish {}: {why}", published.host);
            self.port_errors.insert(key, PortError::new(published, &why));
        }
    }

    /// Opens, redirects or closes a published port.
    ///
    /// # Errors
    /// The text has the reason, for the user.
    fn try_change(&mut self, port_update: PortUpdate, now: Instant) -> Result<(), String> {
        let Self {
            engine, host, link, ..
        } = self;
        let link = &mut link.transmitter();
        let published = port_update.published();
        if published.protocol == Protocol::Udp && engine.worker() != siblings::FIRST {
            // The first worker has the published UDP port, and with it the guest's endpoint.
            engine.yield_port(published, link, host, now);
            return Ok(());
        }
        let (place, stays) = match port_update {
            PortUpdate::Open(_, socket) => {
                let socket = socket.into_inner().map_err(|error| error.to_string())?;
                let place = host.add_published(published, socket);
                (Some(place.map_err(|error| error.to_string())?), true)
            }
            PortUpdate::Redirect(_) => (host.find_published(&published), true),
            PortUpdate::Close(_) => (host.find_published(&published), false),
        };
        let Some(place) = place else {
            return Ok(());
        };
        if stays {
            return engine
                .publish(place, published, link, host, now)
                .map_err(|failure| match failure {
                    Failure::Invalid => format!(
                        "too many published ports lead to guest port {} already",
                        published.guest_port
                    ),
                    failure => failure.to_string(),
                });
        }
        engine.unpublish(place, link, host, now);
        host.remove_published(place);
        Ok(())
    }
}
