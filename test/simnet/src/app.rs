//! Simulated applications at the two ends of a connection, with the same script type for guest and host.
//!
//! An application decides only how many bytes are read and written; [`crate::pattern`] computes the contents of
//! streams.

use core::time::Duration;

use pontoon_engine::Instant;

use crate::clock::earlier;
use crate::rng::Rng;

/// The actions of an application on its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Number of bytes that the application sends, in addition to echoed ones.
    pub send: u64,
    /// True if the application also sends as many bytes as it has read.
    pub echo: bool,
    /// Rate at which the application reads.
    pub read: TransferPace,
    /// Rate at which the application writes.
    pub write: TransferPace,
    /// A pause during which the application does not read.
    pub stall: Option<ReadPause>,
    /// The last action of the application on its connection.
    pub end: FinalAction,
    /// Time without progress after which the application resets the connection.
    pub patience: Duration,
}

/// The rate at which an application reads or writes: `chunk` bytes in each interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferPace {
    /// Largest number of bytes in one interval.
    pub chunk: u64,
    /// Length of the interval; zero removes the limit of `chunk` bytes.
    pub every: Duration,
}

/// A pause during which an application does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPause {
    /// Number of bytes read after which the pause begins.
    pub after: u64,
    /// Duration of the pause in virtual time.
    pub time: Duration,
}

/// The last action of an application on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalAction {
    /// Closes the application's direction when all bytes are sent, and reads until the other side closes.
    AfterSending,
    /// Closes the application's direction when all bytes are sent and the other side has closed.
    AfterPeer,
    /// Resets the connection as soon as the sum of bytes read and sent reaches this number.
    Reset(u64),
}

/// The end of a connection as its application observes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// Both directions were closed in order.
    Closed,
    /// The other side has reset the connection.
    Reset,
    /// The application has reset the connection, as its script requires ([`FinalAction::Reset`]).
    Aborted,
    /// The application has reset the connection after a time without progress.
    GaveUp,
    /// The connection was never established: a reset arrived or the connect timed out.
    Refused,
}

/// The next action of an application on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppAction {
    /// No action is due.
    None,
    /// Close the application's direction of the connection.
    Close,
    /// Reset the application's connection.
    Reset,
}

impl Script {
    /// A script that sends nothing, reads everything at once, and closes after the other side.
    pub const SINK: Self = Self {
        send: 0,
        echo: false,
        read: TransferPace::UNLIMITED,
        write: TransferPace::UNLIMITED,
        stall: None,
        end: FinalAction::AfterPeer,
        patience: Duration::from_secs(600),
    };

    /// Returns a script that sends `bytes` bytes and closes after the other side.
    #[must_use]
    pub const fn sending(bytes: u64) -> Self {
        Self {
            send: bytes,
            ..Self::SINK
        }
    }

    /// Returns a script that sends `bytes` bytes and then closes its direction.
    #[must_use]
    pub const fn source(bytes: u64) -> Self {
        Self {
            send: bytes,
            end: FinalAction::AfterSending,
            ..Self::SINK
        }
    }

    /// Returns a script that sends back all bytes that it reads.
    #[must_use]
    pub const fn echo() -> Self {
        Self {
            echo: true,
            ..Self::SINK
        }
    }
}

impl TransferPace {
    /// Pace without a limit: as fast as the connection allows.
    pub const UNLIMITED: Self = Self {
        chunk: u64::MAX,
        every: Duration::ZERO,
    };
}

/// A running application: its script and its state.
#[derive(Clone, Debug)]
pub struct SimApp {
    script: Script,
    rng: Rng,
    sent: u64,
    received: u64,
    read_at: Instant,
    write_at: Instant,
    stalled: bool,
    moved_at: Instant,
    peer_ended: bool,
    closed: bool,
    outcome: Option<ConnectionEnd>,
}

impl SimApp {
    /// Starts an application with this script.
    #[must_use]
    pub fn new(script: Script, rng: Rng, now: Instant) -> Self {
        Self {
            script,
            rng,
            sent: 0,
            received: 0,
            read_at: now,
            write_at: now,
            stalled: false,
            moved_at: now,
            peer_ended: false,
            closed: false,
            outcome: None,
        }
    }

    /// Returns how many of the `available` received bytes the application reads now.
    pub fn read(&mut self, available: u64, now: Instant) -> u64 {
        if let Some(stall) = self.script.stall
            && !self.stalled
            && self.received >= stall.after
        {
            self.stalled = true;
            self.read_at = now + stall.time;
            self.moved_at = self.read_at;
        }
        if self.outcome.is_some() || available == 0 || now < self.read_at {
            return 0;
        }
        let to_stall = match self.script.stall {
            Some(stall) if !self.stalled => stall.after - self.received,
            _ => u64::MAX,
        };
        let len = self.amount(self.script.read, available.min(to_stall));
        self.read_at = now + self.script.read.every;
        self.received += len;
        self.moved_at = now;
        len
    }

    /// Returns the number of bytes that the application writes now, at most `room`.
    pub fn write(&mut self, room: u64, now: Instant) -> u64 {
        let left = self.to_send() - self.sent;
        if self.outcome.is_some() || self.closed || left == 0 || room == 0 || now < self.write_at {
            return 0;
        }
        let len = self.amount(self.script.write, left.min(room));
        self.write_at = now + self.script.write.every;
        self.sent += len;
        self.moved_at = now;
        len
    }

    /// Records that the application has read the end of the other side's stream.
    pub fn peer_ended(&mut self, now: Instant) {
        if !self.peer_ended {
            self.peer_ended = true;
            self.moved_at = now;
        }
        self.settle();
    }

    /// Records that the other side has reset the connection, or that the connection was never established.
    pub fn was_reset(&mut self, outcome: ConnectionEnd) {
        self.outcome.get_or_insert(outcome);
    }

    /// Returns the next action on the connection. [`AppAction::Close`] and [`AppAction::Reset`] are returned once.
    pub fn act(&mut self, now: Instant) -> AppAction {
        if self.outcome.is_some() {
            return AppAction::None;
        }
        if now.since(self.moved_at) >= self.script.patience {
            self.outcome = Some(ConnectionEnd::GaveUp);
            return AppAction::Reset;
        }
        let all_sent = self.sent == self.to_send() && (!self.script.echo || self.peer_ended);
        let close = match self.script.end {
            FinalAction::Reset(after) if self.sent + self.received >= after => {
                self.outcome = Some(ConnectionEnd::Aborted);
                return AppAction::Reset;
            }
            FinalAction::Reset(_) => false,
            FinalAction::AfterSending => all_sent,
            FinalAction::AfterPeer => all_sent && self.peer_ended,
        };
        if close && !self.closed {
            self.closed = true;
            self.moved_at = now;
            self.settle();
            return AppAction::Close;
        }
        AppAction::None
    }

    /// Returns the time of the application's next action if `available` bytes can be read and `room` bytes written.
    #[must_use]
    pub fn next(&self, available: u64, room: u64) -> Option<Instant> {
        if self.outcome.is_some() {
            return None;
        }
        let read = (available > 0).then_some(self.read_at);
        let write = (room > 0 && !self.closed && self.sent < self.to_send()).then_some(self.write_at);
        earlier(earlier(read, write), Some(self.moved_at + self.script.patience))
    }

    /// Returns how the connection has ended, or `None` while it is open.
    #[must_use]
    pub fn outcome(&self) -> Option<ConnectionEnd> {
        self.outcome
    }

    /// Returns the number of bytes that the application has read.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of bytes that the application has written.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns true if the application has closed its direction.
    #[must_use]
    pub fn closed(&self) -> bool {
        self.closed
    }

    /// Returns true if the application has read the end of the other side's stream.
    #[must_use]
    pub fn saw_end(&self) -> bool {
        self.peer_ended
    }

    /// Returns the script of the application.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.script
    }

    fn to_send(&self) -> u64 {
        self.script.send + if self.script.echo { self.received } else { 0 }
    }

    fn amount(&mut self, pace: TransferPace, most: u64) -> u64 {
        if pace.every.is_zero() {
            most
        } else {
            self.rng.within(1..=pace.chunk.min(most).max(1)).min(most)
        }
    }

    fn settle(&mut self) {
        if self.closed && self.peer_ended {
            self.outcome.get_or_insert(ConnectionEnd::Closed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Instant = Instant(1_000_000);

    #[test]
    fn source_closes_first_and_echo_last() {
        let mut source = SimApp::new(Script::source(10), Rng::new(1), T0);
        let mut echo = SimApp::new(Script::echo(), Rng::new(2), T0);
        assert_eq!(source.write(100, T0), 10);
        assert_eq!(source.act(T0), AppAction::Close);
        assert_eq!(source.act(T0), AppAction::None);
        assert_eq!(echo.read(10, T0), 10);
        assert_eq!((echo.write(4, T0), echo.act(T0)), (4, AppAction::None));
        echo.peer_ended(T0);
        assert_eq!((echo.act(T0), echo.write(100, T0)), (AppAction::None, 6));
        assert_eq!(
            (echo.act(T0), echo.outcome()),
            (AppAction::Close, Some(ConnectionEnd::Closed))
        );
        assert_eq!((source.read(10, T0), source.outcome()), (10, None));
        source.peer_ended(T0);
        assert_eq!(source.outcome(), Some(ConnectionEnd::Closed));
    }

    #[test]
    fn stall_begins_at_its_byte_and_timeout_ends_the_application() {
        let script = Script {
            stall: Some(ReadPause {
                after: 5,
                time: Duration::from_secs(9),
            }),
            patience: Duration::from_secs(20),
            ..Script::SINK
        };
        let mut app = SimApp::new(script, Rng::new(1), T0);
        assert_eq!(app.read(8, T0), 5);
        assert_eq!(app.read(3, T0), 0);
        let resumed = T0 + Duration::from_secs(9);
        assert_eq!(app.next(3, 0), Some(resumed));
        assert_eq!(app.read(3, resumed), 3);
        let end = resumed + Duration::from_secs(20);
        assert_eq!((app.next(0, 0), app.act(resumed)), (Some(end), AppAction::None));
        assert_eq!(
            (app.act(end), app.outcome()),
            (AppAction::Reset, Some(ConnectionEnd::GaveUp))
        );
    }
}
