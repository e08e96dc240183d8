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

    /// Whom to ask when `asked` did not answer: the next one that is alive, going round; if none is, the next one. It
    /// is `asked` itself where there is no other.
    pub(super) fn after(&self, asked: Option<SocketAddr>, now: Instant) -> Option<SocketAddr> {
        let place = self.0.iter().position(|resolver| Some(resolver.address) == asked);
        let Some(place) = place else {
            return self.first(now);
        };
        let (before, after) = self.0.split_at(place + 1);
        let mut round = after.iter().chain(before);
        let next = round.clone().next();
        round
            .find(|resolver| resolver.dead_until <= now)
            .or(next)
            .map(|resolver| resolver.address)
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

/// How long a dead resolver is passed over.
const DEAD: Duration = Duration::from_secs(30);
