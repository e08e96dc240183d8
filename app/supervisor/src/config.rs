//! Configuration of the engine, made from the options and the state of the host.

use std::net::IpAddr;

use pontoon_engine::config::{Addresses, Published};
use pontoon_engine::{Bandwidth, Config, Egress};
use rustix::process::Rlimit;

use crate::host::resolv::{Resolv, render};
use crate::host::{self, MOST_FLOWS};
use crate::options::{Guest, GuestOptions, Loopback, Resolvers};
pub use pontoon_engine::config::{GUEST_MAC, OUR_MAC};

/// Default limit on new flows per second for each worker: more than any load in measurements opened (12,900 connections per
/// second, 8 clients, 2 cores, 2026-11-21), and so few that a guest that scans or floods does not fill the host's
/// connection tracking table (262,144 entries and more, kept for 30 s to 120 s) within seconds.
pub const FLOW_RATE: u32 = 20_000;

/// Returns the configuration of the engine.
#[must_use]
pub(crate) fn config(
    options: &GuestOptions,
    addresses: Addresses,
    resolv: Resolv,
    published: Vec<Published>,
    descriptors: Rlimit,
) -> Config {
    Config {
        addresses,
        our_mac: OUR_MAC,
        guest_mac: options.mac,
        mtu: options.mtu,
        hostname: match &options.guest {
            Guest::Command { hostname, .. } => hostname.clone(),
            Guest::Attach { .. } | Guest::Machine(_) => None,
        },
        search: if options.search.is_empty() {
            resolv.search
        } else {
            options.search.clone()
        },
        resolvers: resolv.servers,
        host_loopback: host_loopback(&options.host_loopback, addresses),
        host_addresses: options.host_addresses,
        metadata: options.metadata,
        egress: Egress::new(&options.rules),
        max_flows: max_flows(
            options.max_flows,
            host::max_flows(descriptors, published.len(), options.workers),
        ),
        max_udp_ports: options.max_udp_ports.unwrap_or_else(host::max_udp_ports),
        published,
        connect_timeout: options.connect_timeout,
        udp_filter: options.udp_filter,
        max_flow_rate: Some(flow_rate(options.max_flow_rate, options.workers)),
        bandwidth: options.max_bandwidth.map(Bandwidth::new),
    }
}

/// Returns the content of the guest's resolv.conf; `None` if the file is not to be changed.
#[must_use]
pub(crate) fn resolv_conf(resolvers: &Resolvers, config: &Config) -> Option<String> {
    (*resolvers != Resolvers::None).then(|| render(&dns(config.addresses), &config.search))
}

/// Returns the addresses of the DNS forwarder as the guest reaches it.
#[must_use]
pub(crate) fn dns(addresses: Addresses) -> Vec<IpAddr> {
    let v6 = addresses.v6.map(|v6| IpAddr::V6(v6.dns));
    [Some(addresses.v4.dns.into()), v6]
        .into_iter()
        .flatten()
        .collect()
}

fn host_loopback(loopbacks: &[Loopback], addresses: Addresses) -> Vec<IpAddr> {
    let mut open = Vec::new();
    for loopback in loopbacks {
        match loopback {
            Loopback::Address(address) => open.push(*address),
            Loopback::Gateway => {
                open.push(addresses.v4.gateway.into());
                open.extend(addresses.v6.map(|v6| IpAddr::V6(v6.gateway)));
            }
        }
    }
    open
}

fn max_flows(requested: Option<u32>, room: u32) -> u32 {
    match requested {
        Some(requested) if requested > room => {
            tracing::warn!(
                "--max-flows {requested} exceeds the limit of {room} ({MOST_FLOWS}, or as 'ulimit -Hn' allows)"
            );
            room
        }
        Some(requested) => requested,
        None => room,
    }
}

fn flow_rate(requested: Option<u32>, workers: u8) -> u32 {
    requested.unwrap_or(FLOW_RATE * u32::from(workers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::network::HostNetwork;
    use crate::host::subnets::choose;
    use crate::options::Ipv6;

    #[test]
    fn gateway_means_the_gateways_of_both_families() {
        let addresses = choose(None, Ipv6::Auto, &HostNetwork::default())
            .unwrap()
            .addresses;
        let other = "192.0.2.9".parse().unwrap();
        let open = host_loopback(&[Loopback::Gateway, Loopback::Address(other)], addresses);
        let expected = ["10.0.2.2", "fd70:6f6e:746f::2", "192.0.2.9"];
        assert_eq!(open, expected.map(|address| address.parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn flow_rate_has_a_default_per_worker() {
        assert_eq!(flow_rate(None, 1), 20_000);
        assert_eq!(flow_rate(None, 16), 320_000);
        assert_eq!(flow_rate(Some(7), 16), 7);
    }

    #[test]
    fn max_flows_is_limited_by_the_descriptors() {
        assert_eq!(max_flows(None, 100), 100);
        assert_eq!(max_flows(Some(50), 100), 50);
        assert_eq!(max_flows(Some(500), 100), 100);
    }
}
