//! Options of a network, and its start.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use pontoon_engine::config::UdpFilter;
use pontoon_engine::egress::{Action, EgressRule, Match};
use pontoon_engine::{Bandwidth, Config, Egress};
use pontoon_host_network::address_plan::{self, ChosenPlan};
use pontoon_host_network::addressing::{AddressSource, Addressing, Ipv4, Ipv6};
use pontoon_host_network::publish::{self, Ports, Publish};
use pontoon_link::{Attachment, Source, vhost_user};
use pontoon_process::netlink::Netlink;
use pontoon_sys::seqpacket;
use pontoon_wire::Mac;
use pontoon_worker::messages::{EngineChannel, Report, SupervisorChannel};
use pontoon_worker::stats::StatsTable;
use pontoon_worker::{EngineSetup, PolledEngine, ledger, pacing};
use rustix::event::PollFlags;

use crate::decision::FlowDecider;
use crate::error::Context as _;
use crate::events::{EventFunction, Events};
use crate::frames::ETHERNET;
use crate::host::{HostThread, HostWatch};
use crate::network::{self, MAX_RULES, Runner};
use crate::{
    Addresses, DECISION_DEADLINE, Error, ErrorKind, Event, EventQueue, FlowRequest, FramePort, Guest,
    NetDevice, Network, Pacing, RequestQueue, Verdict,
};

/// Options of a network. Each function sets one, and [`attach`](Self::attach), [`device`](Self::device) or
/// [`frames`](Self::frames) starts the network.
///
/// By default the guest has 10.0.2.15/24 and fd70:6f6e:746f::15/64, or the next subnets that the host does not use, an MTU of
/// 1,500 bytes, the host's resolvers, no published ports, and at most 1,000 flows. It reaches all destinations but the host's
/// own addresses, its loopback, and the metadata services of cloud providers.
#[derive(Debug)]
#[must_use]
pub struct NetworkBuilder {
    addressing: Addressing,
    mtu: u16,
    guest_mac: Option<Mac>,
    hostname: Option<String>,
    search: Vec<String>,
    resolvers: Option<Vec<SocketAddr>>,
    loopback_at_gateway: bool,
    loopback: Vec<IpAddr>,
    host_addresses: bool,
    metadata: bool,
    rules: Vec<EgressRule>,
    publish: Vec<Publish>,
    max_flows: u32,
    max_flow_rate: Option<u32>,
    max_bandwidth: Option<NonZeroU64>,
    connect_timeout: Option<Duration>,
    pacing: Pacing,
    decider: Option<FlowDecider>,
    deadline: Duration,
    events: Option<EventSink>,
    event_queue: Option<EventQueue>,
    threadless: bool,
}

/// Function for events, which has no text form.
struct EventSink(EventFunction);

/// Start of an engine for a link.
enum Link {
    Attachment(Attachment),
    Device(Box<pontoon_link::vhost_user::VhostUser>),
}

impl NetworkBuilder {
    /// Returns the default options.
    pub fn new() -> Self {
        Self {
            addressing: Addressing::default(),
            mtu: 1_500,
            guest_mac: None,
            hostname: None,
            search: Vec::new(),
            resolvers: None,
            loopback_at_gateway: false,
            loopback: Vec::new(),
            host_addresses: false,
            metadata: false,
            rules: Vec::new(),
            publish: Vec::new(),
            max_flows: 1_000,
            max_flow_rate: None,
            max_bandwidth: None,
            connect_timeout: None,
            pacing: Pacing::Hybrid,
            decider: None,
            deadline: DECISION_DEADLINE,
            events: None,
            event_queue: None,
            threadless: false,
        }
    }

    /// Sets the guest's private subnet of IPv4, for example `10.0.2.0/24`, with a prefix of 8 to 27 bits. The gateway has the
    /// second address in it, the DNS forwarder the third, and the guest the fifteenth.
    ///
    /// # Errors
    /// The text is not a subnet.
    pub fn ipv4_subnet(mut self, subnet: &str) -> Result<Self, Error> {
        let parsed = subnet.parse();
        self.addressing.ipv4 = Ipv4::Subnet(parsed.map_err(|_| not_subnet(subnet))?);
        Ok(self)
    }

    /// Sets the guest's private subnet of IPv6, a /64, for example `fd70:6f6e:746f::/64`.
    ///
    /// # Errors
    /// The text is not a subnet.
    pub fn ipv6_subnet(mut self, subnet: &str) -> Result<Self, Error> {
        let parsed = subnet.parse();
        self.addressing.ipv6 = Ipv6::Subnet(parsed.map_err(|_| not_subnet(subnet))?);
        Ok(self)
    }

    /// Disables IPv4 in the guest.
    pub fn without_ipv4(mut self) -> Self {
        self.addressing.ipv4 = Ipv4::Off;
        self
    }

    /// Disables IPv6 in the guest.
    pub fn without_ipv6(mut self) -> Self {
        self.addressing.ipv6 = Ipv6::Off;
        self
    }

    /// Adds an address of the guest with the length of its subnet's prefix, for example `192.168.7.2/24`, in place of the
    /// default one of its family.
    ///
    /// # Errors
    /// The text is not an address with a length.
    pub fn address(mut self, address: &str) -> Result<Self, Error> {
        let parsed: Result<IpNet, _> = address.parse();
        let parsed = parsed.map_err(|_| Error::invalid(format!("'{address}' is not ADDRESS/LENGTH")))?;
        self.addressing.addresses.push(parsed);
        Ok(self)
    }

    /// Sets the address of the guest's gateway in its family.
    pub fn gateway(mut self, gateway: IpAddr) -> Self {
        let gateways = &mut self.addressing.gateways;
        gateways.retain(|other| other.is_ipv4() != gateway.is_ipv4());
        gateways.push(gateway);
        self
    }

    /// Sets the address of the DNS forwarder in its family, on any subnet.
    pub fn dns_address(mut self, address: IpAddr) -> Self {
        let addresses = &mut self.addressing.dns;
        addresses.retain(|other| other.is_ipv4() != address.is_ipv4());
        addresses.push(address);
        self
    }

    /// Gives the guest the addresses and routes of an interface of the host; `None` is the one with the default route.
    pub fn addresses_of_host(mut self, interface: Option<&str>) -> Self {
        self.addressing.source = AddressSource::Host(interface.map(str::to_owned));
        self
    }

    /// Sets the MTU of the link in bytes, from 576 to 65,520. DHCP and router advertisements announce it. Over a socket, 65,520
    /// makes bulk transfers several times as fast as the default of 1,500.
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets the guest's Ethernet address, which the device announces, and which is assumed until the guest's first frame.
    pub fn guest_mac(mut self, mac: [u8; 6]) -> Self {
        self.guest_mac = Some(Mac(mac));
        self
    }

    /// Sets the host name that DHCP assigns to the guest.
    pub fn hostname(mut self, hostname: &str) -> Self {
        self.hostname = Some(hostname.to_owned());
        self
    }

    /// Adds a DNS search domain, which DHCP and router advertisements announce.
    pub fn search_domain(mut self, domain: &str) -> Self {
        self.search.push(domain.to_owned());
        self
    }

    /// Sets the resolvers to which the DNS forwarder sends queries, in order of preference; an empty list disables the
    /// forwarder. By default they are those of the host's resolv.conf(5).
    pub fn resolvers(mut self, resolvers: &[SocketAddr]) -> Self {
        self.resolvers = Some(resolvers.to_vec());
        self
    }

    /// Permits the guest to reach the host's loopback address by the address of its gateway.
    pub fn host_loopback_at_gateway(mut self) -> Self {
        self.loopback_at_gateway = true;
        self
    }

    /// Permits the guest to reach the host's loopback address by `address`.
    pub fn host_loopback(mut self, address: IpAddr) -> Self {
        self.loopback.push(address);
        self
    }

    /// Permits the guest to reach the host's own addresses.
    pub fn host_addresses(mut self) -> Self {
        self.host_addresses = true;
        self
    }

    /// Permits the guest to reach the metadata services of cloud providers.
    pub fn metadata(mut self) -> Self {
        self.metadata = true;
        self
    }

    /// Adds an egress rule: a value of the option `--allow`, for example `*.example.org:443/tcp` or `192.0.2.0/24`. If there is
    /// one, all other destinations are denied.
    ///
    /// # Errors
    /// The text is not a rule.
    pub fn allow(self, destination: &str) -> Result<Self, Error> {
        self.rule(Action::Allow, destination)
    }

    /// Adds an egress rule: a value of the option `--deny`. It takes precedence over all `allow` rules.
    ///
    /// # Errors
    /// The text is not a rule.
    pub fn deny(self, destination: &str) -> Result<Self, Error> {
        self.rule(Action::Deny, destination)
    }

    fn rule(mut self, action: Action, destination: &str) -> Result<Self, Error> {
        let to: Match = destination.parse().map_err(Error::invalid)?;
        self.rules.push(EgressRule { action, to });
        Ok(self)
    }

    /// Publishes ports of the guest on the host: a value of the option `--publish`, for example `127.0.0.1:8080:80`,
    /// `5353:53/udp` or `8000-8009`. The library opens the sockets at the start. `auto` is not available, because the ports on
    /// which the guest listens are not known.
    ///
    /// # Errors
    /// The text is not a specification.
    pub fn publish(mut self, specification: &str) -> Result<Self, Error> {
        self.publish.push(specification.parse().map_err(Error::invalid)?);
        Ok(self)
    }

    /// Sets the limit on simultaneous flows. Each flow has a descriptor, of which the process needs enough (RLIMIT_NOFILE, whose
    /// value the library does not change).
    pub fn max_flows(mut self, flows: u32) -> Self {
        self.max_flows = flows;
        self
    }

    /// Sets the limit on new flows in a second; by default there is none.
    pub fn max_flow_rate(mut self, flows: u32) -> Self {
        self.max_flow_rate = Some(flows);
        self
    }

    /// Sets the limit on bits per second in each direction; by default, and with 0, there is none.
    pub fn max_bandwidth(mut self, bits: u64) -> Self {
        self.max_bandwidth = NonZeroU64::new(bits);
        self
    }

    /// Sets the time after which a TCP connect of the guest fails; by default it is that of the host's kernel.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Sets the way in which the engine's threads wait for input: spinning or sleeping. A network without a thread does not
    /// spin.
    pub fn pacing(mut self, pacing: Pacing) -> Self {
        self.pacing = pacing;
        self
    }

    /// Sets a function that decides about each new flow which the rules allow, and replaces an earlier decider. It returns a
    /// verdict, or `None` if one follows by [`Network::decide`] or [`VerdictSender`](crate::VerdictSender).
    ///
    /// The function is called in the thread that processes packets, with no lock held, and for several queues in several
    /// threads at the same time. While it does not return, no packet is processed; see
    /// [`Stats::slow_decisions`](crate::Stats::slow_decisions). A panic denies the flow, and is counted in
    /// [`Stats::decider_panics`](crate::Stats::decider_panics).
    pub fn decide_by(
        mut self,
        decide: impl Fn(&FlowRequest) -> Option<Verdict> + Send + Sync + 'static,
    ) -> Self {
        self.decider = Some(FlowDecider::function(decide));
        self
    }

    /// Has the program decide about each new flow which the rules allow, by a queue of requests, and replaces an earlier
    /// decider. The verdicts follow by [`Network::decide`] or [`VerdictSender`](crate::VerdictSender).
    ///
    /// # Errors
    /// [`ErrorKind::Host`]: no free descriptor.
    pub fn decide_by_queue(mut self) -> Result<(Self, RequestQueue), Error> {
        let queue = RequestQueue::new().context("cannot open a queue")?;
        self.decider = Some(FlowDecider::queue(&queue));
        Ok((self, queue))
    }

    /// Sets the time after which a flow without a verdict is denied; by default [`DECISION_DEADLINE`].
    pub fn decision_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets a function that receives a record of each event of a flow, and replaces an earlier function or queue. It is called
    /// in a thread of its own, or in [`Network::dispatch`] if the network has no thread, in the order of the numbers.
    ///
    /// While the function does not return, events wait in memory of limited size; no packet is delayed. After a panic it is not
    /// called any more, and [`Network::stop`] returns an error.
    pub fn on_event(mut self, function: impl FnMut(&Event<'_>) + Send + 'static) -> Self {
        self.events = Some(EventSink(Box::new(function)));
        self.event_queue = None;
        self
    }

    /// Passes the records of flows to a queue, and replaces an earlier function or queue.
    ///
    /// # Errors
    /// [`ErrorKind::Host`]: no free descriptor.
    pub fn events_by_queue(mut self) -> Result<(Self, EventQueue), Error> {
        let queue = EventQueue::new().context("cannot open a queue")?;
        let target = Arc::clone(&queue.0);
        self = self.on_event(move |event| target.push_waiting(event.json.to_owned()));
        self.event_queue = Some(queue.clone());
        Ok((self, queue))
    }

    /// Starts no thread: packets are processed in [`Network::dispatch`]. Not available for a [`NetDevice`] and for vhost-user
    /// with several queues.
    pub fn without_thread(mut self) -> Self {
        self.threadless = true;
        self
    }

    /// Starts the network of a guest behind a descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`]: an option contradicts another or the host's network. [`ErrorKind::Host`]: a port is in use
    /// or not permitted, or there is no descriptor, memory or thread.
    pub fn attach(self, guest: Guest) -> Result<Network, Error> {
        let workers = guest.attachment.workers();
        self.start(Link::Attachment(guest.attachment), workers)
    }

    /// Starts the network of a VMM's guest, and returns the device that serves the guest's queues.
    ///
    /// # Errors
    /// Those of [`Self::attach`]; [`ErrorKind::InvalidOption`]: with [`Self::without_thread`].
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

    fn start(self, link: Link, workers: u8) -> Result<Network, Error> {
        if !(576..=65_520).contains(&self.mtu) {
            return Err(Error::invalid("the MTU is not between 576 and 65,520 bytes"));
        }
        let cannot = "cannot start the engine";
        let (channel, supervisor) = seqpacket::pair().context(cannot)?;
        let copy = channel.try_clone().context(cannot)?;
        let (host, first) = HostWatch::start(self.resolvers.is_none(), copy)?;
        let mut netlink = Netlink::open().context("cannot open a netlink socket")?;
        let chosen = address_plan::choose(&self.addressing, &first.network, &mut netlink);
        let ChosenPlan { plan, .. } = chosen.map_err(|error| Error::of_options(&error))?;
        let resolvers = self.resolvers.unwrap_or(first.resolvers);
        let addresses = Addresses::of(&plan, !resolvers.is_empty());
        let mut loopback = self.loopback.clone();
        if self.loopback_at_gateway {
            loopback.extend(addresses.gateways());
        }
        address_plan::mappings(&plan, &loopback, &[]).map_err(|error| Error::of_options(&error))?;

        let mut ports = Ports::new(plan.clone());
        let (owned, sources) = host.addresses();
        ports.set_owned(&owned);
        publish::check(&self.publish).map_err(|error| Error::of_options(&error))?;
        ports.change(&[], &self.publish).map_err(Error::of_ports)?;

        let default = Config::new(plan);
        let config = Config {
            guest_mac: self.guest_mac.unwrap_or(default.guest_mac),
            mtu: self.mtu,
            hostname: self.hostname,
            search: self.search,
            resolvers,
            host_loopback: loopback,
            host: sources,
            host_addresses: self.host_addresses,
            metadata: self.metadata,
            egress: Egress::new(&self.rules),
            published: ports.published(),
            connect_timeout: self.connect_timeout,
            // The decider is asked about each address and port, so that replies come only from those that it has allowed.
            udp_filter: match self.decider {
                Some(_) => UdpFilter::AddressPort,
                None => default.udp_filter,
            },
            max_flows: self.max_flows,
            max_udp_ports: pontoon_host_network::max_udp_ports(),
            max_flow_rate: self.max_flow_rate,
            bandwidth: self.max_bandwidth.map(Bandwidth::new),
            ..default
        };

        let sockets: io::Result<_> = ports.sockets().iter().map(|socket| socket.try_clone()).collect();
        let sockets: Vec<_> = sockets.context(cannot)?;
        let raw_icmp = pontoon_host_network::open_raw_icmp().context(cannot)?;
        let channel = SupervisorChannel::new(channel, 0).context(cannot)?;
        let supervisor = EngineChannel::new(supervisor, 0).context(cannot)?;
        let table = StatsTable::private(workers, MAX_RULES);
        let events = self.events.map(|EventSink(function)| match self.threadless {
            true => Events::polled(function, workers, self.max_flows),
            false => Events::start(function, workers, self.max_flows),
        });
        let (events, event_setup) = events.transpose().context(cannot)?.unzip();
        if let Some(events) = &events {
            events.set_rules(1, self.rules.iter());
        }
        let setup = EngineSetup {
            config,
            owned,
            published: sockets,
            raw_icmp,
            pacing: pacing::here(self.pacing.of_engine(), workers),
            outbound: pontoon_worker::Outbound::default(),
            // An engine that ends is not restarted, because its process is the program's.
            ledger: ledger::SharedLedger::none(),
            stats: table.clone(),
            events: event_setup,
            rules_generation: 1,
            decider: self
                .decider
                .as_ref()
                .map(|decider| decider.setup(self.deadline, workers)),
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

fn not_subnet(text: &str) -> Error {
    Error::new(ErrorKind::InvalidOption, format!("'{text}' is not a subnet"))
}

impl Default for NetworkBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for EventSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventSink").finish_non_exhaustive()
    }
}
