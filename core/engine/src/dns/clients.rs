//! The clients that wait for the response to one query, with the parts of the response that differ between them: id and
//! letter case of the question.

use core::net::SocketAddr;

use super::message::Query;
use crate::state::{Reader, Record, StateError, Writer, record};

/// A client in the guest that waits for a DNS response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Client {
    /// Guest address and port from which the client sent its query.
    pub(super) guest: SocketAddr,
    /// The forwarder's address to which the client sent its query.
    pub(super) server: SocketAddr,
    id: [u8; 2],
    case: LetterCase,
}

record! { Client { guest, server, id, case } }

impl Client {
    /// Creates the client that sent `query` from `guest` to `server`.
    pub(super) fn new(guest: SocketAddr, server: SocketAddr, query: &Query) -> Self {
        Self {
            guest,
            server,
            id: query.id(),
            case: LetterCase::of(query.name()),
        }
    }

    /// Sets the id and the letter case of the question in the response `answer` to those of this client's query.
    pub(super) fn address(&self, answer: &mut [u8], query: &Query) {
        answer[..2].copy_from_slice(&self.id);
        self.case.apply(&mut answer[query.name_range()]);
    }
}

/// The clients of one pending query. Most queries have one client, for which no memory is allocated.
#[derive(Debug)]
pub(super) struct Clients {
    first: Client,
    others: Vec<Client>,
}

record! { Clients { first, others } }

impl Clients {
    /// Creates a list of one client.
    pub(super) const fn new(first: Client) -> Self {
        Self {
            first,
            others: Vec::new(),
        }
    }

    /// Returns all clients, in the order in which their queries arrived.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Client> {
        core::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the number of clients.
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

/// Positions of the upper-case letters of a domain name, one bit for each octet. Clients mix the case of letters as a
/// further defence against forged responses (draft-vixie-dnsext-dns0x20).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LetterCase([u64; 4]);

impl Record for LetterCase {
    fn save(&self, to: &mut Writer<'_>) {
        let Self(bits) = self;
        to.put(bits);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        from.get().map(Self)
    }
}

impl LetterCase {
    fn of(name: &[u8]) -> Self {
        let mut case = Self::default();
        for (at, octet) in name.iter().enumerate() {
            case.0[at / 64] |= u64::from(octet.is_ascii_uppercase()) << (at % 64);
        }
        case
    }

    /// Writes this letter case into `name`. Octets with lengths of labels do not change, because they are at most 63,
    /// below every letter.
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

/// Maximum number of clients of one pending query. Each new query is compared with the clients of all pending queries
/// for its question.
pub(super) const LIMIT: usize = 1_024;
