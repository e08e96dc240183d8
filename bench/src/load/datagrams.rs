//! The jobs `Datagrams` and `SegmentedDatagrams`: UDP in one direction, at a rate or as fast as possible,
//! counted by the server.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, send, sendmmsg};

use crate::job::{JobMessage, JobResults};

use super::client::JobClient;
use super::control::{Checkpoint, ControlConnection};
use super::{failed, socket, stalled_or_failed, unreachable};

/// Number of messages that one sendmmsg(2) sends.
const BATCH: usize = 64;

/// Time without an arriving datagram after which no more are assumed to be in flight.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// Interval at which the client requests the server's count after it has sent the last datagram.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Interval at which a sender with a rate wakes up to send the datagrams that are due.
const TICK: Duration = Duration::from_micros(100);

/// The largest delay for which a late sender compensates. Compensation of a longer one would be a burst.
const BACKLOG: Duration = Duration::from_millis(10);

/// Bytes of the session's number at the start of each datagram.
const TAG: usize = 8;

/// Runs the load client for the job `Datagrams`.
pub(crate) fn run(client: &mut JobClient, size: u16, rate: Option<f64>) -> Result<(), JobMessage> {
    let socket = socket::datagram_client(client.at(client.ports().datagram_sink), client.timeout())?;
    let mut payload = payload(size, 1)?;
    measure(client, |session, duration| {
        tag(&mut payload, size, session);
        let iov = [IoSlice::new(&payload)];
        let mut controls: Vec<_> = (0..BATCH).map(|_| SendAncillaryBuffer::default()).collect();
        let mut messages: Vec<_> = controls
            .iter_mut()
            .map(|control| MMsgHdr::new(&iov, control))
            .collect();
        send_for(duration, rate, |due| {
            let due = due.min(BATCH);
            sendmmsg(&socket, &mut messages[..due], SendFlags::empty())
        })
    })
}

/// Runs the load client for the job `SegmentedDatagrams`, with `segments` datagrams in each send.
pub(crate) fn run_segmented(
    client: &mut JobClient,
    size: u16,
    segments: u16,
    gro: bool,
) -> Result<(), JobMessage> {
    let port = if gro {
        client.ports().datagram_run_sink
    } else {
        client.ports().datagram_sink
    };
    let socket = socket::datagram_client(client.at(port), client.timeout())?;
    pontoon_sys::udp::set_segment(&socket, size)
        .map_err(|error| unreachable(format_args!("no UDP_SEGMENT of {size}: {error}")))?;
    let mut payload = payload(size, segments)?;
    measure(client, |session, duration| {
        tag(&mut payload, size, session);
        send_for(duration, None, |_| {
            send(&socket, &payload, SendFlags::empty())?;
            Ok(segments.into())
        })
    })
}

fn payload(size: u16, segments: u16) -> Result<Vec<u8>, JobMessage> {
    if usize::from(size) < TAG {
        return Err(failed(format_args!("datagrams must have at least {TAG} bytes")));
    }
    Ok(vec![b'd'; usize::from(size) * usize::from(segments)])
}

fn tag(payload: &mut [u8], size: u16, session: [u8; TAG]) {
    for datagram in payload.chunks_exact_mut(size.into()) {
        datagram[..TAG].copy_from_slice(&session);
    }
}

/// Number of datagrams that a sender has sent, and the time it took.
struct SentDatagrams {
    count: u64,
    seconds: f64,
}

fn measure(
    client: &mut JobClient,
    mut send: impl FnMut([u8; TAG], Duration) -> Result<SentDatagrams, JobMessage>,
) -> Result<(), JobMessage> {
    let mut control = ControlConnection::open(client)?;
    // Datagrams of the warm-up have session number 0: the server must not count those still in flight.
    send([0; TAG], client.warm_up())?;
    client.begin()?;
    let sent = send(control.session(), client.duration())?;
    let received = drain(&mut control, sent.count, client.timeout())?;
    if received.count > sent.count {
        return Err(failed(format_args!(
            "{} datagrams sent and {} received",
            sent.count, received.count
        )));
    }
    // The longer of both times is used: a queue that drains later, or a burst at the start, must not raise
    // the rate.
    let seconds = sent.seconds.max(received.seconds);
    client.end(JobResults {
        values: [
            ("per_s", received.count as f64 / seconds),
            ("sent_per_s", sent.count as f64 / sent.seconds),
            ("loss", 1.0 - received.count as f64 / sent.count as f64),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into(),
        ..JobResults::default()
    })
}

/// Waits until all `sent` datagrams have arrived, or until no more arrive for [`QUIET_TIME`].
fn drain(control: &mut ControlConnection, sent: u64, timeout: Duration) -> Result<Checkpoint, JobMessage> {
    let began = Instant::now();
    let (mut checkpoint, mut moved) = (control.checkpoint(0)?, began);
    while checkpoint.count < sent && moved.elapsed() < QUIET_TIME && began.elapsed() < timeout {
        std::thread::sleep(POLL_INTERVAL);
        let next = control.checkpoint_within(timeout.saturating_sub(began.elapsed()), 0)?;
        if next.count != checkpoint.count {
            moved = Instant::now();
        }
        checkpoint = next;
    }
    Ok(checkpoint)
}

/// Sends for `duration`. `send` receives the number of datagrams that are due, and returns how many it sent.
fn send_for(
    duration: Duration,
    rate: Option<f64>,
    mut send: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<SentDatagrams, JobMessage> {
    let began = Instant::now();
    let mut tokens = rate.map(|rate| TokenBucket::new(rate, began)).transpose()?;
    let mut count = 0;
    loop {
        let now = Instant::now();
        if now - began >= duration {
            let seconds = (now - began).as_secs_f64();
            return Ok(SentDatagrams { count, seconds });
        }
        let due = tokens.as_mut().map_or(BATCH, |tokens| tokens.due(now));
        if due == 0 {
            std::thread::sleep(TICK);
            continue;
        }
        match send(due) {
            Ok(sent) => {
                count += sent as u64;
                if let Some(tokens) = &mut tokens {
                    tokens.spend(sent);
                }
            }
            // ENOBUFS is a full queue, ECONNREFUSED an ICMP error for an earlier datagram.
            Err(Errno::NOBUFS | Errno::CONNREFUSED | Errno::INTR) => {}
            Err(error) if count == 0 => {
                return Err(unreachable(format_args!(
                    "cannot send datagrams of this size: {error}"
                )));
            }
            Err(error) => return Err(stalled_or_failed(&error.into(), count)),
        }
    }
}

/// A token bucket: one token accrues in each interval of the rate, at most those of [`BACKLOG`].
struct TokenBucket {
    interval: f64,
    /// The time up to which the accrued tokens were spent.
    spent: Instant,
}

impl TokenBucket {
    fn new(rate: f64, now: Instant) -> Result<Self, JobMessage> {
        if !(rate.is_finite() && rate > 0.0) {
            return Err(failed(format_args!("invalid rate of {rate} per second")));
        }
        Ok(Self {
            interval: rate.recip(),
            spent: now,
        })
    }

    fn due(&mut self, now: Instant) -> usize {
        let backlog = BACKLOG.max(Duration::from_secs_f64(self.interval * 2.0));
        if now - self.spent > backlog {
            self.spent = now - backlog;
        }
        ((now - self.spent).as_secs_f64() / self.interval) as usize
    }

    fn spend(&mut self, count: usize) {
        self.spent += Duration::from_secs_f64(self.interval * count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_observes_rate_and_backlog() {
        let began = Instant::now();
        let mut tokens = TokenBucket::new(100_000.0, began).ok().unwrap();
        assert_eq!(tokens.due(began), 0);
        let later = began + Duration::from_micros(1005);
        assert_eq!(tokens.due(later), 100);
        tokens.spend(64);
        assert_eq!(tokens.due(later), 36);
        tokens.spend(36);
        assert_eq!(tokens.due(began + Duration::from_micros(1009)), 0);
        // 999 if the quotient is rounded down.
        assert!((999..=1000).contains(&tokens.due(began + Duration::from_secs(1))));
    }

    #[test]
    fn sender_observes_rate_below_one_per_backlog() {
        let began = Instant::now();
        let mut tokens = TokenBucket::new(10.0, began).ok().unwrap();
        assert_eq!(tokens.due(began + Duration::from_millis(99)), 0);
        assert_eq!(tokens.due(began + Duration::from_millis(101)), 1);
        assert!((1..=2).contains(&tokens.due(began + Duration::from_secs(100))));
    }

    #[test]
    fn invalid_rate_is_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(TokenBucket::new(rate, Instant::now()).is_err());
        }
    }
}
