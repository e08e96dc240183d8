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
    /// Returns true if clients may send requests with this method.
    pub(crate) fn permits(self, method: &str) -> bool {
        match self {
            Self::Operate => true,
            Self::Read => method == "GET",
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
