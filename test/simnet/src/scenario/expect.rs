//! Checks that connections end as the scripts of both sides require.

use super::{Opening, Scenario, ScenarioConnection};
use crate::app::{ConnectionEnd, FinalAction, SimApp};
use crate::guest::Guest;
use crate::host::ConnectResult;
use crate::world::SimWorld;

impl Scenario {
    /// Checks that every connection ended as its scripts require.
    pub(super) fn judge<G: Guest>(&self, world: &SimWorld<G>) -> Result<(), String> {
        let guests = world.guest.reports();
        for connection in &self.connections {
            let guest = guests.iter().find(|report| report.port == connection.port);
            let host = world
                .host
                .reports()
                .find(|report| report.port == connection.port && report.app.is_some());
            let ends = ConnectionEnds {
                guest: guest.and_then(|report| report.outcome),
                host: host.as_ref().and_then(|report| report.app.as_ref()?.outcome()),
                guest_app: guest.and_then(|report| report.app.clone()),
                host_app: host.and_then(|report| report.app),
                broken: guest.is_some_and(|report| report.broken),
                lossy: world.up.lost
                    + world.down.lost
                    + world.link.refused()
                    + world.counters().hand_overs_lost
                    > 0,
            };
            ends.judge(connection).map_err(|what| {
                format!(
                    "port {}: {what}: {connection:?}\n{}",
                    connection.port,
                    world.state()
                )
            })?;
        }
        Ok(())
    }
}

/// The ends of one connection as guest and host observed them.
struct ConnectionEnds {
    guest: Option<ConnectionEnd>,
    host: Option<ConnectionEnd>,
    guest_app: Option<SimApp>,
    host_app: Option<SimApp>,
    lossy: bool,
    broken: bool,
}

impl ConnectionEnds {
    fn judge(&self, connection: &ScenarioConnection) -> Result<(), String> {
        if let Opening::Guest(ConnectResult::Fail(_) | ConnectResult::FailAfter(..) | ConnectResult::Never) =
            connection.opening
        {
            return match (self.guest, self.host) {
                (Some(ConnectionEnd::Refused), None) => Ok(()),
                ends => Err(format!("refused, but ended as {ends:?}")),
            };
        }
        if connection.opening == Opening::HostToClosedPort {
            return match (self.guest, self.host) {
                (None, Some(ConnectionEnd::Reset)) => Ok(()),
                ends => Err(format!("the port is closed, but ended as {ends:?}")),
            };
        }
        if self.broken {
            return self.prefixes();
        }
        let resets = |end| matches!(end, FinalAction::Reset(_));
        match (resets(connection.guest.end), resets(connection.host.end)) {
            (false, false) => self.closed(),
            (true, false) => self.reset(self.guest, self.host, "guest"),
            (false, true) => self.reset(self.host, self.guest, "host"),
            (true, true) => self.both(),
        }?;
        self.prefixes()
    }

    fn closed(&self) -> Result<(), String> {
        let ends = (self.guest, self.host);
        // In some of a hundred thousand worlds all retransmissions of a handshake segment are lost.
        let unopened = self.guest_app.is_none() && self.host != Some(ConnectionEnd::Closed);
        if unopened && self.lossy && matches!(self.guest, None | Some(ConnectionEnd::Refused)) {
            return Ok(());
        }
        if ends != (Some(ConnectionEnd::Closed), Some(ConnectionEnd::Closed)) {
            return Err(format!("closed in order, but ended as {ends:?}"));
        }
        let amounts = |app: &Option<SimApp>| app.as_ref().map(|app| (app.sent(), app.received()));
        let (guest, host) = (amounts(&self.guest_app), amounts(&self.host_app));
        if guest.map(|(sent, received)| (received, sent)) != host {
            return Err(format!("guest sent and received {guest:?}, host {host:?}"));
        }
        Ok(())
    }

    /// Checks a connection that one side has reset (`by`): the other side (`of`) must have observed the reset, unless
    /// the network lost it.
    fn reset(&self, by: Option<ConnectionEnd>, of: Option<ConnectionEnd>, who: &str) -> Result<(), String> {
        let fits = match (by, of) {
            (Some(ConnectionEnd::Aborted), Some(ConnectionEnd::Reset)) => true,
            // The reset came before the guest had the connection.
            (Some(ConnectionEnd::Aborted), Some(ConnectionEnd::Refused) | None) => who == "host",
            (Some(ConnectionEnd::Aborted), Some(ConnectionEnd::GaveUp)) => self.lossy,
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(format!(
                "reset by the {who}, but ended as {:?}",
                (self.guest, self.host)
            )),
        }
    }

    fn both(&self) -> Result<(), String> {
        let allowed = |outcome: Option<ConnectionEnd>| match outcome {
            None | Some(ConnectionEnd::Aborted | ConnectionEnd::Reset | ConnectionEnd::Refused) => true,
            Some(ConnectionEnd::GaveUp) => self.lossy,
            Some(ConnectionEnd::Closed) => false,
        };
        let aborted = [self.guest, self.host].contains(&Some(ConnectionEnd::Aborted));
        match aborted && allowed(self.guest) && allowed(self.host) {
            true => Ok(()),
            false => Err(format!(
                "reset by both, but ended as {:?}",
                (self.guest, self.host)
            )),
        }
    }

    /// Checks that each side has received no more bytes than the other has sent.
    fn prefixes(&self) -> Result<(), String> {
        let (Some(guest), Some(host)) = (&self.guest_app, &self.host_app) else {
            return Ok(());
        };
        if guest.received() > host.sent() || host.received() > guest.sent() {
            return Err("more was received than sent".into());
        }
        Ok(())
    }
}

/// Returns the number of connections that should have been established and that the guest's application never got.
pub(super) fn unopened<G: Guest>(scenario: &Scenario, world: &SimWorld<G>) -> usize {
    let guests = world.guest.reports();
    let stands = |connection: &&ScenarioConnection| {
        matches!(
            connection.opening,
            Opening::Host | Opening::Guest(ConnectResult::Now | ConnectResult::After(_))
        ) && !matches!(connection.host.end, FinalAction::Reset(_))
    };
    let arrived = |connection: &&ScenarioConnection| {
        guests
            .iter()
            .any(|report| report.port == connection.port && report.app.is_some())
    };
    scenario
        .connections
        .iter()
        .filter(stands)
        .filter(|connection| !arrived(connection))
        .count()
}

/// Returns the number of applications, on both sides, that gave up after a time without progress.
pub(super) fn gave_up<G: Guest>(world: &SimWorld<G>) -> usize {
    let gave_up = |outcome: Option<ConnectionEnd>| outcome == Some(ConnectionEnd::GaveUp);
    let guests = world
        .guest
        .reports()
        .into_iter()
        .filter(|report| gave_up(report.outcome))
        .count();
    let hosts = world
        .host
        .reports()
        .filter(|report| gave_up(report.app.as_ref().and_then(SimApp::outcome)))
        .count();
    guests + hosts
}
