//! The client's side of the conversation with whoever started it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::job::{Findings, Job, Order, Ports, Word};

use super::{failed, say};

/// The order under way.
pub(crate) struct Stage {
    server: IpAddr,
    order: Order,
    warm_up: Duration,
    duration: Duration,
}

impl Stage {
    /// # Errors
    /// `Failed`: a time that is none.
    pub(crate) fn new(server: IpAddr, order: Order) -> Result<Self, Word> {
        let time = |seconds: f64| {
            Duration::try_from_secs_f64(seconds).map_err(|error| failed(format_args!("{seconds} s: {error}")))
        };
        Ok(Self {
            server,
            warm_up: time(order.warm_up)?,
            duration: time(order.duration)?.max(SHORTEST),
            order,
        })
    }

    pub(crate) fn job(&self) -> &Job {
        &self.order.job
    }

    pub(crate) fn ports(&self) -> &Ports {
        &self.order.ports
    }

    /// The server's address with `port`.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.server, port)
    }

    pub(crate) fn warm_up(&self) -> Duration {
        self.warm_up
    }

    pub(crate) fn duration(&self) -> Duration {
        self.duration
    }

    /// How long nothing may move. A wait that begins when the measurement's time is up ends when three times that have
    /// passed.
    pub(crate) fn patience(&self) -> Duration {
        self.duration * 2
    }

    /// Says that the measurement begins.
    pub(crate) fn begin(&mut self) -> Result<(), Word> {
        say(&Word::Begin).map_err(failed)
    }

    /// Says what was found, and waits to be released. Whatever the caller holds stays open so long, and what it has
    /// running goes on: counters read at `Begin` and at `End` were both read under load.
    pub(crate) fn end(&mut self, findings: Findings) -> Result<(), Word> {
        say(&Word::End(findings)).map_err(failed)?;
        io::copy(&mut io::stdin(), &mut io::sink()).map_err(failed)?;
        Ok(())
    }

    /// Only stays.
    pub(crate) fn idle(&mut self) -> Result<(), Word> {
        std::thread::sleep(self.warm_up);
        self.begin()?;
        std::thread::sleep(self.duration);
        self.end(Findings::default())
    }
}

/// A socket's timeout of zero would be none.
const SHORTEST: Duration = Duration::from_millis(1);
