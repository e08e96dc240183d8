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

impl Pacing {
    pub(crate) fn of_engine(self) -> pontoon_worker::Pacing {
        match self {
            Self::Event => pontoon_worker::Pacing::Event,
            Self::Hybrid => pontoon_worker::Pacing::Hybrid,
            Self::Poll => pontoon_worker::Pacing::Poll,
        }
    }
}
