//! The host's resolvers, and which of them are worth asking.

use core::net::SocketAddr;
use core::time::Duration;

use crate::Instant;

/// In order of preference.
#[derive(Debug)]
pub(super) struct Resolvers(Vec<Resolver>);

#[derive(Clone, Copy, Debug)]
struct Resolver {
    address: SocketAddr,
    /// When it last answered.
    answered: Option<Instant>,
    /// Until when it is passed over.
    dead_until: Instant,
}

impl Resolvers {
    pub(super) fn new(addresses: &[SocketAddr]) -> Self {
        let mut resolvers = Self(Vec::new());
        resolvers.set(addresses);
        resolvers
    }

    /// Takes a new list; what is known of those in both stays known.
    pub(super) fn set(&mut self, addresses: &[SocketAddr]) {
        let known = |address| self.0.iter().find(|known| known.address == address);
        self.0 = addresses
            .iter()
            .map(|&address| {
                known(address).copied().unwrap_or(Resolver {
                    address,
                    answered: None,
                    dead_until: Instant::default(),
                })
            })
            .collect();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The first that is alive. If none is, the one that has been dead for longest.
    pub(super) fn first(&self, now: Instant) -> Option<SocketAddr> {
        let alive = self.0.iter().find(|resolver| resolver.dead_until <= now);
        alive
            .or_else(|| self.0.iter().min_by_key(|resolver| resolver.dead_until))
            .map(|resolver| resolver.address)
    }

    /// Returns the resolver to ask when `asked` did not answer: the next one that is alive, going round; if none is, the next one. It
    /// is `asked` itself where there is no other.
    pub(super) fn after(&self, asked: Option<SocketAddr>, now: Instant) -> Option<SocketAddr> {
        match self.place(asked) {
            Some(place) => pick(self.round(place + 1), now),
            None => self.first(now),
        }
    }

    /// Returns the resolver to ask when `asked` would not answer, nor any of those `before` it: the next one that is none of them,
    /// sooner one that is alive.
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

    /// All of them, from one on.
    fn round(&self, start: usize) -> impl Iterator<Item = &Resolver> + Clone {
        let (before, after) = self.0.split_at(start);
        after.iter().chain(before)
    }

    pub(super) fn answered(&mut self, address: SocketAddr, now: Instant) {
        if let Some(resolver) = self.find(address) {
            resolver.answered = Some(now);
            resolver.dead_until = Instant::default();
        }
    }

    /// `address` has left a query unanswered since `asked`. If it has answered others since, the name was to blame.
    pub(super) fn silent(&mut self, address: SocketAddr, asked: Instant, now: Instant) {
        if let Some(resolver) = self.find(address)
            && resolver.answered.is_none_or(|answered| answered < asked)
        {
            resolver.dead_until = now + DEAD;
        }
    }

    /// `address` cannot be reached.
    pub(super) fn refused(&mut self, address: SocketAddr, now: Instant) {
        if let Some(resolver) = self.find(address) {
            resolver.dead_until = now + DEAD;
        }
    }

    fn find(&mut self, address: SocketAddr) -> Option<&mut Resolver> {
        self.0.iter_mut().find(|resolver| resolver.address == address)
    }
}

/// The first that is alive; if none is, the first.
fn pick<'a>(mut round: impl Iterator<Item = &'a Resolver> + Clone, now: Instant) -> Option<SocketAddr> {
    let next = round.clone().next();
    round
        .find(|resolver| resolver.dead_until <= now)
        .or(next)
        .map(|resolver| resolver.address)
}

/// The time for which a resolver that does not answer is not asked first.
const DEAD: Duration = Duration::from_secs(30);
