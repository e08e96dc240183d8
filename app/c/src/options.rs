//! Options of a network, by name.

use core::ffi::{c_char, c_int};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pontoon::{EventQueue, LinkService, Network, NetworkBuilder, Pacing, RequestQueue, UdpFilter};

use crate::call::{Failure, call};
use crate::text;

/// Options of a network (opaque).
#[expect(non_camel_case_types, reason = "the name of the C type")]
#[derive(Clone, Debug, Default)]
pub struct pontoon_options {
    /// Names and values, in the order in which they were set.
    values: Vec<(String, String)>,
}

/// Options as the library takes them, and the queues that they request.
pub(crate) struct Opened {
    pub(crate) builder: NetworkBuilder,
    pub(crate) requests: Option<RequestQueue>,
    pub(crate) events: Option<EventQueue>,
    /// Number of queue pairs for vhost-user.
    pub(crate) queues: u8,
}

impl pontoon_options {
    /// Applies the options to the defaults.
    pub(crate) fn open(&self) -> Result<Opened, Failure> {
        let mut opened = Opened {
            builder: Network::builder(),
            requests: None,
            events: None,
            queues: 1,
        };
        let mut resolvers = Vec::new();
        for (name, value) in &self.values {
            opened = apply(opened, name, value, &mut resolvers)?;
        }
        if self.values.iter().any(|(name, _)| name == "dns") {
            opened.builder = opened.builder.resolvers(&resolvers);
        }
        Ok(opened)
    }
}

/// Applies one option.
fn apply(
    mut opened: Opened,
    name: &str,
    value: &str,
    resolvers: &mut Vec<SocketAddr>,
) -> Result<Opened, Failure> {
    let builder = opened.builder;
    opened.builder = match name {
        "ipv4" if value == "off" => builder.without_ipv4(),
        "ipv4" => builder.ipv4_subnet(value)?,
        "ipv6" if value == "off" => builder.without_ipv6(),
        "ipv6" => builder.ipv6_subnet(value)?,
        "address" => builder.address(value)?,
        "gateway" => builder.gateway(parse(name, value)?),
        "dns-address" => builder.dns_address(parse(name, value)?),
        "addressing" => match value.split_once(':') {
            None if value == "host" => builder.addresses_of_host(None),
            Some(("host", interface)) => builder.addresses_of_host(Some(interface)),
            _ => return Err(wrong(name, value)),
        },
        "mtu" => builder.mtu(parse(name, value)?),
        "mac" => builder.guest_mac(mac(value).ok_or_else(|| wrong(name, value))?),
        "gateway-mac" => builder.gateway_mac(mac(value).ok_or_else(|| wrong(name, value))?),
        "hostname" => builder.hostname(value),
        "fqdn" => builder.fqdn(value),
        "search" => builder.search_domain(value),
        "dns" if value == "none" => builder,
        "dns" => {
            resolvers.push(resolver(value).ok_or_else(|| wrong(name, value))?);
            builder
        }
        "host-loopback" if value == "gateway" => builder.host_loopback_at_gateway(),
        "host-loopback" => builder.host_loopback(parse(name, value)?),
        "map-host" => builder.map_host(parse(name, value)?),
        "guest-forward" => builder.guest_forward(value)?,
        "outbound" => match value.parse() {
            Ok(address) => builder.outbound_address(address),
            Err(_) => builder.outbound_interface(value),
        },
        "disable" => builder.disable(service(value).ok_or_else(|| wrong(name, value))?),
        "udp-filter" => builder.udp_filter(match value {
            "endpoint" => UdpFilter::Endpoint,
            "address" => UdpFilter::Address,
            "address-port" => UdpFilter::AddressPort,
            _ => return Err(wrong(name, value)),
        }),
        "host-addresses" => flag(builder, name, value, NetworkBuilder::host_addresses)?,
        "metadata" => flag(builder, name, value, NetworkBuilder::metadata)?,
        "allow" => builder.allow(value)?,
        "deny" => builder.deny(value)?,
        "proxy" => builder.proxy(value)?,
        "proxy-for" => builder.proxy_for(value)?,
        "no-proxy" => builder.no_proxy(value)?,
        "proxy-credentials" => credentials(builder, value)?,
        "publish" => builder.publish(value)?,
        "max-flows" => builder.max_flows(parse(name, value)?),
        "max-udp-ports" => builder.max_udp_ports(parse(name, value)?),
        "max-flow-rate" => builder.max_flow_rate(parse(name, value)?),
        "max-bandwidth" => builder.max_bandwidth(parse(name, value)?),
        "connect-timeout" => builder.connect_timeout(Duration::from_millis(parse(name, value)?)),
        "io" => builder.pacing(match value {
            "event" => Pacing::Event,
            "hybrid" => Pacing::Hybrid,
            "poll" => Pacing::Poll,
            _ => return Err(wrong(name, value)),
        }),
        "queues" => {
            opened.queues = parse(name, value)?;
            builder
        }
        "decision-deadline" => builder.decision_deadline(Duration::from_millis(parse(name, value)?)),
        "decide" if value == "on" => {
            let (builder, queue) = builder.decide_by_queue()?;
            opened.requests = Some(queue);
            builder
        }
        "events" if value == "on" => {
            let (builder, queue) = builder.events_by_queue()?;
            opened.events = Some(queue);
            builder
        }
        "threads" if value == "off" => builder.without_thread(),
        "decide" | "events" | "threads" => return Err(wrong(name, value)),
        _ => return Err(Failure::invalid(format!("there is no option '{name}'"))),
    };
    Ok(opened)
}

/// Sets the credentials of the proxy. An error does not repeat them.
fn credentials(builder: NetworkBuilder, value: &str) -> Result<NetworkBuilder, Failure> {
    let parts = value.split_once(':');
    let (user, password) =
        parts.ok_or_else(|| Failure::invalid("option proxy-credentials: the form is USER:PASSWORD"))?;
    Ok(builder.proxy_credentials(user, password)?)
}

fn parse<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Failure> {
    value.parse().map_err(|_| wrong(name, value))
}

fn wrong(name: &str, value: &str) -> Failure {
    Failure::invalid(format!("option {name}: '{value}' is not a value of it"))
}

fn flag(
    builder: NetworkBuilder,
    name: &str,
    value: &str,
    set: fn(NetworkBuilder) -> NetworkBuilder,
) -> Result<NetworkBuilder, Failure> {
    match value {
        "on" => Ok(set(builder)),
        _ => Err(wrong(name, value)),
    }
}

/// Parses an address, or an address with a port.
fn resolver(value: &str) -> Option<SocketAddr> {
    let address = || value.parse::<IpAddr>().ok().map(|address| (address, 53).into());
    value.parse().ok().or_else(address)
}

fn service(value: &str) -> Option<LinkService> {
    Some(match value {
        "dhcp" => LinkService::Dhcp,
        "dhcpv6" => LinkService::Dhcpv6,
        "ndp" => LinkService::Ndp,
        "ra" => LinkService::RouterAdvertisement,
        "tcp" => LinkService::Tcp,
        "udp" => LinkService::Udp,
        "icmp" => LinkService::Icmp,
        "dns-option" => LinkService::DnsOption,
        _ => return None,
    })
}

fn mac(value: &str) -> Option<[u8; 6]> {
    let octets: Option<Vec<u8>> = value
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16).ok().filter(|_| octet.len() == 2))
        .collect();
    octets?.try_into().ok()
}

/// Creates the default options. They are freed by `pontoon_options_free`.
#[unsafe(no_mangle)]
pub extern "C" fn pontoon_options_new() -> *mut pontoon_options {
    Box::into_raw(Box::default())
}

/// Frees options. Networks that were started with them are not affected. NULL is ignored.
///
/// # Safety
/// `options` is NULL or from `pontoon_options_new`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_options_free(options: *mut pontoon_options) {
    if !options.is_null() {
        // SAFETY: the caller promises that the value is from `Box::into_raw` and is not used again.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// Sets an option, or adds a value to it. Most names are those of the command `pontoon vm`, without the dashes:
///
/// | name | value | |
/// |---|---|---|
/// | ipv4, ipv6 | a subnet, or off | the guest's private subnets |
/// | address | ADDR/LEN | an address of the guest; repeatable |
/// | gateway, dns-address | ADDR | addresses on the guest's link; one of each family |
/// | addressing | host, or host:INTERFACE | the guest has the host's addresses |
/// | mtu | 576 to 65520 | default 1500 |
/// | mac, gateway-mac | 02:00:00:00:00:01 | the Ethernet addresses of guest and gateway |
/// | hostname, fqdn, search | a name | given to the guest by DHCP |
/// | dns | ADDR, ADDR:PORT or none | resolvers; repeatable; default: the host's |
/// | host-loopback | gateway, or ADDR | by which the guest reaches the host's loopback; repeatable |
/// | map-host | ADDR | by which the guest reaches the host's own address; repeatable |
/// | guest-forward | a specification | as --guest-forward, without auto; repeatable |
/// | outbound | ADDR, or INTERFACE | source of the guest's connections on the host; one of each family, and one interface |
/// | disable | dhcp, dhcpv6, ndp, ra, tcp, udp, icmp or dns-option | repeatable |
/// | udp-filter | endpoint, address or address-port | senders whose datagrams the guest receives |
/// | host-addresses, metadata | on | the guest may reach them |
/// | allow, deny | a destination | as --allow and --deny; repeatable |
/// | proxy | http://ADDR:PORT, socks5://ADDR:PORT | as --proxy, with an address |
/// | proxy-for, no-proxy | a destination | as --proxy-for and --no-proxy; repeatable |
/// | proxy-credentials | USER:PASSWORD | user name and password at the proxy |
/// | publish | a specification | as --publish; repeatable |
/// | max-flows, max-flow-rate | a number | limits on flows, and on new flows in a second |
/// | max-udp-ports | a number | limit on UDP ports of the host in each family |
/// | max-bandwidth | bits per second | |
/// | connect-timeout | milliseconds | |
/// | io | event, hybrid or poll | waiting of the threads |
/// | queues | 1 to 16 | of vhost-user |
/// | decide | on | new flows are decided: pontoon_network_next_request |
/// | decision-deadline | milliseconds | default 2000 |
/// | events | on | records of flows: pontoon_network_next_event |
/// | threads | off | packets are processed in pontoon_network_dispatch |
///
/// Returns 0, or PONTOON_ERROR_INVALID; the options are unchanged then. Options that contradict each other are an error of the
/// function that starts the network.
///
/// # Safety
/// `options` is from `pontoon_options_new`, and no other thread uses it during the call; `name` and `value` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pontoon_options_set(
    options: *mut pontoon_options,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises it (section Safety).
        let options = unsafe { options.as_mut() }.ok_or_else(|| Failure::invalid("the options are null"))?;
        // SAFETY: the caller promises that both are strings.
        let (name, value) = unsafe { (text::read(name)?, text::read(value)?) };
        let tried = Opened {
            builder: Network::builder(),
            requests: None,
            events: None,
            queues: 1,
        };
        apply(tried, name, value, &mut Vec::new())?;
        options.values.push((name.to_owned(), value.to_owned()));
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> Result<(), String> {
        let options = pontoon_options {
            values: vec![(name.to_owned(), value.to_owned())],
        };
        options.open().map(drop).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn values_of_all_options_are_parsed() {
        for (name, value) in [
            ("ipv4", "10.1.0.0/24"),
            ("ipv4", "off"),
            ("ipv6", "fd00::/64"),
            ("ipv6", "off"),
            ("address", "192.168.1.2/24"),
            ("gateway", "10.0.2.9"),
            ("dns-address", "10.0.2.9"),
            ("addressing", "host"),
            ("addressing", "host:eth0"),
            ("mtu", "65520"),
            ("mac", "02:00:00:00:00:01"),
            ("gateway-mac", "02:00:00:00:00:02"),
            ("hostname", "guest"),
            ("fqdn", "guest.example.org"),
            ("search", "example.org"),
            ("dns", "192.0.2.1"),
            ("dns", "[2001:db8::1]:5353"),
            ("dns", "none"),
            ("host-loopback", "gateway"),
            ("host-loopback", "10.0.2.9"),
            ("map-host", "10.0.2.8"),
            ("guest-forward", "8080-8081/tcp"),
            ("guest-forward", "10.0.2.100:80:192.0.2.1:8080"),
            ("outbound", "192.0.2.1"),
            ("outbound", "eth0"),
            ("disable", "ra"),
            ("udp-filter", "address-port"),
            ("max-udp-ports", "100"),
            ("host-addresses", "on"),
            ("metadata", "on"),
            ("allow", "*.example.org:443/tcp"),
            ("deny", "192.0.2.0/24"),
            ("proxy", "http://127.0.0.1:3128"),
            ("proxy", "socks5://[::1]:1080"),
            ("proxy-for", "*:80-443"),
            ("no-proxy", "*.example.org"),
            ("proxy-credentials", "user:pass:word"),
            ("publish", "8080:80"),
            ("max-flows", "10"),
            ("max-flow-rate", "10"),
            ("max-bandwidth", "1000000"),
            ("connect-timeout", "500"),
            ("io", "poll"),
            ("queues", "4"),
            ("decide", "on"),
            ("decision-deadline", "100"),
            ("events", "on"),
            ("threads", "off"),
        ] {
            assert_eq!(set(name, value), Ok(()), "{name} {value}");
        }
    }

    #[test]
    fn other_names_and_values_are_refused() {
        for (name, value) in [
            ("", ""),
            ("mtu", "many"),
            ("mac", "02:00:00:00:00"),
            ("mac", "2:0:0:0:0:1"),
            ("dns", "host"),
            ("addressing", "private"),
            ("events", "off"),
            ("decide", "yes"),
            ("metadata", ""),
            ("io", "spin"),
            ("disable", "arp"),
            ("udp-filter", "port"),
            ("guest-forward", "auto"),
            ("map-host", "gateway"),
            ("proxy", "http://proxy.example:3128"),
            ("proxy", "https://127.0.0.1:3128"),
            ("proxy-for", "*.example.org:443/tls"),
            ("proxy-credentials", "secret"),
            ("publish", "http"),
        ] {
            assert!(set(name, value).is_err(), "{name} {value}");
        }
    }
}
