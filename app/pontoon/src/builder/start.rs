//! Start of a network with its options.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread;

use ipnet::IpNet;
use pontoon_engine::address_plan::AddressPlan;
use pontoon_engine::proxy::{Proxy, ProxyDestinations};
use pontoon_engine::{Bandwidth, Config, Egress};
use pontoon_host_network::address_plan::{self, ChosenPlan};
use pontoon_host_network::check_outbound;
use pontoon_host_network::forward::Forwards;
use pontoon_host_network::publish::{self, Ports};
use pontoon_link::{Attachment, Source, vhost_user};
use pontoon_process::netlink::Netlink;
use pontoon_sys::seqpacket;
use pontoon_worker::messages::{EngineChannel, Report, SupervisorChannel};
use pontoon_worker::stats::StatsTable;
use pontoon_worker::{EngineSetup, PolledEngine, ledger, pacing};
use rustix::event::PollFlags;

use super::{EventSink, NetworkBuilder};
use crate::error::Context as _;
use crate::events::Events;
use crate::frames::ETHERNET;
use crate::host::{HostThread, HostWatch};
use crate::network::{self, MAX_RULES, Runner};
use crate::{Addresses, Error, FramePort, Guest, NetDevice, Network, UdpFilter};

/// Start of an engine for a link.
enum Link {
    Attachment(Attachment),
    Device(Box<vhost_user::VhostUser>),
}

impl NetworkBuilder {
    /// Starts the network of a guest behind a descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption): an option contradicts another or the host's network.
    /// [`ErrorKind::Host`](crate::ErrorKind::Host): a port is in use
    /// or not permitted, or there is no descriptor, memory or thread.
    pub fn attach(self, guest: Guest) -> Result<Network, Error> {
        let workers = guest.attachment.workers();
        self.start(Link::Attachment(guest.attachment), workers)
    }

    /// Starts the network of a VMM's guest, and returns the device that serves the guest's queues.
    ///
    /// # Errors
    /// Those of [`Self::attach`]; [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption): with [`Self::without_thread`].
    pub fn device(self) -> Result<(Network, NetDevice), Error> {
        if self.threadless {
            return Err(Error::invalid(
                "a device needs a thread, because the VMM's calls wait for the engine",
            ));
        }
        let mtu = self.mtu;
        let mac = self.guest_mac.unwrap_or(pontoon_engine::config::GUEST_MAC);
        let (control, link) = vhost_user::in_process(mtu).context("cannot create the device")?;
        let network = self.start(Link::Device(Box::new(link)), 1)?;
        Ok((network, NetDevice { control, mac, mtu }))
    }

    /// Starts the network of a guest whose frames the program writes and reads.
    ///
    /// # Errors
    /// Those of [`Self::attach`].
    pub fn frames(self) -> Result<(Network, FramePort), Error> {
        let (socket, ours) = seqpacket::pair().context("cannot open a pair of sockets")?;
        let most = usize::from(self.mtu) + ETHERNET;
        let link = Link::Attachment(Attachment::Packet(Source::Connected(ours)));
        let network = self.start(link, 1)?;
        Ok((network, FramePort { socket, most }))
    }

    fn start(mut self, link: Link, workers: u8) -> Result<Network, Error> {
        if !(576..=65_520).contains(&self.mtu) {
            return Err(Error::invalid("the MTU is not between 576 and 65,520 bytes"));
        }
        let cannot = "cannot start the engine";
        let (channel, supervisor) = seqpacket::pair().context(cannot)?;
        let copy = channel.try_clone().context(cannot)?;
        let (host, first) = HostWatch::start(self.resolvers.is_none(), copy)?;
        let channel = SupervisorChannel::new(channel, 0).context(cannot)?;
        let supervisor = EngineChannel::new(supervisor, 0).context(cannot)?;
        let mut netlink = Netlink::open().context("cannot open a netlink socket")?;
        let chosen = address_plan::choose(&self.addressing, &first.network, &mut netlink);
        let ChosenPlan { plan, .. } = chosen.map_err(|error| Error::of_options(&error))?;
        let resolvers = self.resolvers.take().unwrap_or(first.resolvers);
        let addresses = Addresses::of(&plan, !resolvers.is_empty());
        let (owned, sources) = host.addresses();
        let ports = self.open_ports(&plan, &owned)?;
        let sockets: io::Result<_> = ports.sockets().iter().map(|socket| socket.try_clone()).collect();
        let published: Vec<_> = sockets.context(cannot)?;
        let mut config = self.config(plan, resolvers, &addresses)?;
        config.host = sources;
        config.published = ports.published();

        let table = StatsTable::private(workers, MAX_RULES);
        let events = self.events.map(|EventSink(function)| match self.threadless {
            true => Events::polled(function, self.event_queue.clone(), workers, self.max_flows),
            false => Events::start(function, workers, self.max_flows),
        });
        let (events, event_setup) = events.transpose().context(cannot)?.unzip();
        if let Some(events) = &events {
            events.set_rules(1, self.rules.iter());
        }
        let decider = self.decider.as_ref();
        let setup = EngineSetup {
            config,
            owned,
            published,
            socket_helper: None,
            raw_icmp: pontoon_host_network::open_raw_icmp().context(cannot)?,
            pacing: pacing::here(self.pacing.of_engine(), workers),
            outbound: self.outbound,
            // An engine that ends is not restarted, because its process is the program's.
            ledger: ledger::SharedLedger::none(),
            stats: table.clone(),
            events: event_setup,
            rules_generation: 1,
            decider: decider.map(|decider| decider.setup(self.deadline, workers)),
            restarted: false,
            // The program configures the log.
            set_log_level: |_| {},
        };
        let mut network = Network {
            channel,
            runner: None,
            events,
            event_queue: self.event_queue,
            table,
            generation: 1,
            rules: self.rules.len(),
            counts: self.decider.map(|decider| decider.counts),
            addresses,
            ports,
            host,
            host_thread: None,
            round: 0,
        };
        let runner = run(setup, link, supervisor, self.threadless)?;
        if let Runner::Polled(engine) = &runner {
            engine.poll_with(network.host.as_fd()).context(cannot)?;
        }
        network.runner = Some(runner);
        if !self.threadless {
            network.host_thread = Some(HostThread::start(Arc::clone(&network.host)).context(cannot)?);
            network.wait_until_ready()?;
        }
        Ok(network)
    }

    /// Opens the sockets of published ports.
    fn open_ports(&self, plan: &AddressPlan, owned: &[IpNet]) -> Result<Ports, Error> {
        let mut ports = Ports::new(plan.clone());
        ports.set_owned(owned);
        publish::check(&self.publish).map_err(|error| Error::of_options(&error))?;
        ports.change(&[], &self.publish).map_err(Error::of_ports)?;
        Ok(ports)
    }

    /// Returns the configuration of the engine, without that of published ports and of the host.
    fn config(
        &mut self,
        plan: AddressPlan,
        resolvers: Vec<SocketAddr>,
        addresses: &Addresses,
    ) -> Result<Config, Error> {
        let mut loopback = std::mem::take(&mut self.loopback);
        if self.loopback_at_gateway {
            loopback.extend(addresses.gateways());
        }
        let mut forwards = Forwards::new(plan.clone());
        address_plan::mappings(&plan, &loopback, &self.mapped_host)
            .and_then(|()| check_outbound(&self.outbound))
            .and_then(|()| forwards.change(&[], &self.forwards).map(drop))
            .map_err(|error| Error::of_options(&error))?;
        let default = Config::new(plan);
        let depends = self.credentials.is_some() || !self.proxied.is_empty() || !self.not_proxied.is_empty();
        if self.proxy.is_none() && depends {
            return Err(Error::invalid("there are options of a proxy, and no proxy"));
        }
        let config = Config {
            our_mac: self.gateway_mac.unwrap_or(default.our_mac),
            guest_mac: self.guest_mac.unwrap_or(default.guest_mac),
            mtu: self.mtu,
            hostname: self.hostname.take(),
            fqdn: self.fqdn.take(),
            disabled: self.disabled.iter().map(|service| service.of_engine()).collect(),
            search: std::mem::take(&mut self.search),
            resolvers,
            host_loopback: loopback,
            mapped_host: std::mem::take(&mut self.mapped_host),
            host_addresses: self.host_addresses,
            metadata: self.metadata,
            egress: Egress::new(&self.rules),
            proxy: self.proxy.take().map(|(url, address)| {
                Arc::new(Proxy {
                    protocol: url.protocol,
                    addresses: vec![(address, url.port).into()],
                    credentials: self.credentials.take(),
                    destinations: ProxyDestinations::new(&self.proxied, &self.not_proxied),
                    names: None,
                })
            }),
            forwards: forwards.forwards(),
            connect_timeout: self.connect_timeout,
            // The decider is asked about each address and port, so that replies come only from those that it has allowed.
            udp_filter: match (self.udp_filter, &self.decider) {
                (Some(filter), _) => filter.of_engine(),
                (None, Some(_)) => UdpFilter::AddressPort.of_engine(),
                (None, None) => default.udp_filter,
            },
            max_flows: self.max_flows,
            max_udp_ports: self
                .max_udp_ports
                .unwrap_or_else(pontoon_host_network::max_udp_ports),
            max_flow_rate: self.max_flow_rate,
            bandwidth: self.max_bandwidth.map(Bandwidth::new),
            ..default
        };
        if config.our_mac == config.guest_mac {
            return Err(Error::invalid("guest and gateway have the same Ethernet address"));
        }
        Ok(config)
    }
}

/// Starts the engine.
fn run(setup: EngineSetup, link: Link, supervisor: EngineChannel, threadless: bool) -> Result<Runner, Error> {
    if threadless {
        let Link::Attachment(attachment) = link else {
            return Err(Error::invalid("a device needs a thread"));
        };
        let engine = PolledEngine::start(setup, attachment, supervisor).context("cannot start the engine")?;
        return Ok(Runner::Polled(Box::new(engine)));
    }
    let thread = thread::Builder::new().name("pontoon".to_owned());
    let started = thread.spawn(move || match link {
        Link::Attachment(attachment) => pontoon_worker::carry(setup, attachment, supervisor),
        Link::Device(link) => pontoon_worker::carry_in_process(setup, *link, supervisor),
    });
    started.map(Runner::Thread).context("cannot start the engine")
}

impl Network {
    /// Waits for the first report of the engine.
    fn wait_until_ready(&mut self) -> Result<(), Error> {
        loop {
            match self.channel.receive() {
                Ok(Some(Report::Ready)) => return Ok(()),
                Ok(Some(_)) => {}
                Ok(None) => return Err(self.end().err().unwrap_or_else(Error::ended)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let waited = network::wait(self.channel.as_fd(), PollFlags::IN, None);
                    waited.context("cannot wait for the engine")?;
                }
                Err(error) => return Err(error).context("cannot start the engine"),
            }
        }
    }
}
