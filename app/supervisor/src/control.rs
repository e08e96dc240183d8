//! Control socket of a guest's network.
//!
//! The supervisor's one loop serves it, and no packet waits for that, as the engine processes packets. Statistics are in memory
//! that the workers share with this process. Changes are confirmed by the workers, in rounds, one at a time; all clients that wait
//! share the replies of a round. The resources are the routes of the [`api`], each in a file of its own.

mod api;
mod decider_fd;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use pontoon_control::Metrics;
use pontoon_control::role::Role;
use pontoon_control::server::Server;
use pontoon_process::error::Error;
use pontoon_process::guest_namespaces::GuestNamespaces;
use pontoon_worker::Update;
use pontoon_worker::messages::Report;
use rustix::event::PollFd;
use tracing::level_filters::LevelFilter;

use crate::capture::Capture;
use crate::events::Events;
use crate::forward::Forwards;
use crate::options::PestoSocket;
use crate::publish::{Ports, Publish};
use crate::statistics::Statistics;
use api::Api;
pub(crate) use api::auto::GuestListeners;
use decider_fd::{Connection, DeciderDescriptor};

/// Servers of the control socket and of the metrics address of a guest, with their clients, and the API that handles the
/// requests.
pub(crate) struct Control {
    /// Server of the control socket, and server of the metrics address.
    servers: Vec<Server<Api>>,
    /// Connection to the decider of `--decider-fd`, until it is closed.
    decider: Option<DeciderDescriptor>,
    api: Api,
}

/// Initial state of the API, from the options of the guest's network.
pub(crate) struct ControlSetup {
    /// Egress statistics of the workers, and the egress rules.
    pub(crate) statistics: Statistics,
    /// True if the engine has a DNS forwarder.
    pub(crate) forwarder: bool,
    /// Ports that are published at the start.
    pub(crate) ports: Ports,
    /// Guest forwards at the start.
    pub(crate) forwards: Forwards,
    /// Events of flows, if the engine has memory for them.
    pub(crate) events: Option<Events>,
    /// Function that sets the log level of this process.
    pub(crate) set_log_level: fn(LevelFilter),
}

impl Control {
    /// Listens on a Unix socket at `path`, to which only this user may connect, and on the TCP address of `metrics`.
    ///
    /// # Errors
    /// The path or address is in use, or a socket cannot be created.
    pub(crate) fn open(
        path: Option<&Path>,
        metrics: Option<&Metrics>,
        served: ControlSetup,
    ) -> Result<Self, Error> {
        let mut servers = pontoon_control::open(path, metrics, api::ROUTES)?;
        let mut api = Api::new(served);
        api.set_own(servers.iter_mut().filter_map(|server| server.listener().port()));
        for server in &mut servers {
            api.add_own(server.listener().name());
        }
        Ok(Self {
            servers,
            decider: None,
            api,
        })
    }

    /// Requires a decider: a client of a Unix socket at `path`, to which only this user may connect, or the program at the
    /// other end of `descriptor`, or either.
    ///
    /// # Errors
    /// The path is in use, a socket cannot be created, or the descriptor is not a connected stream socket.
    pub(crate) fn require_decider(
        &mut self,
        path: Option<&Path>,
        descriptor: Option<OwnedFd>,
        deadline: Duration,
    ) -> Result<(), Error> {
        if let Some(path) = path {
            self.open_role(path, Role::Decide)?;
        }
        self.decider = descriptor.map(DeciderDescriptor::new).transpose()?;
        self.api.require_decider(deadline, self.decider.is_some());
        Ok(())
    }

    /// Listens on another Unix socket, at `path`, to which only this user may connect, for requests that `role` includes.
    ///
    /// # Errors
    /// The path is in use, or the socket cannot be created.
    pub(crate) fn open_role(&mut self, path: &Path, role: Role) -> Result<(), Error> {
        self.add(pontoon_control::open_role(path, role, api::ROUTES)?);
        Ok(())
    }

    /// Listens on a Unix socket at `path`, to which only this user may connect, for requests in the protocol of slirp4netns.
    ///
    /// # Errors
    /// The path is in use, or the socket cannot be created.
    pub(crate) fn open_slirp_api(&mut self, path: &Path) -> Result<(), Error> {
        self.add(pontoon_control::open_exchange(path, api::slirp::EXCHANGE)?);
        Ok(())
    }

    /// Listens on a Unix socket, to which only this user may connect, for requests in the protocol of pesto. `published` has the
    /// option values of the ports that are published.
    ///
    /// # Errors
    /// The path is in use, or the socket cannot be created.
    pub(crate) fn open_pesto(&mut self, socket: &PestoSocket, published: &[Publish]) -> Result<(), Error> {
        self.api.begin_pesto(published, socket.via);
        self.add(pontoon_control::open_exchange(
            &socket.path,
            api::pesto::EXCHANGE,
        )?);
        Ok(())
    }

    fn add(&mut self, mut server: Server<Api>) {
        self.api.add_own(server.listener().name());
        self.servers.push(server);
    }

    /// Returns true if clients connect by a socket file.
    pub(crate) fn has_file(&mut self) -> bool {
        let mut listeners = self.servers.iter_mut().map(Server::listener);
        listeners.any(|listener| listener.is_file())
    }

    /// Refuses clients of socket files that are in the namespaces `guest`, because the guest's processes may have the same
    /// user and files as this process.
    pub(crate) fn refuse(&mut self, guest: Option<GuestNamespaces>) {
        let guest = guest.map(Rc::new);
        let listeners = self.servers.iter_mut().map(Server::listener);
        for listener in listeners.filter(|listener| listener.is_file()) {
            listener.refuse(guest.clone());
        }
    }

    /// Returns the descriptors of the listening sockets and clients to poll.
    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let decider = self.decider.iter().map(DeciderDescriptor::poll_fd);
        self.servers.iter().flat_map(Server::poll_fds).chain(decider)
    }

    /// Returns the time to call [`Self::serve`] if no descriptor becomes ready earlier.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let servers = self.servers.iter().filter_map(Server::deadline);
        servers
            .chain(self.api.deadline())
            .chain(self.api.next_scan())
            .chain(self.decider.as_ref().and_then(DeciderDescriptor::deadline))
            .min()
    }

    /// Sets the source of the guest's listening ports.
    pub(crate) fn set_guest_listeners(&mut self, guest: GuestListeners) {
        self.api.set_guest_listeners(guest);
    }

    /// Sets the host's own addresses, which no target address of a published port may be.
    pub(crate) fn set_owned(&mut self, owned: &[IpNet]) {
        self.api.set_owned(owned);
    }

    /// Returns true if the supervisor waits for a report of the workers.
    pub(crate) fn is_asking(&self) -> bool {
        self.api.is_asking()
    }

    /// Begins a capture at the next call of [`Self::serve`].
    ///
    /// # Errors
    /// The file of the capture cannot be created.
    pub(crate) fn capture(&mut self, capture: &Capture, now: Instant) -> Result<(), Error> {
        self.api.capture(capture, now)
    }

    /// Reads requests of clients and writes responses. `send` sends an update to the engine.
    pub(crate) fn serve(&mut self, send: &mut dyn FnMut(Update), now: Instant) {
        self.api.expire(now);
        for server in &mut self.servers {
            server.serve(&mut self.api, now);
        }
        let state = self.decider.as_mut().map(|it| it.serve(&mut self.api, now));
        if state == Some(Connection::Closed) {
            self.decider = None;
            self.api.end_decider();
        }
        self.api.go_on(now);
        for update in self.api.take_outbox() {
            send(update);
        }
    }

    /// Sends pending queries again, to a restarted engine.
    pub(crate) fn ask_again(&mut self, send: &mut dyn FnMut(Update), now: Instant) {
        self.api.ask_again(now);
        self.serve(send, now);
    }

    /// Handles a report of a worker. `send` sends an update to the engine.
    pub(crate) fn take_report(&mut self, report: Report, send: &mut dyn FnMut(Update), now: Instant) {
        if self.api.take_report(report, now) {
            self.serve(send, now);
        }
        for update in self.api.take_outbox() {
            send(update);
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// Timeout for reports of the workers to a query.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
