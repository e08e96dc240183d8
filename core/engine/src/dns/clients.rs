//! The clients of one upstream query, with the parts of the response that differ between them: id and letter case.

use core::net::SocketAddr;

use super::message::Query;

/// A client that waits for a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Client {
    /// The guest's address and port.
    pub(super) guest: SocketAddr,
    /// The address of the forwarder to which the client sent its query.
    pub(super) server: SocketAddr,
    id: [u8; 2],
    case: Case,
}

impl Client {
    /// Returns the client that sent `query` from `guest` to `server`.
    pub(super) fn new(guest: SocketAddr, server: SocketAddr, query: &Query) -> Self {
        Self {
            guest,
            server,
            id: query.id(),
            case: Case::of(query.name()),
        }
    }

    /// Sets the id and the letter case of the question in a response to those of this client's `query`.
    pub(super) fn address(&self, answer: &mut [u8], query: &Query) {
        answer[..2].copy_from_slice(&self.id);
        self.case.apply(&mut answer[query.name_range()]);
    }
}

/// The clients of one query. Most queries have one, for which nothing is allocated.
#[derive(Debug)]
pub(super) struct Clients {
    first: Client,
    others: Vec<Client>,
}

impl Clients {
    /// One client.
    pub(super) const fn new(first: Client) -> Self {
        Self {
            first,
            others: Vec::new(),
        }
    }

    /// All clients, in the order of their queries.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Client> {
        core::iter::once(&self.first).chain(&self.others)
    }

    /// The number of clients.
    pub(super) const fn len(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns true if as many clients wait as are allowed.
    pub(super) const fn is_full(&self) -> bool {
        self.len() >= LIMIT
    }

    /// Adds a client.
    pub(super) fn add(&mut self, client: Client) {
        debug_assert!(!self.is_full());
        self.others.push(client);
    }
}

/// The upper-case letters of a name, a bit for each octet. Clients mix the case of letters as a further defence against
/// forged answers (draft-vixie-dnsext-dns0x20).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Case([u64; 4]);

impl Case {
    fn of(name: &[u8]) -> Self {
        let mut case = Self::default();
        for (at, octet) in name.iter().enumerate() {
            case.0[at / 64] |= u64::from(octet.is_ascii_uppercase()) << (at % 64);
        }
        case
    }

    /// Lengths of labels are at most 63, below every letter.
    fn apply(self, name: &mut [u8]) {
        for (at, octet) in name.iter_mut().enumerate() {
            if self.0[at / 64] >> (at % 64) & 1 == 1 {
                octet.make_ascii_uppercase();
            } else {
                octet.make_ascii_lowercase();
            }
        }
    }
}

/// The limit on clients of one query. A query is compared with the queries of all of them.
const LIMIT: usize = 1_024;
