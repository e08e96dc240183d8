//! Roles of the clients of a server. Each socket file has one, so that the permissions of the file decide who has it.

use std::fmt::Display;

use crate::http::HttpResponse;

/// Role of the clients of a server, by which their requests are limited. Each [`Route`](crate::server::Route) names the
/// role that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Clients inspect and change the instance, and decide about flows.
    Operate,
    /// Clients inspect the instance.
    Read,
    /// The client decides about flows.
    Decide,
    /// Clients read the metrics.
    Measure,
}

impl Role {
    /// Returns true if clients of this role may send the requests that need the role `needed`.
    pub(crate) const fn includes(self, needed: Self) -> bool {
        match self {
            Self::Operate => true,
            Self::Read => matches!(needed, Self::Read | Self::Measure),
            Self::Decide => matches!(needed, Self::Decide),
            Self::Measure => matches!(needed, Self::Measure),
        }
    }

    /// Returns the response to a request for `path` that clients of this role may not send.
    pub(crate) fn refusal(self, path: impl Display) -> HttpResponse {
        match self {
            Self::Read => HttpResponse::problem(
                403,
                "this socket permits no changes (try: the socket of --control)",
            ),
            Self::Operate | Self::Decide | Self::Measure => no_resource(path),
        }
    }
}

/// Returns the response to a request for a path that a server does not have.
pub(crate) fn no_resource(path: impl Display) -> HttpResponse {
    HttpResponse::problem(404, format_args!("no such resource: {path}"))
}
