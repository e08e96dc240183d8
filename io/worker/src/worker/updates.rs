//! The supervisor's messages to a worker.

use std::io;

use pontoon_engine::config::Protocol;
use pontoon_engine::{Failure, Instant, siblings};
use pontoon_link::Link;
use pontoon_sys::seqpacket;
use rustix::io::Errno;
use tracing::warn;

use super::Worker;
use crate::messages::{Door, Flows, MAX_LEN, Refused, Report, Update};

/// The state of the supervisor's channel after its messages were received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelState {
    /// An event reports the next message.
    Drained,
    /// The supervisor has closed its end.
    Closed,
}

impl<L: Link> Worker<L> {
    /// Receives and applies the supervisor's messages.
    pub(super) fn receive_updates(&mut self, now: Instant) -> io::Result<ChannelState> {
        let mut buffer = vec![0; MAX_LEN];
        while let Some(supervisor) = &self.supervisor {
            // If this process is out of descriptors, ports without their socket are decoded as `Door::Lost`.
            let (message, descriptors) = match seqpacket::receive_what_fits(supervisor, &mut buffer) {
                Ok(Some(message)) => (&buffer[..message.len], message.descriptors),
                Ok(None) => return Ok(ChannelState::Closed),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    warn!("ignoring unreadable supervisor message: {error}");
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ChannelState::Drained),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Ok(ChannelState::Closed);
                }
                Err(error) => return Err(error),
            };
            match Update::decode(message, descriptors) {
                Ok(update) => {
                    // The other workers get a UDP port after this worker has its socket: their endpoints that the port
                    // replaces are closed then, and are not opened again.
                    let forwarded = self.handle.is_some().then(|| update.clone());
                    self.apply(update, now);
                    if let (Some(handle), Some(update)) = (&self.handle, forwarded) {
                        handle.forward(&update);
                    }
                }
                Err(error) => warn!("ignoring malformed supervisor message: {error}"),
            }
        }
        Ok(ChannelState::Drained)
    }

    /// Applies an update of the supervisor's.
    pub(super) fn apply(&mut self, update: Update, now: Instant) {
        let Self {
            engine, host, link, ..
        } = self;
        match update {
            Update::Resolvers(list) => engine.set_resolvers(list),
            Update::Owned(list) => engine.set_owned_addresses(&list, &mut link.transmitter(), host, now),
            Update::SomeOwned(some) => {
                if let Some(list) = self.gathered.add(some) {
                    engine.set_owned_addresses(&list, &mut link.transmitter(), host, now);
                }
            }
            Update::Ipv6Route(exists) => engine.set_ipv6_route(exists),
            Update::Rules(list) => engine.set_rules(&list, &mut link.transmitter(), host, now),
            Update::Published(doors) => {
                for door in doors {
                    self.change(door, now);
                }
            }
            Update::LogLevel(level) => (self.set_log_level)(level),
            Update::Ask(round) => self.answer(round),
            Update::Flows(turn) if turn.worker == engine.worker().0 => {
                let page = engine.flows_from(turn.from, now);
                self.report(&Report::Flows(Flows {
                    number: turn.number,
                    page,
                }));
            }
            Update::Flows(_) => {}
            Update::Capture(order) => {
                self.capture_queue = self.capture_control.apply(order, &self.report_fd);
                self.pending.capture = true;
            }
        }
    }

    /// Opens, redirects or closes a published port, and records a failure for the next report.
    fn change(&mut self, door: Door, now: Instant) {
        let published = door.published();
        let key = (published.protocol, published.host);
        self.refused.remove(&key);
        if let Err(why) = self.try_change(door, now) {
            warn!("cannot publish {}: {why}", published.host);
            let port = published;
            self.refused.insert(key, Refused { port, why });
        }
    }

    /// Opens, redirects or closes a published port.
    ///
    /// # Errors
    /// The reason, for the user.
    fn try_change(&mut self, door: Door, now: Instant) -> Result<(), String> {
        let Self {
            engine, host, link, ..
        } = self;
        let link = &mut link.transmitter();
        let published = door.published();
        if published.protocol == Protocol::Udp && engine.worker() != siblings::FIRST {
            // The first worker has it, and with it the guest's endpoint.
            engine.yield_port(published, link, host, now);
            return Ok(());
        }
        let (place, stays) = match door {
            Door::Open(_, socket) => match host.add_published(published, socket.into_inner()) {
                Ok(place) => (Some(place), true),
                Err(error) => return Err(error.to_string()),
            },
            Door::Lost(_) => return Err(Errno::MFILE.to_string()),
            Door::Lead(_) => (host.find_published(&published), true),
            Door::Close(_) => (host.find_published(&published), false),
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
