//! Control sockets: HTTP with JSON over a Unix socket, as in `curl --unix-socket PATH http://pontoon/v1/stats`, and metrics
//! over TCP.
//!
//! A [`server`] is called by the loop of its process when a descriptor is ready, and never blocks the loop: a client that
//! sends an incomplete request is disconnected after a timeout. A server does not depend on the service; the resources are
//! a list of [routes](server::Route), which the supervisors of a guest and of a relay define, each with the
//! [role](role::Role) that it needs.

#![warn(missing_docs)]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use pontoon_process::Error;

mod connection;
pub mod hosts;
pub mod http;
pub mod listener;
pub mod metrics_text;
pub mod reply;
pub mod role;
pub mod server;

use hosts::Hosts;
use listener::Listener;
use role::Role;
use server::{Exchange, Protocol, Route, Server};

/// Options of the metrics endpoint, which is served over TCP.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Address and port to listen on.
    pub at: SocketAddr,
    /// Host names that requests may name in their `Host` field, besides addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// Opens a server of `routes` on a Unix socket at `path`, to which only this user may connect, and a server of the metrics
/// among them on the TCP address of `metrics`.
///
/// # Errors
/// The path or address is in use, or a socket cannot be created.
pub fn open<S>(
    path: Option<&Path>,
    metrics: Option<&Metrics>,
    routes: &'static [Route<S>],
) -> Result<Vec<Server<S>>, Error> {
    let mut servers = Vec::new();
    if let Some(path) = path {
        servers.push(open_role(path, Role::Operate, routes)?);
    }
    if let Some(metrics) = metrics {
        let protocol = Protocol::Http {
            routes,
            role: Role::Measure,
            hosts: Hosts::Named(metrics.hosts.clone()),
        };
        servers.push(Server::new(Listener::tcp(metrics.at)?, protocol));
    }
    Ok(servers)
}

/// Opens a server of those of `routes` that `role` includes, on a Unix socket at `path`, to which only this user may connect.
///
/// # Errors
/// The path is in use, or the socket cannot be created.
pub fn open_role<S>(path: &Path, role: Role, routes: &'static [Route<S>]) -> Result<Server<S>, Error> {
    let protocol = Protocol::Http {
        routes,
        role,
        hosts: Hosts::Any,
    };
    Ok(Server::new(Listener::open(path)?, protocol))
}

/// Opens a server on a Unix socket at `path`, to which only this user may connect, for one request of each client.
///
/// # Errors
/// The path is in use, or the socket cannot be created.
pub fn open_exchange<S>(path: &Path, exchange: Exchange<S>) -> Result<Server<S>, Error> {
    Ok(Server::new(Listener::open(path)?, Protocol::Exchange(exchange)))
}

/// Limit on the clients of a server. A further client replaces the one that has been idle for longest or, if none is idle,
/// has made no progress for longest.
pub const CLIENTS: usize = 16;

/// Maximum number of clients that a server refuses in one turn.
const REFUSALS: usize = 256;

/// Timeout for a client to send a request, and for it to read the response.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a client's connection without a request.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for which a client of an exchange that makes no progress keeps its place while others wait.
pub const EXCHANGE_GRACE: Duration = Duration::from_secs(2);

/// Number of unsent bytes at which no further part of a streamed body is requested, because the client does not read. It is
/// small, because the source of a stream may remove what is out of date.
pub const STREAM_BUFFER: usize = 16 << 10;

/// Delay of the next accept after an accept that failed for lack of a descriptor.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);
