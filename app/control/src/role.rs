//! Roles of the clients of a control socket. Each socket file has one, so that the permissions of the file decide who has it.

use crate::http::HttpResponse;

/// Role of the clients of a control socket, by which their requests are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Clients inspect and change the instance.
    Operate,
    /// Clients inspect the instance.
    Read,
}

impl Role {
    /// Returns true if clients may send requests with this method for this path.
    pub(crate) fn permits(self, method: &str, path: &str) -> bool {
        match self {
            Self::Operate => true,
            // The client that reads the requests for decisions is the decider.
            Self::Read => method == "GET" && path != DECISIONS,
        }
    }

    /// Returns the response to a request that the role does not permit.
    pub(crate) fn refusal(self) -> HttpResponse {
        let why = match self {
            Self::Operate => "this socket serves no such request",
            Self::Read => "this socket permits no changes (try: the socket of --control)",
        };
        HttpResponse::problem(403, why)
    }
}

/// Path of the requests for decisions about flows.
const DECISIONS: &str = "/v1/decisions";
