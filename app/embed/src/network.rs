//! An engine in a thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pontoon_engine::egress::EgressRule;
use pontoon_runtime::link::vhost_user;
use pontoon_runtime::messages::{MAX_LEN, Report, Stats, Update};
use pontoon_runtime::{Attachment, Setup, ledger, pacing};
use pontoon_sys::seqpacket;
use pontoon_vhost_user::{ActivateError, QueueConfig};
use pontoon_wire::Mac;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vm_memory::GuestMemoryMmap;

use crate::Options;

/// VIRTIO_NET_F_MAC (virtio 1.2, section 5.1.3).
const F_MAC: u64 = 1 << 5;

/// The time within which workers must return their counters.
const STATS_TIMEOUT: Duration = Duration::from_secs(5);

/// An engine at work. It stops when this is dropped.
#[derive(Debug)]
pub struct Network {
    /// Its end is the engine's.
    channel: Option<OwnedFd>,
    thread: Option<JoinHandle<io::Result<()>>>,
    workers: u8,
    asked: u64,
}

/// A guest's network device, as far as it is not the VMM's. It may outlive its network, and then does nothing.
#[derive(Debug)]
pub struct Device {
    control: vhost_user::Control,
    mac: Mac,
    mtu: u16,
}

impl Network {
    /// Starts an engine, for the guest behind a device.
    ///
    /// # Errors
    /// Out of descriptors, memory or threads; or a socket that was handed over is none of those that it has to be.
    pub fn start(options: Options) -> io::Result<(Self, Device)> {
        let mtu = options.config.mtu;
        let mac = options.config.guest_mac;
        let (control, link) = vhost_user::in_process(mtu)?;
        let network = Self::new(options, 1, |setup, supervisor| {
            pontoon_runtime::carry_in_process(setup, link, supervisor)
        })?;
        Ok((network, Device { control, mac, mtu }))
    }

    /// Starts an engine, for the guest behind `attachment`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn attach(options: Options, attachment: Attachment) -> io::Result<Self> {
        let workers = attachment.workers();
        Self::new(options, workers, |setup, supervisor| {
            pontoon_runtime::carry(setup, attachment, supervisor)
        })
    }

    fn new(
        options: Options,
        workers: u8,
        carry: impl FnOnce(Setup, OwnedFd) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        // A worker asks these until they have no more, and would wait for a client, or a datagram, to come.
        for socket in &options.published {
            rustix::io::ioctl_fionbio(socket, true)?;
        }
        let (channel, supervisor) = seqpacket::pair()?;
        let setup = Setup {
            config: options.config,
            owned: options.owned.into_iter().map(Into::into).collect(),
            published: options.published,
            raw_icmp: options.raw_icmp,
            pacing: pacing::here(options.pacing, workers),
            outbound: options.outbound,
            // Nobody takes the place of an engine that ends: its process is the VMM.
            ledger: ledger::Shared::none(),
            // What is said goes where the VMM has it go, and as much of it as it wants.
            set_log_level: |_| {},
        };
        let thread = thread::Builder::new()
            .name("pontoon".to_owned())
            .spawn(move || carry(setup, supervisor))?;
        let mut network = Self {
            channel: Some(channel),
            thread: Some(thread),
            workers,
            asked: 0,
        };
        match network.receive()? {
            Report::Ready => Ok(network),
            Report::Stats(_) | Report::Flows(_) | Report::Captured(_) => {
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }

    /// The resolvers behind the DNS forwarder are these now.
    ///
    /// # Errors
    /// The engine has ended. `InvalidInput`: there are too many for one message (64 KiB of text), or one of them has a flow
    /// label; the resolvers of before stay.
    pub fn set_resolvers(&mut self, resolvers: Vec<SocketAddr>) -> io::Result<()> {
        self.send(&Update::Resolvers(resolvers))
    }

    /// The host's own addresses are these now.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn set_owned(&mut self, addresses: Vec<IpAddr>) -> io::Result<()> {
        Update::owned(addresses.into_iter().map(Into::into).collect())
            .iter()
            .try_for_each(|update| self.send(update))
    }

    /// Whom the guest may reach is what these say now. Flows that they forbid end.
    ///
    /// # Errors
    /// The engine has ended. `InvalidInput`: there are too many for one message (64 KiB of text), or one of them is not what
    /// its own text says, as with port 0, or with a network that has more bits than its prefix; the rules of before stay.
    pub fn set_rules(&mut self, rules: Vec<EgressRule>) -> io::Result<()> {
        self.send(&Update::Rules(rules))
    }

    /// Returns the engine's counters, summed over all workers.
    ///
    /// # Errors
    /// The engine has ended. `TimedOut`: a worker has not answered for 5 s.
    pub fn stats(&mut self) -> io::Result<Stats> {
        self.asked += 1;
        self.send(&Update::Ask(self.asked))?;
        let deadline = Instant::now() + STATS_TIMEOUT;
        let mut total = self.receive_stats(deadline)?;
        total.worker = 0;
        for _ in 1..self.workers {
            total.add(self.receive_stats(deadline)?);
        }
        Ok(total)
    }

    /// Stops the engine: its flows end.
    ///
    /// # Errors
    /// It had failed before; the error says of what.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    /// Sends an update. It is decoded here first, because the engine has no message for one that it cannot decode.
    fn send(&self, update: &Update) -> io::Result<()> {
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let message = update.encode();
        let understood = Update::decode(&message, Vec::new());
        if message.len() > MAX_LEN || !understood.is_ok_and(|understood| understood == *update) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        seqpacket::send(channel, &message, &[])
    }

    /// Receives a worker's response to the last request.
    fn receive_stats(&mut self, deadline: Instant) -> io::Result<Stats> {
        loop {
            self.wait(deadline)?;
            match self.receive()? {
                Report::Stats(stats) if stats.round == self.asked => return Ok(stats),
                // To a question that was given up.
                Report::Stats(_) => {}
                Report::Ready | Report::Flows(_) | Report::Captured(_) => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
    }

    /// Waits until there is a message, or the end.
    fn wait(&self, deadline: Instant) -> io::Result<()> {
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The engine's next message. Without one it has failed, and says why.
    fn receive(&mut self) -> io::Result<Report> {
        let mut buffer = vec![0; MAX_LEN];
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        match seqpacket::receive(channel, &mut buffer)? {
            Some(message) => Report::decode(&buffer[..message.len]),
            None => Err(self.end().err().unwrap_or(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.channel = None;
        let panicked = |_| Err(io::Error::other("the engine panicked"));
        match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(panicked),
            None => Ok(()),
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Who wants to know asks `stop`.
        let _ = self.end();
    }
}

impl Device {
    /// Features to offer to the driver (virtio 1.2, sections 5.1.3 and 6).
    #[must_use]
    pub fn features(&self) -> u64 {
        self.control.features() | F_MAC
    }

    /// The configuration space (5.1.4): the guest's Ethernet address, and its MTU.
    #[must_use]
    pub fn config(&self) -> [u8; 12] {
        let mut space = [0; 12];
        space[..6].copy_from_slice(&self.mac.0);
        space[10..].copy_from_slice(&self.mtu.to_le_bytes());
        space
    }

    /// Serves `queues`, the receive queue and the transmit queue, from now on: the driver has set DRIVER_OK, and accepted
    /// `features`. Queues of before are let go of first.
    ///
    /// # Errors
    /// Features were not offered, or a queue cannot be where it is said to be. No queue is served then.
    pub fn activate(
        &mut self,
        memory: &GuestMemoryMmap,
        features: u64,
        queues: [QueueConfig; 2],
    ) -> Result<(), ActivateError> {
        self.control.activate(memory, features & !F_MAC, queues)
    }

    /// Lets go of the queues, and of the guest's flows: the driver has reset the device. When this returns, nobody accesses
    /// the guest's memory any more.
    pub fn reset(&mut self) {
        self.control.reset();
    }
}
