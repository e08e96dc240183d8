//! Engine in a thread of the VMM's process, and requests to it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use pontoon_engine::decider::{DecisionToken, Verdict};
use pontoon_engine::egress::{EgressRule, RefusedFlows};
use pontoon_link::vhost_user;
use pontoon_sys::seqpacket;
use pontoon_vhost_user::{ActivateError, QueueConfig};
use pontoon_wire::Mac;
use pontoon_worker::messages::{
    DecisionVerdict, EngineChannel, Report, RulesUpdate, SupervisorChannel, Update, VerdictKind,
};
use pontoon_worker::stats::{Distribution, Row, StatsTable};
use pontoon_worker::{Attachment, EngineSetup, ledger, pacing};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use vm_memory::GuestMemoryMmap;

use crate::NetworkOptions;
use crate::events::EventThread;

/// VIRTIO_NET_F_MAC (virtio 1.2, section 5.1.3).
const F_MAC: u64 = 1 << 5;

/// The largest number of rules whose matches [`Network::stats`] returns: more than fit into a message to the engine.
const MAX_RULES: usize = 8192;

/// Network of one guest: a running engine, which is stopped when this value is dropped.
#[derive(Debug)]
pub struct Network {
    /// Channel to the engine; `None` once the engine was stopped.
    channel: Option<SupervisorChannel>,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// Thread that reads the events, if a function receives them; it outlives the engine.
    events: Option<EventThread>,
    table: StatsTable,
    /// The generation of the egress rules, and their number.
    generation: u64,
    rules: usize,
}

/// The counters and gauges of an engine, summed over all workers. Each worker publishes its own before it sleeps, and every
/// millisecond while it does not.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Open flows.
    pub flows: u64,
    /// Bytes of memory that hold data which the host has not accepted yet, or which arrived out of order.
    pub pool_bytes: u64,
    /// The number of packets for each egress rule, then for no allow rule, then for other resolvers. Zeros until the workers
    /// have received the rules.
    pub rules: Vec<u64>,
    /// Measured values since the start.
    pub histograms: Vec<Distribution>,
    /// Counters since the start, by name.
    pub counters: Vec<(&'static str, u64)>,
}

/// Part of a guest's virtio-net device that the engine implements: features, configuration space and queues. The VMM
/// implements the registers. The value may outlive its network, and then serves no queue.
#[derive(Debug)]
pub struct NetDevice {
    control: vhost_user::Control,
    mac: Mac,
    mtu: u16,
}

impl Network {
    /// Starts an engine for the guest of a VMM, and returns the device that serves the guest's queues.
    ///
    /// # Errors
    /// No free descriptor, no memory or no thread; or a published socket has the wrong type.
    pub fn start(options: NetworkOptions) -> io::Result<(Self, NetDevice)> {
        let mtu = options.config.mtu;
        let mac = options.config.guest_mac;
        let (control, link) = vhost_user::in_process(mtu)?;
        let network = Self::new(options, 1, |setup, supervisor| {
            pontoon_worker::carry_in_process(setup, link, supervisor)
        })?;
        Ok((network, NetDevice { control, mac, mtu }))
    }

    /// Starts an engine for the guest behind the socket of `attachment`.
    ///
    /// # Errors
    /// Same as [`start`](Self::start).
    pub fn attach(options: NetworkOptions, attachment: Attachment) -> io::Result<Self> {
        let workers = attachment.workers();
        Self::new(options, workers, |setup, supervisor| {
            pontoon_worker::carry(setup, attachment, supervisor)
        })
    }

    fn new(
        options: NetworkOptions,
        workers: u8,
        carry: impl FnOnce(EngineSetup, EngineChannel) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        // A worker reads from a published socket until it is empty; a blocking socket would block the worker until a client
        // or a datagram arrives.
        for socket in &options.published {
            rustix::io::ioctl_fionbio(socket, true)?;
        }
        let (channel, supervisor) = seqpacket::pair()?;
        let channel = SupervisorChannel::new(channel, 0)?;
        let supervisor = EngineChannel::new(supervisor, 0)?;
        let table = StatsTable::private(workers, MAX_RULES);
        let rules = options.config.egress.rules().count();
        let flows = options.config.max_flows;
        let start = |callback| EventThread::start(callback, workers, flows);
        let (events, event_setup) = options.events.map(start).transpose()?.unzip();
        if let Some(events) = &events {
            events.set_rules(1, options.config.egress.rules());
        }
        let setup = EngineSetup {
            config: options.config,
            owned: options.owned.into_iter().map(Into::into).collect(),
            published: options.published,
            raw_icmp: options.raw_icmp,
            pacing: pacing::here(options.pacing, workers),
            outbound: options.outbound,
            // An engine that ends is not restarted, because its process is the VMM.
            ledger: ledger::SharedLedger::none(),
            stats: table.clone(),
            events: event_setup,
            rules_generation: 1,
            decider: options.decider.map(|decider| decider.into_setup(workers)),
            restarted: false,
            // The VMM, not the engine, configures the log.
            set_log_level: |_| {},
        };
        let thread = thread::Builder::new()
            .name("pontoon".to_owned())
            .spawn(move || carry(setup, supervisor))?;
        let mut network = Self {
            channel: Some(channel),
            thread: Some(thread),
            events,
            table,
            generation: 1,
            rules,
        };
        match network.receive()? {
            Report::Ready => Ok(network),
            Report::Confirmed(_)
            | Report::Flows(_)
            | Report::Decide(_)
            | Report::Captured(_)
            | Report::Failed(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Replaces the resolvers of the DNS forwarder.
    ///
    /// # Errors
    /// The engine has ended. `InvalidInput`: there are too many for one message (64 KiB of text), or one of them has a flow
    /// label; the resolvers are unchanged then.
    pub fn set_resolvers(&mut self, resolvers: Vec<SocketAddr>) -> io::Result<()> {
        self.send(&Update::Resolvers(resolvers))
    }

    /// Replaces the list of the host's own addresses, which the guest may not reach.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn set_owned(&mut self, addresses: Vec<IpAddr>) -> io::Result<()> {
        Update::owned(addresses.into_iter().map(Into::into).collect())
            .iter()
            .try_for_each(|update| self.send(update))
    }

    /// Replaces the egress rules. Flows that the rules deny are closed.
    ///
    /// # Errors
    /// The engine has ended. `InvalidInput`: there are too many rules for one message (64 KiB of text), or one of them
    /// differs from the rule that its text is parsed to, for example a rule with port 0, or with a network that has bits
    /// behind its prefix; the rules are unchanged then.
    pub fn set_rules(&mut self, rules: Vec<EgressRule>) -> io::Result<()> {
        let count = rules.len();
        let generation = self.generation + 1;
        let update = Update::Rules(RulesUpdate {
            generation,
            rules,
            refused: RefusedFlows::Reset,
        });
        check(&update)?;
        if let (Some(events), Update::Rules(update)) = (&self.events, &update) {
            events.set_rules(generation, update.rules.iter());
        }
        self.send_checked(&update)?;
        self.generation = generation;
        self.rules = count;
        Ok(())
    }

    /// Sends a verdict about a flow for which the decider has returned
    /// [`Answer::Later`](pontoon_engine::decider::Answer::Later). It has no effect after the deadline.
    ///
    /// # Errors
    /// The engine has ended. `InvalidInput`: [`Verdict::RedirectToStream`], whose socket
    /// [`redirect_to_stream`](Self::redirect_to_stream) takes.
    pub fn decide(&self, token: DecisionToken, verdict: Verdict) -> io::Result<()> {
        let verdict = match verdict {
            Verdict::Allow => VerdictKind::Allow,
            Verdict::Deny(denial) => VerdictKind::Deny(denial),
            Verdict::Redirect(to) => VerdictKind::Redirect(to),
            Verdict::RedirectToStream => return Err(io::ErrorKind::InvalidInput.into()),
        };
        self.send_verdict(token, verdict)
    }

    /// Sends a verdict like [`decide`](Self::decide): the TCP connection of the guest is carried by `stream`, a connected Unix
    /// stream socket, which is set to non-blocking.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn redirect_to_stream(&self, token: DecisionToken, stream: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        self.send_verdict(token, VerdictKind::Stream(Arc::new(stream).into()))
    }

    fn send_verdict(&self, DecisionToken(token): DecisionToken, verdict: VerdictKind) -> io::Result<()> {
        self.send_checked(&Update::Verdicts(vec![DecisionVerdict { token, verdict }]))
    }

    /// Returns the engine's counters, summed over all workers.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn stats(&mut self) -> io::Result<Stats> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err(self.end().err().unwrap_or(io::ErrorKind::BrokenPipe.into()));
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
        let gauges = total.gauges();
        let process = total.process();
        Ok(Stats {
            flows: gauges.flows,
            pool_bytes: gauges.pool_bytes,
            rules,
            histograms: total.histograms().collect(),
            counters: total.counters().chain(process.iter()).collect(),
        })
    }

    /// Stops the engine, which closes its flows. If a function receives the records of flows, it has received all of them when
    /// this function returns.
    ///
    /// # Errors
    /// The engine had failed before, with this error.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    /// Checks an update, and sends it to the engine.
    fn send(&self, update: &Update) -> io::Result<()> {
        check(update)?;
        self.send_checked(update)
    }

    fn send_checked(&self, update: &Update) -> io::Result<()> {
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        loop {
            match channel.try_send(update) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT)?;
                }
                result => return result,
            }
        }
    }

    /// Waits until the channel to the engine is ready, or until the deadline.
    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        retry_on_intr(|| poll(&mut [PollFd::new(channel, flags)], None))?;
        Ok(())
    }

    /// Receives the next report of the engine. If the channel is closed, the engine has failed, and its error is returned.
    fn receive(&mut self) -> io::Result<Report> {
        self.wait(PollFlags::IN)?;
        let channel = self.channel.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        match channel.receive()? {
            Some(report) => Ok(report),
            None => Err(self.end().err().unwrap_or(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.channel = None;
        let panicked = |_| Err(io::Error::other("the engine panicked"));
        let end = match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(panicked),
            None => Ok(()),
        };
        // The last records are passed on.
        self.events = None;
        end
    }
}

/// Decodes an update as the engine does, which does not report that it could not decode one.
fn check(update: &Update) -> io::Result<()> {
    let decoded = pontoon_ipc::decode(&pontoon_ipc::encode(update)?, Vec::new());
    match decoded.is_ok_and(|decoded: Update| decoded == *update) {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The error is ignored here; `stop` returns it.
        let _ = self.end();
    }
}

impl NetDevice {
    /// Returns the features to offer to the driver (virtio 1.2, sections 5.1.3 and 6).
    #[must_use]
    pub fn features(&self) -> u64 {
        self.control.features() | F_MAC
    }

    /// Returns the device's configuration space (virtio 1.2, section 5.1.4): the guest's Ethernet address, and its MTU.
    #[must_use]
    pub fn config(&self) -> [u8; 12] {
        let mut space = [0; 12];
        space[..6].copy_from_slice(&self.mac.0);
        space[10..].copy_from_slice(&self.mtu.to_le_bytes());
        space
    }

    /// Serves `queues`, the receive queue and the transmit queue, after the driver has set DRIVER_OK and accepted
    /// `features`. Queues of an earlier activation are released first.
    ///
    /// # Errors
    /// Features were not offered, or a queue is not in the guest's memory. No queue is served then.
    pub fn activate(
        &mut self,
        memory: &GuestMemoryMmap,
        features: u64,
        queues: [QueueConfig; 2],
    ) -> Result<(), ActivateError> {
        self.control.activate(memory, features & !F_MAC, queues)
    }

    /// Releases the queues and closes the guest's flows, after the driver has reset the device. When this function returns,
    /// the guest's memory is no longer accessed.
    pub fn reset(&mut self) {
        self.control.reset();
    }
}
