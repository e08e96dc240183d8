//! Handle of a network: requests to its engine, which runs in a thread or in calls of the program.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pontoon_engine::egress::{EgressRule, RefusedFlows};
use pontoon_host_network::publish::{Ports, Publish};
use pontoon_worker::messages::{
    DecisionVerdict, PortError, PortUpdate, Report, RulesUpdate, SupervisorChannel, Update, VerdictKind,
};
use pontoon_worker::stats::{Row, StatsTable};
use pontoon_worker::{Dispatched, PolledEngine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::decision::DeciderCounts;
use crate::error::Context as _;
use crate::events::Events;
use crate::host::{HostThread, HostWatch};
use crate::{
    Addresses, DecisionToken, Error, ErrorKind, EventQueue, HistogramValues, NetworkBuilder, Stats, Verdict,
};

/// Largest number of rules whose matches are counted: more than fit into a message to the engine.
pub(crate) const MAX_RULES: usize = 8192;

/// Time for which a request waits for the engine. Only a decider that blocks delays the engine for so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Network of one guest: a running engine, which is stopped when this value is dropped.
///
/// The page [`threads`](crate::threads) describes the threads of a network, and which functions wait for them.
#[derive(Debug)]
pub struct Network {
    pub(crate) channel: SupervisorChannel,
    /// The engine; `None` once it was stopped or has ended.
    pub(crate) runner: Option<Runner>,
    pub(crate) events: Option<Events>,
    /// Queue to which the events are passed, if any.
    pub(crate) event_queue: Option<EventQueue>,
    pub(crate) table: StatsTable,
    /// The generation of the egress rules, and their number.
    pub(crate) generation: u64,
    pub(crate) rules: usize,
    pub(crate) counts: Option<Arc<DeciderCounts>>,
    pub(crate) addresses: Addresses,
    pub(crate) ports: Ports,
    pub(crate) host: Arc<HostWatch>,
    /// Thread that follows the host; `None` if the network has no thread.
    pub(crate) host_thread: Option<HostThread>,
    /// Number of the last request for a confirmation.
    pub(crate) round: u64,
}

/// Place of an engine.
#[derive(Debug)]
pub(crate) enum Runner {
    Thread(JoinHandle<io::Result<()>>),
    Polled(Box<PolledEngine>),
}

/// Sends verdicts about flows from any thread.
pub struct VerdictSender(SupervisorChannel);

impl Network {
    /// Returns the default options of a network.
    pub fn builder() -> NetworkBuilder {
        NetworkBuilder::new()
    }

    /// Returns the addresses of the guest's link.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Processes what is pending, and does not wait. A network without a thread
    /// ([`NetworkBuilder::without_thread`](crate::NetworkBuilder::without_thread)) processes packets in this call only, for up
    /// to some milliseconds; it is to be called whenever the descriptor of the network ([`AsFd`]) is readable. For a network
    /// with a thread, the call checks that the engine runs.
    ///
    /// # Errors
    /// [`ErrorKind::Ended`]: the guest has disconnected, and no other can connect. [`ErrorKind::Host`]: the engine has failed,
    /// for this reason.
    pub fn dispatch(&mut self) -> Result<(), Error> {
        match &mut self.runner {
            None => Err(Error::ended()),
            Some(Runner::Thread(thread)) if !thread.is_finished() => {
                // Reports that no request waits for would keep the descriptor readable.
                while let Ok(Some(_)) = self.channel.receive() {}
                Ok(())
            }
            Some(Runner::Thread(_)) => Err(self.end().err().unwrap_or_else(Error::ended)),
            Some(Runner::Polled(engine)) => {
                if self.host.is_ready()
                    && let Err(error) = self.host.follow()
                {
                    // A guest could reach addresses that the host gets from now on.
                    let _ = self.end();
                    return Err(error);
                }
                let dispatched = engine.dispatch();
                if let Some(events) = &mut self.events {
                    events.dispatch();
                }
                match dispatched {
                    Ok(Dispatched::Runs) => Ok(()),
                    Ok(Dispatched::Ended) => Err(Error::ended()),
                    Err(error) => Err(error).context("the engine has failed"),
                }
            }
        }
    }

    /// Publishes ports of the guest on the host: `specification` is a value of the option `--publish`, for example
    /// `127.0.0.1:8080:80` or `5353:53/udp`. When the function returns, clients can connect.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`]: the text is not a specification, or the guest cannot have the port. [`ErrorKind::Host`]: a
    /// port is in use or not permitted. No port was published then. [`ErrorKind::Ended`].
    pub fn publish(&mut self, specification: &str) -> Result<(), Error> {
        let spec: Publish = specification.parse().map_err(Error::invalid)?;
        self.change_ports(&[], &[spec])
    }

    /// Ends the publication of ports; those that are not published are ignored. Connections continue.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`]: the text is not a specification. [`ErrorKind::Ended`].
    pub fn unpublish(&mut self, specification: &str) -> Result<(), Error> {
        let spec: Publish = specification.parse().map_err(Error::invalid)?;
        self.change_ports(&[spec], &[])
    }

    fn change_ports(&mut self, remove: &[Publish], add: &[Publish]) -> Result<(), Error> {
        self.ports.set_owned(&self.host.addresses().0);
        let changes = self.ports.change(remove, add).map_err(Error::of_ports)?;
        self.send_ports(changes.port_updates)?;
        let refused = self.confirm()?;
        if let Some(refused) = refused {
            let updates = self.ports.revert(&changes.undo);
            self.send_ports(updates)?;
            return Err(Error::new(ErrorKind::Host, refused));
        }
        if !changes.closes.is_empty() {
            self.send_ports(changes.closes)?;
            self.confirm()?;
        }
        Ok(())
    }

    fn send_ports(&mut self, updates: Vec<PortUpdate>) -> Result<(), Error> {
        for some in updates.chunks(Update::MAX_PORT_UPDATES) {
            self.send(&Update::Published(some.to_vec()))?;
        }
        Ok(())
    }

    /// Replaces the egress rules, each of which is `allow TARGET` or `deny TARGET` with a value of the options `--allow` and
    /// `--deny`. When the function returns, the rules apply to all packets, and flows that they deny are closed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`]: one of them is not a rule, or there are too many for one message (64 KiB of text); the
    /// rules are unchanged then. [`ErrorKind::Ended`].
    pub fn set_rules<S: AsRef<str>>(&mut self, rules: &[S]) -> Result<(), Error> {
        let parsed: Result<Vec<EgressRule>, String> =
            rules.iter().map(|rule| rule.as_ref().parse()).collect();
        let rules = parsed.map_err(Error::invalid)?;
        let count = rules.len();
        let generation = self.generation + 1;
        let update = Update::Rules(RulesUpdate {
            generation,
            rules,
            refused: RefusedFlows::Reset,
        });
        if pontoon_ipc::encode(&update).is_err() {
            return Err(Error::invalid("the rules are too long for one message"));
        }
        if let (Some(events), Update::Rules(update)) = (&self.events, &update) {
            events.set_rules(generation, update.rules.iter());
        }
        self.send(&update)?;
        self.generation = generation;
        self.rules = count;
        self.confirm().map(drop)
    }

    /// Replaces the resolvers of the DNS forwarder. Those of the host are not followed any more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`]: there are too many for one message (64 KiB of text), or one of them has a flow label; the
    /// resolvers are unchanged then. [`ErrorKind::Ended`].
    pub fn set_resolvers(&mut self, resolvers: &[SocketAddr]) -> Result<(), Error> {
        let update = Update::Resolvers(resolvers.to_vec());
        if !is_decodable(&update) {
            return Err(Error::invalid(
                "the resolvers are too many for one message, or one has a flow label",
            ));
        }
        self.host.replace_resolvers(update)?;
        self.confirm_host()
    }

    /// Waits until the changes of the host's addresses and routes, and of its resolvers if no others were set, that precede the
    /// call apply. The network follows the host without this call, usually within a millisecond after a change.
    ///
    /// # Errors
    /// [`ErrorKind::Host`]: they cannot be read. [`ErrorKind::Ended`].
    pub fn refresh_host(&mut self) -> Result<(), Error> {
        self.host.follow()?;
        self.confirm_host()
    }

    /// Waits until the updates of the host's state have been sent and applied.
    fn confirm_host(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        while !self.host.flush() {
            self.wait_for_engine(PollFlags::OUT, deadline)?;
        }
        self.confirm().map(drop)
    }

    /// Sends a verdict about a flow that a decider has left open. It has no effect after the deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Ended`].
    pub fn decide(&mut self, token: DecisionToken, verdict: Verdict) -> Result<(), Error> {
        self.send(&verdict_update(token, verdict.message()))
    }

    /// Sends the verdict that the guest's TCP connection is carried by `stream`, a connected Unix stream socket, which is set to
    /// non-blocking. It has no effect after the deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Host`]: the descriptor is not a socket. [`ErrorKind::Ended`].
    pub fn redirect_to_stream(&mut self, token: DecisionToken, stream: OwnedFd) -> Result<(), Error> {
        let update = stream_update(token, stream)?;
        self.send(&update)
    }

    /// Returns a sender of verdicts, for another thread.
    ///
    /// # Errors
    /// [`ErrorKind::Host`]: no free descriptor.
    pub fn verdict_sender(&self) -> Result<VerdictSender, Error> {
        let channel = self.channel.try_clone();
        channel.map(VerdictSender).context("cannot open a channel")
    }

    /// Returns the statistics of the engine, which need no reply of it.
    ///
    /// # Errors
    /// [`ErrorKind::Ended`], or the reason for which the engine has failed.
    pub fn stats(&mut self) -> Result<Stats, Error> {
        if let Some(Runner::Thread(thread)) = &self.runner
            && thread.is_finished()
        {
            return Err(self.end().err().unwrap_or_else(Error::ended));
        }
        if self.runner.is_none() {
            return Err(Error::ended());
        }
        let mut total = Row::default();
        let mut rules = vec![0_u64; self.rules + 2];
        for worker in 0..self.table.workers() {
            total.add(&self.table.read(worker));
            let hits = self.table.hits(worker, self.generation, self.rules);
            for (sum, hits) in rules.iter_mut().zip(hits.into_iter().flatten()) {
                *sum = sum.saturating_add(hits);
            }
        }
        let (gauges, process) = (total.gauges(), total.process());
        let other_resolvers = rules.pop().unwrap_or(0);
        let unlisted = rules.pop().unwrap_or(0);
        let count = |of: fn(&DeciderCounts) -> u64| self.counts.as_deref().map_or(0, of);
        Ok(Stats {
            flows: gauges.flows,
            pool_bytes: gauges.pool_bytes,
            rules,
            unlisted,
            other_resolvers,
            decider_panics: count(|counts| counts.panics.load(Ordering::Relaxed)),
            slow_decisions: count(|counts| counts.slow.load(Ordering::Relaxed)),
            histograms: total.histograms().map(HistogramValues::of).collect(),
            counters: total.counters().chain(process.iter()).collect(),
        })
    }

    /// Stops the engine, which closes its flows and published ports. All records of flows were passed to the function or the
    /// queue for events when this function returns.
    ///
    /// # Errors
    /// The engine had failed before, for this reason. [`ErrorKind::Panicked`]: the function for events has panicked.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    /// Ends the engine, if it runs.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        let followed = self.host_thread.take().map_or(Ok(()), HostThread::finish);
        // Copies of the channel may exist.
        self.channel.shutdown();
        let ended = match self.runner.take() {
            Some(Runner::Thread(thread)) => {
                let panicked = |_| Err(io::Error::other("the engine panicked"));
                let ended = thread.join().unwrap_or_else(panicked);
                ended.context("the engine has failed")
            }
            Some(Runner::Polled(engine)) => {
                drop(engine);
                Ok(())
            }
            None => Ok(()),
        };
        if let Some(queue) = self.event_queue.take() {
            queue.0.remove_limit();
        }
        let kept = self.events.take().is_none_or(Events::finish);
        match (followed.and(ended), kept) {
            (Ok(()), false) => Err(Error::new(
                ErrorKind::Panicked,
                "the function for events has panicked",
            )),
            (ended, _) => ended,
        }
    }

    /// Sends an update to the engine.
    pub(crate) fn send(&mut self, update: &Update) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.runner.is_none() {
                return Err(Error::ended());
            }
            match self.channel.try_send(update) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_for_engine(PollFlags::OUT, deadline)?;
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Waits until all workers have applied the updates that were sent. Returns the reason if a worker could not take over a
    /// published port.
    fn confirm(&mut self) -> Result<Option<String>, Error> {
        self.round += 1;
        self.send(&Update::Confirm(self.round))?;
        let deadline = Instant::now() + PATIENCE;
        let mut missing = self.table.workers();
        let mut refused = None;
        while missing > 0 {
            match self.channel.receive() {
                Ok(Some(Report::Confirmed(confirmation))) if confirmation.round == self.round => {
                    missing -= 1;
                    let error = confirmation.port_errors.into_iter().next();
                    let text =
                        |error: PortError| format!("cannot publish {}: {}", error.port.host, error.why);
                    refused = refused.or(error.map(text));
                }
                Ok(Some(_)) => {}
                Ok(None) => return Err(self.end().err().unwrap_or_else(Error::ended)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_for_engine(PollFlags::IN, deadline)?;
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(refused)
    }

    /// Waits until the channel is ready. A network without a thread processes packets meanwhile.
    pub(crate) fn wait_for_engine(&mut self, flags: PollFlags, deadline: Instant) -> Result<(), Error> {
        let timeout = deadline.saturating_duration_since(Instant::now());
        if timeout.is_zero() {
            let text = "the engine does not process requests: a decider blocks it";
            return Err(Error::new(ErrorKind::Host, text));
        }
        if let Some(Runner::Polled(_)) = self.runner {
            return self.dispatch();
        }
        let waited = wait(self.channel.as_fd(), flags, Some(timeout));
        waited.map(drop).context("cannot wait for the engine")
    }

    /// Returns the error of the engine, if it has ended, or else that of the channel to it.
    fn failed(&mut self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                self.end().err().unwrap_or_else(Error::ended)
            }
            _ => match Err::<(), _>(error).context("cannot send a request to the engine") {
                Err(error) => error,
                Ok(()) => Error::ended(),
            },
        }
    }
}

fn verdict_update(DecisionToken(token): DecisionToken, verdict: VerdictKind) -> Update {
    Update::Verdicts(vec![DecisionVerdict { token, verdict }])
}

/// Decodes an update as the engine does, which does not report that it could not decode one.
fn is_decodable(update: &Update) -> bool {
    let decoded = pontoon_ipc::encode(update).and_then(|bytes| pontoon_ipc::decode(&bytes, Vec::new()));
    decoded.is_ok_and(|decoded: Update| decoded == *update)
}

fn stream_update(token: DecisionToken, stream: OwnedFd) -> Result<Update, Error> {
    rustix::io::ioctl_fionbio(&stream, true).context("cannot use the stream")?;
    Ok(verdict_update(
        token,
        VerdictKind::Stream(Arc::new(stream).into()),
    ))
}

impl VerdictSender {
    /// Sends a verdict, see [`Network::decide`]. The function does not wait.
    ///
    /// # Errors
    /// [`ErrorKind::Ended`]: the network has ended. [`ErrorKind::Host`]: the engine has not processed earlier ones yet.
    pub fn decide(&self, token: DecisionToken, verdict: Verdict) -> Result<(), Error> {
        self.send(&verdict_update(token, verdict.message()))
    }

    /// Sends the verdict that a stream carries a connection, see [`Network::redirect_to_stream`]. The function does not wait.
    ///
    /// # Errors
    /// Those of [`Self::decide`]; [`ErrorKind::Host`]: the descriptor is not a socket.
    pub fn redirect_to_stream(&self, token: DecisionToken, stream: OwnedFd) -> Result<(), Error> {
        self.send(&stream_update(token, stream)?)
    }

    fn send(&self, update: &Update) -> Result<(), Error> {
        match self.0.try_send(update) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Error::ended()),
            sent => sent.context("cannot send a verdict to the engine"),
        }
    }
}

impl fmt::Debug for VerdictSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerdictSender").finish_non_exhaustive()
    }
}

/// The descriptor to poll for reading: when it is readable, [`Network::dispatch`] is to be called. It is the same for the
/// lifetime of the network.
impl AsFd for Network {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.runner {
            Some(Runner::Polled(engine)) => engine.as_fd(),
            // The channel is readable when the engine has ended.
            Some(Runner::Thread(_)) | None => self.channel.as_fd(),
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // `stop` returns the error.
        let _ = self.end();
    }
}

/// Waits until a descriptor is ready, or for `timeout`. Returns false at the timeout, and after a signal.
pub(crate) fn wait(
    descriptor: BorrowedFd<'_>,
    flags: PollFlags,
    timeout: Option<Duration>,
) -> io::Result<bool> {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    match poll(
        &mut [PollFd::from_borrowed_fd(descriptor, flags)],
        timeout.as_ref(),
    ) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
