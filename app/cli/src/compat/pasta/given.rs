//! Options of a command line of pasta, and their translation into options of the network.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use pontoon_process::log::file;
use pontoon_supervisor::capture::Capture;
use pontoon_supervisor::log_file::LogTo;
use pontoon_supervisor::options::PestoSocket;

use super::ports::Ports;
use super::values::{self, Addresses, OfFamily, number};
use super::{Key, Mode, option, text};

/// Log level that the options select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Level {
    Trace,
    Debug,
    #[default]
    Info,
    Quiet,
}

/// Options of a command line, with their values. Of an option that is given several times, the last value counts.
#[derive(Debug)]
pub(in crate::compat) struct Given {
    pub(super) mode: Mode,
    pub(super) level: Level,
    pub(in crate::compat) foreground: bool,
    pub(super) log_file: Option<OsString>,
    pub(super) log_size: Option<u64>,
    ifname: Option<String>,
    pub(super) pcap: Option<OsString>,
    pub(super) pid: Option<OsString>,
    pub(super) conf_path: Option<OsString>,
    mtu: Option<u16>,
    /// The guest's addresses, the IPv4 one with its prefix length if `-a` contains it.
    address: OfFamily<(Ipv4Addr, Option<u8>), Ipv6Addr>,
    /// True if the last `-a` contains a prefix length.
    has_prefix: bool,
    netmask: Option<u8>,
    mac_addr: Option<String>,
    ns_mac_addr: Option<String>,
    gateway: Addresses,
    interface: Option<String>,
    outbound: Addresses,
    outbound_interface4: Option<String>,
    outbound_interface6: Option<String>,
    /// Addresses of `--dns`, of which only the first of a family can be used.
    dns: Vec<IpAddr>,
    no_dns: bool,
    dhcp_dns: bool,
    dhcp_search: bool,
    dns_forward: Addresses,
    dns_host: Addresses,
    search: Vec<String>,
    no_search: bool,
    pub(in crate::compat) hostname: Option<String>,
    fqdn: Option<String>,
    disabled: Vec<&'static str>,
    no_map_gateway: bool,
    map_host_loopback: Addresses,
    map_guest_addr: Addresses,
    only: Option<Family>,
    ports: Ports,
    pub(super) userns: Option<OsString>,
    pub(super) netns: Option<OsString>,
    pub(super) netns_only: bool,
    pub(super) no_netns_quit: bool,
    pub(super) config_net: bool,
    pub(super) no_copy_routes: bool,
    pub(super) no_copy_addrs: bool,
    pub(super) host_lo: bool,
    pub(super) no_splice: bool,
    pub(super) splice_only: bool,
    /// Path of the socket of `-s`, or number of the descriptor of `-F`, whichever is given last.
    pub(in crate::compat) socket: Option<PasstSocket>,
    pub(in crate::compat) one_off: bool,
    pub(in crate::compat) vhost_user: bool,
}

/// Socket of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::compat) enum PasstSocket {
    Path(OsString),
    Descriptor(String),
}

/// Address family of `-4` or `-6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

/// Ethernet address of the gateway unless `-M` names another.
const GATEWAY_MAC: &str = "9a:55:9a:55:9a:55";

/// The largest MTU, and the default.
const MOST_MTU: u16 = 65_520;

/// MTU of an interface whose MTU is not set.
const USUAL_MTU: u16 = 1_500;

/// Minimum MTU of an interface with IPv6 (RFC 8200 section 5).
const LEAST_IPV6_MTU: u16 = 1_280;

impl Given {
    /// Returns the defaults of `mode`.
    pub(super) fn new(mode: Mode) -> Self {
        // A virtual machine is configured by DHCP; a namespace has the resolv.conf of its mount namespace.
        let has_dhcp = mode == Mode::Passt;
        Self {
            mode,
            level: Level::default(),
            foreground: false,
            log_file: None,
            log_size: None,
            ifname: None,
            pcap: None,
            pid: None,
            conf_path: None,
            mtu: None,
            address: OfFamily::default(),
            has_prefix: false,
            netmask: None,
            mac_addr: None,
            ns_mac_addr: None,
            gateway: Addresses::default(),
            interface: None,
            outbound: Addresses::default(),
            outbound_interface4: None,
            outbound_interface6: None,
            dns: Vec::new(),
            no_dns: false,
            dhcp_dns: has_dhcp,
            dhcp_search: has_dhcp,
            dns_forward: Addresses::default(),
            dns_host: Addresses::default(),
            search: Vec::new(),
            no_search: false,
            hostname: None,
            fqdn: None,
            disabled: Vec::new(),
            no_map_gateway: false,
            map_host_loopback: Addresses::default(),
            map_guest_addr: Addresses::default(),
            only: None,
            ports: Ports::default(),
            userns: None,
            netns: None,
            netns_only: false,
            no_netns_quit: false,
            config_net: false,
            no_copy_routes: false,
            no_copy_addrs: false,
            host_lo: false,
            no_splice: false,
            splice_only: false,
            socket: None,
            one_off: false,
            vhost_user: false,
        }
    }

    /// Stores the value of one option.
    pub(super) fn take(&mut self, key: Key, value: &OsStr) -> Result<(), String> {
        match key {
            Key::LogFile => self.log_file = Some(limited::<LogTo>("log file", value, |to| to.file)?),
            Key::Pcap => self.pcap = Some(limited::<Capture>("pcap path", value, |to| to.file)?),
            Key::Pid => self.pid = Some(path("PID file", value)?),
            Key::ConfPath => {
                let socket = limited::<PestoSocket>("configuration path", value, |socket| socket.path);
                self.conf_path = Some(socket?);
            }
            Key::Userns => {
                self.userns = Some(path("userns", value)?);
                self.netns_only = false;
            }
            Key::Netns => self.netns = Some(path("netns", value)?),
            Key::Socket => self.socket = Some(PasstSocket::Path(path("socket path", value)?)),
            Key::RepairPath if value != "none" => return Err(text::REPAIR_PATH.to_owned()),
            _ if value.is_empty() => self.take_flag(key)?,
            _ => return self.take_text(key, values::text(value)?),
        }
        Ok(())
    }

    /// Stores an option without an argument, or with an empty one.
    fn take_flag(&mut self, key: Key) -> Result<(), String> {
        match key {
            Key::Debug if self.level == Level::Trace => {}
            Key::Debug => self.level = Level::Debug,
            Key::Trace => self.level = Level::Trace,
            Key::Quiet => self.level = Level::Quiet,
            Key::Foreground => self.foreground = true,
            Key::DhcpDns => self.dhcp_dns = true,
            Key::DhcpSearch => self.dhcp_search = true,
            Key::NoDhcpDns => self.dhcp_dns = false,
            Key::NoDhcpSearch => self.dhcp_search = false,
            Key::OneOff => self.one_off = true,
            Key::VhostUser => self.vhost_user = true,
            // A machine keeps no connections when it migrates, whether passt exits or closes its sockets then.
            Key::Migration(option) if !self.vhost_user => {
                return Err(format!("--{option} is for vhost-user mode only"));
            }
            Key::Disable(service) => self.disabled.push(service),
            Key::NoMapGateway => self.no_map_gateway = true,
            Key::Ipv4Only => self.only = Some(Family::V4),
            Key::Ipv6Only => self.only = Some(Family::V6),
            Key::NetnsOnly => {
                self.netns_only = true;
                self.userns = None;
            }
            Key::NoNetnsQuit => self.no_netns_quit = true,
            Key::ConfigNet => self.config_net = true,
            Key::NoCopyRoutes => self.no_copy_routes = true,
            Key::NoCopyAddrs => self.no_copy_addrs = true,
            Key::HostLoToNsLo => self.host_lo = true,
            Key::NoSplice => self.no_splice = true,
            Key::SpliceOnly => self.splice_only = true,
            // `translate` handles the options that end the program.
            Key::Ignored(_) | Key::Refused(_) | Key::Help | Key::Version => {}
            // The other options have an argument, which is empty.
            _ => return self.take_text(key, ""),
        }
        Ok(())
    }

    /// Stores an option with an argument.
    fn take_text(&mut self, key: Key, value: &str) -> Result<(), String> {
        let owned = || value.to_owned();
        match key {
            Key::LogSize => self.log_size = Some(log_size(value)?),
            Key::Fd => self.socket = Some(PasstSocket::Descriptor(descriptor(value)?)),
            Key::NsIfname => self.ifname = Some(values::interface(value)?),
            Key::Mtu => self.mtu = Some(mtu(value)?),
            Key::Address => self.take_address(value)?,
            Key::Netmask if self.has_prefix => return Err(REDUNDANT.to_owned()),
            Key::Netmask => self.netmask = Some(values::netmask(value)?),
            Key::MacAddr => self.mac_addr = Some(values::mac(value)?),
            Key::NsMacAddr => self.ns_mac_addr = Some(values::mac(value)?),
            Key::Gateway => self
                .gateway
                .set(values::address(value, "Invalid gateway address", false)?),
            Key::Interface => self.interface = Some(values::interface(value)?),
            Key::Outbound => self.outbound.set(values::outbound(value)?),
            Key::OutboundInterface4 => self.outbound_interface4 = Some(values::interface(value)?),
            Key::OutboundInterface6 => self.outbound_interface6 = Some(values::interface(value)?),
            Key::Dns => self.take_dns(value)?,
            Key::DnsForward => {
                let wrong = "Invalid DNS forwarding address";
                self.dns_forward.set(values::address(value, wrong, false)?);
            }
            Key::DnsHost => {
                let wrong = "Invalid host nameserver address";
                self.dns_host.set(values::address(value, wrong, true)?);
            }
            Key::Search => self.take_search(value)?,
            Key::Hostname => self.hostname = Some(owned()),
            Key::Fqdn => {
                crate::values::domain(value).map_err(|_| format!("Invalid FQDN: {value}"))?;
                self.fqdn = Some(owned());
            }
            Key::MapHostLoopback => match values::mapped(value)? {
                Some(address) => self.map_host_loopback.set(address),
                None => {
                    self.map_host_loopback = Addresses::default();
                    self.no_map_gateway = true;
                }
            },
            Key::MapGuestAddr => match values::mapped(value)? {
                Some(address) => self.map_guest_addr.set(address),
                None => self.map_guest_addr = Addresses::default(),
            },
            Key::Ports(direction) => self.ports.take(direction, value)?,
            // The other options have no argument, and `take` handles those whose argument is a path.
            _ => {}
        }
        Ok(())
    }

    fn take_address(&mut self, value: &str) -> Result<(), String> {
        let (address, prefix) = values::guest_address(value)?;
        self.has_prefix = prefix.is_some();
        if self.has_prefix && self.netmask.is_some() {
            return Err(REDUNDANT.to_owned());
        }
        match address {
            IpAddr::V4(address) => self.address.v4 = Some((address, prefix)),
            IpAddr::V6(address) => self.address.v6 = Some(address),
        }
        Ok(())
    }

    fn take_dns(&mut self, value: &str) -> Result<(), String> {
        if value == "none" {
            self.no_dns = true;
            self.dns.clear();
            self.dns_forward = Addresses::default();
            self.dns_host = Addresses::default();
            return Ok(());
        }
        let address = value
            .parse()
            .map_err(|_| format!("Cannot use DNS address {value}"))?;
        self.no_dns = false;
        self.dns.push(address);
        Ok(())
    }

    fn take_search(&mut self, value: &str) -> Result<(), String> {
        if value == "none" {
            self.no_search = true;
            self.search.clear();
            return Ok(());
        }
        self.no_search = false;
        let domains = value.split_whitespace().map(|domain| {
            let parsed = crate::values::domain(domain);
            parsed.map_err(|_| format!("Cannot use DNS search domain {domain}"))
        });
        let domains: Vec<_> = domains.collect::<Result<_, _>>()?;
        if domains.is_empty() {
            return Err(format!("Cannot use DNS search domain {value}"));
        }
        self.search.extend(domains);
        Ok(())
    }

    /// Returns true if the guest has the family of `address`.
    fn has_family(&self, address: IpAddr) -> bool {
        match self.only {
            None => true,
            Some(Family::V4) => address.is_ipv4(),
            Some(Family::V6) => address.is_ipv6(),
        }
    }

    /// Appends options for those of the addresses whose family the guest has.
    fn push_addresses(&self, words: &mut Vec<OsString>, name: &str, addresses: impl Iterator<Item = IpAddr>) {
        let addresses = addresses.filter(|address| self.has_family(*address));
        words.extend(addresses.map(|address| option(name, address.to_string())));
    }

    /// Appends the options of the guest's network to `words`. The namespace exists already if `attached`.
    pub(in crate::compat) fn network(&self, attached: bool, words: &mut Vec<OsString>) -> Result<(), String> {
        if let Some(name) = &self.ifname {
            words.push(option("ifname", name));
        }
        self.addressing(words)?;
        self.mappings(words);
        self.name_service(words);
        let mut disabled: Vec<&str> = Vec::new();
        // The addresses that the interface has already are not announced.
        let announced = self.config_net.then_some("ra");
        let without_icmp = self.disabled.contains(&"icmp").then_some("ndp");
        let own_dns = match self.mode {
            // A DHCP client would replace the resolv.conf of the host, which the namespace has in common with it.
            Mode::Pasta => attached && !self.config_net && !self.dhcp_dns && !self.dhcp_search,
            Mode::Passt => !self.dhcp_dns,
        };
        let own_dns = own_dns.then_some("dns-option");
        let implied = announced.into_iter().chain(without_icmp).chain(own_dns);
        for service in self.disabled.iter().copied().chain(implied) {
            if !disabled.contains(&service) {
                disabled.push(service);
            }
        }
        if !disabled.is_empty() {
            words.push(option("disable", disabled.join(",")));
        }
        words.extend(self.ports.words(self.mode, self.host_lo));
        if self.no_splice {
            words.push("--no-splice".into());
        }
        Ok(())
    }

    /// Appends the options of addresses, routes, and the interface.
    fn addressing(&self, words: &mut Vec<OsString>) -> Result<(), String> {
        let mut names = [&self.outbound_interface4, &self.outbound_interface6]
            .into_iter()
            .flatten();
        let bound = names.next();
        if let Some(other) = names.next().filter(|other| Some(*other) != bound) {
            return Err(format!(
                "--outbound-if6 {other}: both families use one outbound interface (try: that of --outbound-if4)"
            ));
        }
        words.push(match self.interface.as_ref().or(bound) {
            Some(name) => option("addressing", format!("auto:{name}")),
            None => "--addressing=auto".into(),
        });
        match (&self.address.v4, self.netmask) {
            (None, Some(length)) => {
                return Err(format!(
                    "--netmask {length}: the netmask of the host's address is used (try: with --address)"
                ));
            }
            (Some((address, _)), _) if !self.has_family((*address).into()) => {}
            (Some((address, prefix)), length) => {
                let length = prefix
                    .or(length)
                    .unwrap_or_else(|| values::class_prefix(*address));
                words.push(option("address", format!("{address}/{length}")));
            }
            (None, None) => {}
        }
        if let Some(address) = self.address.v6.filter(|v6| self.has_family((*v6).into())) {
            words.push(option("address", format!("{address}/64")));
        }
        self.push_addresses(words, "gateway", self.gateway.iter());
        if self.no_copy_addrs {
            words.push("--one-host-address".into());
        }
        // A gateway of the option replaces the host's, to which the host's other routes lead.
        if self.no_copy_routes || self.gateway != Addresses::default() {
            words.push("--no-host-routes".into());
        }
        let mtu = self.mtu.unwrap_or(MOST_MTU);
        match self.only {
            Some(Family::V6) => words.push("--no-ipv4".into()),
            Some(Family::V4) => words.push("--no-ipv6".into()),
            // The kernel gives such an interface no IPv6.
            None if mtu < LEAST_IPV6_MTU => words.push("--no-ipv6".into()),
            None => {}
        }
        words.push(option("mtu", mtu.to_string()));
        words.push(option(
            "gateway-mac",
            self.mac_addr.as_deref().unwrap_or(GATEWAY_MAC),
        ));
        if let Some(mac) = &self.ns_mac_addr {
            words.push(option("mac", mac));
        }
        self.push_addresses(words, "outbound", self.outbound.iter());
        words.extend(bound.map(|name| option("outbound", name)));
        Ok(())
    }

    /// Appends the options of addresses that stand for the host.
    fn mappings(&self, words: &mut Vec<OsString>) {
        if self.map_host_loopback == Addresses::default() && !self.no_map_gateway {
            words.push("--host-loopback".into());
        }
        self.push_addresses(words, "host-loopback", self.map_host_loopback.iter());
        self.push_addresses(words, "map-host", self.map_guest_addr.iter());
        // pasta permits connections to these addresses, as to any other.
        words.extend(["--host-addresses".into(), "--metadata".into()]);
    }

    /// Appends the options of DNS and of names.
    fn name_service(&self, words: &mut Vec<OsString>) {
        if self.no_dns && self.dns_forward == Addresses::default() {
            words.push("--dns=none".into());
        } else {
            let mut forwarder = self.dns_forward;
            let mut resolvers: Vec<IpAddr> = self.dns_host.iter().collect();
            // A server that is announced to the guest is the forwarder under the address of that server.
            for server in self.dns.iter().copied().filter(|_| self.dhcp_dns) {
                let is_first = forwarder.iter().all(|other| other.is_ipv4() != server.is_ipv4());
                if is_first {
                    forwarder.set(server);
                    resolvers.extend(Some(server).filter(|_| self.dns_host == Addresses::default()));
                }
            }
            self.push_addresses(words, "dns-address", forwarder.iter());
            words.extend(resolvers.iter().map(|server| option("dns", server.to_string())));
        }
        if self.no_search || (self.mode == Mode::Passt && !self.dhcp_search) {
            words.push("--search=.".into());
        }
        let search = self
            .search
            .iter()
            .filter(|_| self.mode == Mode::Pasta || self.dhcp_search);
        words.extend(search.map(|domain| option("search", domain)));
        words.extend(self.fqdn.as_ref().map(|name| option("fqdn", name)));
    }
}

/// Error text for a prefix length that `-a` and `-n` contain.
const REDUNDANT: &str = "Redundant prefix length specification";

/// Returns a path, which is not empty.
fn path(what: &str, value: &OsStr) -> Result<OsString, String> {
    match value.is_empty() {
        true => Err(format!("Invalid {what}: ")),
        false => Ok(value.to_owned()),
    }
}

/// Returns a path of an option of Pontoon whose value may have limits behind the path. A path that ends like such a limit would be
/// divided.
fn limited<T: FromStr>(what: &str, value: &OsStr, file: fn(T) -> PathBuf) -> Result<OsString, String> {
    let value = path(what, value)?;
    let is_whole = |text: &str| text.parse().is_ok_and(|parsed| file(parsed) == Path::new(text));
    match value.to_str() {
        Some(text) if !is_whole(text) => {
            Err(format!("Invalid {what}: {text}: it ends like a limit of Pontoon"))
        }
        _ => Ok(value),
    }
}

/// Parses the number of a descriptor.
fn descriptor(value: &str) -> Result<String, String> {
    let open = |number: &i32| *number > 2;
    match value.parse().ok().filter(open) {
        Some(number) => Ok(i32::to_string(&number)),
        None => Err(format!("Invalid --fd: {value}")),
    }
}

fn log_size(value: &str) -> Result<u64, String> {
    let invalid = || format!("Invalid --log-size: {value}");
    match number(value) {
        Some(size) if size > file::MOST_SIZE => Err(format!("{} (at most {})", invalid(), file::MOST_SIZE)),
        Some(size) if size >= file::LEAST_SIZE => Ok(size),
        _ => Err(invalid()),
    }
}

/// Parses an MTU. With 0 it is not set.
fn mtu(value: &str) -> Result<u16, String> {
    match number(value) {
        None => Err(format!("Invalid MTU: {value}")),
        Some(0) => Ok(USUAL_MTU),
        Some(mtu) => match u16::try_from(mtu) {
            Ok(mtu) => Ok(mtu.min(MOST_MTU)),
            Err(_) => Err(format!("MTU {mtu} too large (max {MOST_MTU})")),
        },
    }
}
