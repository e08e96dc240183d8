//! Options of a network.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use pontoon_engine::egress::{Action, EgressRule, Match};
use pontoon_host_network::addressing::{AddressSource, Addressing, Ipv4, Ipv6};
use pontoon_host_network::forward::Forward;
use pontoon_host_network::publish::Publish;
use pontoon_proxy::{Credentials, Host, ProxyUrl, UrlError};
use pontoon_wire::Mac;
use pontoon_worker::Outbound;

use crate::decision::FlowDecider;
use crate::error::Context as _;
use crate::events::EventFunction;
use crate::{
    DECISION_DEADLINE, Error, ErrorKind, Event, EventQueue, FlowRequest, LinkService, Pacing, RequestQueue,
    UdpFilter, Verdict,
};

mod start;

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
    gateway_mac: Option<Mac>,
    hostname: Option<String>,
    fqdn: Option<String>,
    search: Vec<String>,
    resolvers: Option<Vec<SocketAddr>>,
    loopback_at_gateway: bool,
    loopback: Vec<IpAddr>,
    mapped_host: Vec<IpAddr>,
    forwards: Vec<Forward>,
    outbound: Outbound,
    disabled: Vec<LinkService>,
    udp_filter: Option<UdpFilter>,
    host_addresses: bool,
    metadata: bool,
    rules: Vec<EgressRule>,
    proxy: Option<(ProxyUrl, IpAddr)>,
    credentials: Option<Credentials>,
    proxied: Vec<Match>,
    not_proxied: Vec<Match>,
    publish: Vec<Publish>,
    max_flows: u32,
    max_udp_ports: Option<u32>,
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

impl NetworkBuilder {
    /// Returns the default options.
    pub fn new() -> Self {
        Self {
            addressing: Addressing::default(),
            mtu: 1_500,
            guest_mac: None,
            gateway_mac: None,
            hostname: None,
            fqdn: None,
            search: Vec::new(),
            resolvers: None,
            loopback_at_gateway: false,
            loopback: Vec::new(),
            mapped_host: Vec::new(),
            forwards: Vec::new(),
            outbound: Outbound::default(),
            disabled: Vec::new(),
            udp_filter: None,
            host_addresses: false,
            metadata: false,
            rules: Vec::new(),
            proxy: None,
            credentials: None,
            proxied: Vec::new(),
            not_proxied: Vec::new(),
            publish: Vec::new(),
            max_flows: 1_000,
            max_udp_ports: None,
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

    /// Sets the Ethernet address of the gateway.
    pub fn gateway_mac(mut self, mac: [u8; 6]) -> Self {
        self.gateway_mac = Some(Mac(mac));
        self
    }

    /// Sets the host name that DHCP assigns to the guest.
    pub fn hostname(mut self, hostname: &str) -> Self {
        self.hostname = Some(hostname.to_owned());
        self
    }

    /// Sets the fully qualified domain name that DHCP assigns to the guest (RFC 4702, RFC 4704).
    pub fn fqdn(mut self, fqdn: &str) -> Self {
        self.fqdn = Some(fqdn.to_owned());
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

    /// Lets the guest reach the host by `address`: the engine connects to the address from which the host sends to other hosts.
    pub fn map_host(mut self, address: IpAddr) -> Self {
        self.mapped_host.push(address);
        self
    }

    /// Lets the guest reach ports of the host: a value of the option `--guest-forward`, for example `8080` (port 8080 of the host's
    /// loopback address, by the gateway's) or `10.0.2.100:80:192.0.2.1:8080`. `auto` is not available.
    ///
    /// # Errors
    /// The text is not a specification.
    pub fn guest_forward(mut self, specification: &str) -> Result<Self, Error> {
        let forward: Forward = specification.parse().map_err(Error::invalid)?;
        if forward.is_auto() {
            return Err(Error::invalid("'auto' is not available"));
        }
        self.forwards.push(forward);
        Ok(self)
    }

    /// Sets the source address of the guest's connections and datagrams on the host, in its family. Packets to the host's loopback
    /// have another one.
    pub fn outbound_address(mut self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.outbound.v4 = Some(v4),
            IpAddr::V6(v6) => self.outbound.v6 = Some(v6),
        }
        self
    }

    /// Sets the interface of the host to which the sockets of the guest's connections and datagrams are bound.
    pub fn outbound_interface(mut self, name: &str) -> Self {
        self.outbound.interface = Some(name.to_owned());
        self
    }

    /// Disables a protocol or service of the guest's link.
    pub fn disable(mut self, service: LinkService) -> Self {
        self.disabled.push(service);
        self
    }

    /// Sets the senders whose datagrams a UDP endpoint of the guest receives; by default [`UdpFilter::Address`], and with a decider
    /// [`UdpFilter::AddressPort`], because it decides about each address and port.
    pub fn udp_filter(mut self, filter: UdpFilter) -> Self {
        self.udp_filter = Some(filter);
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
        self.rules
            .push(EgressRule::new(action, to).map_err(Error::invalid)?);
        Ok(self)
    }

    /// Opens the guest's TCP connections through a proxy: `http://ADDRESS:PORT` (CONNECT) or `socks5://ADDRESS:PORT`. The address
    /// may be that of the host's loopback. The library resolves no name of a proxy. Datagrams and echo requests to the
    /// destinations of the proxy are refused.
    ///
    /// # Errors
    /// The text is no such URL.
    pub fn proxy(mut self, url: &str) -> Result<Self, Error> {
        let url: ProxyUrl = url
            .parse()
            .map_err(|error: UrlError| Error::invalid(error.to_string()))?;
        self.proxy = match url.host {
            Host::Address(address) => Some((url, address)),
            Host::Name(name) => {
                return Err(Error::invalid(format!(
                    "the proxy {name} has a name, not an address"
                )));
            }
        };
        Ok(self)
    }

    /// Sets the user name and password at the proxy. They are in the memory of the program, and in its core files.
    ///
    /// # Errors
    /// The user name is empty, or the proxy's protocol cannot transfer one of them.
    pub fn proxy_credentials(mut self, user: &str, password: &str) -> Result<Self, Error> {
        let credentials = Credentials::new(user.to_owned(), password.to_owned());
        self.credentials = Some(credentials.map_err(|error| Error::invalid(error.to_string()))?);
        Ok(self)
    }

    /// Adds destinations of the proxy: a value of the option `--proxy-for`. Without one, all destinations use the proxy.
    ///
    /// # Errors
    /// The text is not a destination.
    pub fn proxy_for(mut self, destination: &str) -> Result<Self, Error> {
        self.proxied.push(proxied(destination)?);
        Ok(self)
    }

    /// Adds destinations that do not use the proxy: a value of the option `--no-proxy`.
    ///
    /// # Errors
    /// The text is not a destination.
    pub fn no_proxy(mut self, destination: &str) -> Result<Self, Error> {
        self.not_proxied.push(proxied(destination)?);
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

    /// Sets the limit on UDP ports of the host in each address family; by default it is a quarter of the ephemeral ports.
    pub fn max_udp_ports(mut self, ports: u32) -> Self {
        self.max_udp_ports = Some(ports);
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
    /// verdict, or `None` if one follows by [`Network::decide`](crate::Network::decide) or
    /// [`VerdictSender`](crate::VerdictSender).
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
    /// decider. The verdicts follow by [`Network::decide`](crate::Network::decide) or [`VerdictSender`](crate::VerdictSender).
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
    /// in a thread of its own, or in [`Network::dispatch`](crate::Network::dispatch) if the network has no thread, in the order
    /// of the numbers.
    ///
    /// While the function does not return, events wait in memory of limited size; no packet is delayed. After a panic it is not
    /// called any more, and [`Network::stop`](crate::Network::stop) returns an error.
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

    /// Starts no thread: packets are processed in [`Network::dispatch`](crate::Network::dispatch). Not available for a
    /// [`NetDevice`](crate::NetDevice) and for vhost-user with several queues.
    pub fn without_thread(mut self) -> Self {
        self.threadless = true;
        self
    }
}

fn not_subnet(text: &str) -> Error {
    Error::new(ErrorKind::InvalidOption, format!("'{text}' is not a subnet"))
}

/// Parses a destination of the proxy, which has no proof.
fn proxied(destination: &str) -> Result<Match, Error> {
    let to: Match = destination.parse().map_err(Error::invalid)?;
    match to.proof {
        None => Ok(to),
        Some(proof) => Err(Error::invalid(format!("'{to}': '/{proof}' is for allow rules"))),
    }
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
