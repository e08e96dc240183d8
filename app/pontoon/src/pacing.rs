//! Way in which the engine waits.

/// Way in which the threads of an engine wait for input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pacing {
    /// A thread sleeps when it has no work.
    Event,
    /// A thread spins for a short time before it sleeps, if another CPU can do the work that it waits for: round trips take
    /// about half as long.
    Hybrid,
    /// A thread never sleeps, and occupies a CPU.
    Poll,
}

impl From<Pacing> for pontoon_worker::Pacing {
    fn from(pacing: Pacing) -> Self {
        match pacing {
            Pacing::Event => Self::Event,
            Pacing::Hybrid => Self::Hybrid,
            Pacing::Poll => Self::Poll,
        }
    }
}
