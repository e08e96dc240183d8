//! The host's DNS resolvers, and the choice of the resolver for a query.

use core::net::SocketAddr;
use core::time::Duration;

use crate::Instant;
use crate::state::{Reader, StateError, Writer, record};

/// The host's DNS resolvers in order of preference.
#[derive(Debug)]
pub(super) struct Resolvers(Vec<Resolver>);

/// A resolver of the host with the state by which it is chosen or skipped.
#[derive(Clone, Copy, Debug)]
struct Resolver {
    address: SocketAddr,
    /// Time of the resolver's last response.
    answered: Option<Instant>,
    /// Time until which the resolver is skipped because it did not respond or could not be reached.
    skipped_until: Instant,
}

record! { Resolver { address, answered, skipped_until } }

impl Resolvers {
    pub(super) fn new(addresses: &[SocketAddr]) -> Self {
        let mut resolvers = Self(Vec::new());
        resolvers.set(addresses);
        resolvers
    }

    /// Replaces the list of resolvers. The state of resolvers that are in both lists is kept.
    pub(super) fn set(&mut self, addresses: &[SocketAddr]) {
        let known = |address| self.0.iter().find(|known| known.address == address);
        self.0 = addresses
            .iter()
            .map(|&address| {
                known(address).copied().unwrap_or(Resolver {
                    address,
                    answered: None,
                    skipped_until: Instant::default(),
                })
            })
            .collect();
    }

    /// Appends what is known about the resolvers.
    pub(super) fn save(&self, to: &mut Writer<'_>) {
        let Self(resolvers) = self;
        to.put(resolvers);
    }

    /// Reads what is known about those of the resolvers that are in this list.
    pub(super) fn load(&mut self, from: &mut Reader<'_>) -> Result<(), StateError> {
        for known in from.get::<Vec<Resolver>>()? {
            if let Some(resolver) = self.find(known.address) {
                *resolver = known;
            }
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the first resolver that is not skipped. If all are skipped, returns the one that has been skipped for
    /// longest.
    pub(super) fn first(&self, now: Instant) -> Option<SocketAddr> {
        let usable = self.0.iter().find(|resolver| resolver.skipped_until <= now);
        usable
            .or_else(|| self.0.iter().min_by_key(|resolver| resolver.skipped_until))
            .map(|resolver| resolver.address)
    }

    /// Returns the resolver to query after `asked` did not respond: the next resolver, in circular order, that is not
    /// skipped, or the next one if all are skipped. It is `asked` itself if there is no other.
    pub(super) fn after(&self, asked: Option<SocketAddr>, now: Instant) -> Option<SocketAddr> {
        match self.place(asked) {
            Some(place) => pick(self.round(place + 1), now),
            None => self.first(now),
        }
    }

    /// Returns the resolver to query after `asked` and the resolvers in `before` responded with errors: the next
    /// resolver that is none of these, preferably one that is not skipped.
    pub(super) fn untried(
        &self,
        asked: Option<SocketAddr>,
        before: &[SocketAddr],
        now: Instant,
    ) -> Option<SocketAddr> {
        let round = self.round(self.place(asked).map_or(0, |place| place + 1));
        let is_new =
            |resolver: &&Resolver| Some(resolver.address) != asked && !before.contains(&resolver.address);
        pick(round.filter(is_new), now)
    }

    fn place(&self, address: Option<SocketAddr>) -> Option<usize> {
        self.0
            .iter()
            .position(|resolver| Some(resolver.address) == address)
    }

    /// Returns all resolvers in circular order, starting at the index `start`.
    fn round(&self, start: usize) -> impl Iterator<Item = &Resolver> + Clone {
        let (before, after) = self.0.split_at(start);
        after.iter().chain(before)
    }

    pub(super) fn answered(&mut self, address: SocketAddr, now: Instant) {
        if let Some(resolver) = self.find(address) {
            resolver.answered = Some(now);
            resolver.skipped_until = Instant::default();
        }
    }

    /// Records that the resolver `address` has not responded to a query sent at `asked`. It is not skipped if it has
    /// responded to another query since.
    pub(super) fn silent(&mut self, address: SocketAddr, asked: Instant, now: Instant) {
        if let Some(resolver) = self.find(address)
            && resolver.answered.is_none_or(|answered| answered < asked)
        {
            resolver.skipped_until = now + SKIP_TIME;
        }
    }

    /// Records that the resolver `address` cannot be reached, so that it is skipped.
    pub(super) fn refused(&mut self, address: SocketAddr, now: Instant) {
        if let Some(resolver) = self.find(address) {
            resolver.skipped_until = now + SKIP_TIME;
        }
    }

    fn find(&mut self, address: SocketAddr) -> Option<&mut Resolver> {
        self.0.iter_mut().find(|resolver| resolver.address == address)
    }
}

/// Returns the first resolver in `round` that is not skipped; if all are skipped, the first one.
fn pick<'a>(mut round: impl Iterator<Item = &'a Resolver> + Clone, now: Instant) -> Option<SocketAddr> {
    let next = round.clone().next();
    round
        .find(|resolver| resolver.skipped_until <= now)
        .or(next)
        .map(|resolver| resolver.address)
}

/// Time for which a resolver that did not respond is skipped.
const SKIP_TIME: Duration = Duration::from_secs(30);
