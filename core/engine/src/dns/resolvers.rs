//! The host's resolvers, and the choice between them.

use core::net::SocketAddr;
use core::time::Duration;

use crate::Instant;

/// In order of preference.
#[derive(Debug)]
pub(super) struct Resolvers(Vec<Resolver>);

#[derive(Clone, Copy, Debug)]
struct Resolver {
    address: SocketAddr,
    /// The time of its last response.
    answered: Option<Instant>,
    /// The time until which it is skipped.
    skipped_until: Instant,
}

impl Resolvers {
    pub(super) fn new(addresses: &[SocketAddr]) -> Self {
        let mut resolvers = Self(Vec::new());
        resolvers.set(addresses);
        resolvers
    }

    /// Replaces the list. The state of resolvers in both lists is kept.
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

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the first resolver that is not skipped. If all are, the one that has been skipped for longest.
    pub(super) fn first(&self, now: Instant) -> Option<SocketAddr> {
        let usable = self.0.iter().find(|resolver| resolver.skipped_until <= now);
        usable
            .or_else(|| self.0.iter().min_by_key(|resolver| resolver.skipped_until))
            .map(|resolver| resolver.address)
    }

    /// Returns the resolver to query after `asked` did not respond: the next one that is not skipped, in circular order; if all
    /// are, the next one. It is `asked` itself if there is no other.
    pub(super) fn after(&self, asked: Option<SocketAddr>, now: Instant) -> Option<SocketAddr> {
        match self.place(asked) {
            Some(place) => pick(self.round(place + 1), now),
            None => self.first(now),
        }
    }

    /// Returns the resolver to query after `asked` and those `before` it responded with errors: the next one that is none of
    /// them, preferably one that is not skipped.
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

    /// Returns all resolvers in circular order, starting with one of them.
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

    /// Records that `address` has not responded to a query since `asked`. If it has responded to others since, it is not
    /// skipped.
    pub(super) fn silent(&mut self, address: SocketAddr, asked: Instant, now: Instant) {
        if let Some(resolver) = self.find(address)
            && resolver.answered.is_none_or(|answered| answered < asked)
        {
            resolver.skipped_until = now + SKIP_TIME;
        }
    }

    /// Records that `address` cannot be reached.
    pub(super) fn refused(&mut self, address: SocketAddr, now: Instant) {
        if let Some(resolver) = self.find(address) {
            resolver.skipped_until = now + SKIP_TIME;
        }
    }

    fn find(&mut self, address: SocketAddr) -> Option<&mut Resolver> {
        self.0.iter_mut().find(|resolver| resolver.address == address)
    }
}

/// Returns the first that is not skipped; if all are, the first.
fn pick<'a>(mut round: impl Iterator<Item = &'a Resolver> + Clone, now: Instant) -> Option<SocketAddr> {
    let next = round.clone().next();
    round
        .find(|resolver| resolver.skipped_until <= now)
        .or(next)
        .map(|resolver| resolver.address)
}

/// The time for which a resolver that does not respond is skipped.
const SKIP_TIME: Duration = Duration::from_secs(30);
