//! Configuration of the engine, made from the options and the state of the host.

use std::net::IpAddr;

use pontoon_engine::address_plan::AddressPlan;
use pontoon_engine::config::Published;
use pontoon_engine::policy::GuestForward;
use pontoon_engine::{Bandwidth, Config, Egress};
use rustix::process::Rlimit;

use crate::host::address_plan::ChosenPlan;
use crate::host::interface::HostInterface;
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
    chosen: ChosenPlan,
    sources: [Option<IpAddr>; 2],
    resolv: Resolv,
    published: Vec<Published>,
    forwards: Vec<GuestForward>,
    descriptors: Rlimit,
) -> Config {
    let mtu = mtu(options, chosen.interface.as_ref());
    let plan = chosen.plan;
    Config {
        our_mac: options.gateway_mac,
        guest_mac: options.mac,
        mtu,
        hostname: match &options.guest {
            Guest::Command { hostname, .. } => hostname.clone(),
            Guest::Machine(machine) => machine.hostname.clone(),
            Guest::Attach { .. } => None,
        },
        fqdn: options.fqdn.clone(),
        disabled: options.disabled,
        search: if options.search.is_empty() {
            resolv.search
        } else {
            options.search.clone()
        },
        resolvers: resolv.servers,
        host_loopback: host_loopback(&options.host_loopback, &plan),
        mapped_host: options.map_host.clone(),
        host: sources,
        host_addresses: options.host_addresses,
        metadata: options.metadata,
        egress: Egress::new(&options.rules),
        max_flows: max_flows(
            options.max_flows,
            host::max_flows(descriptors, published.len(), options.workers),
        ),
        max_udp_ports: options.max_udp_ports.unwrap_or_else(host::max_udp_ports),
        published,
        forwards,
        connect_timeout: options.connect_timeout,
        udp_filter: options.udp_filter,
        max_flow_rate: Some(flow_rate(options.max_flow_rate, options.workers)),
        bandwidth: options.max_bandwidth.map(Bandwidth::new),
        // Set later, because it has credentials, which the guest's first process must not inherit.
        proxy: None,
        plan,
    }
}

/// Returns the content of the guest's resolv.conf; `None` if the file is not to be changed. A link-local IPv6 address needs
/// the name of the guest's interface.
#[must_use]
pub(crate) fn resolv_conf(resolvers: &Resolvers, config: &Config, ifname: &str) -> Option<String> {
    let servers = config.plan.dns().map(|dns| match dns {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => format!("{v6}%{ifname}"),
        _ => dns.to_string(),
    });
    (*resolvers != Resolvers::None).then(|| render(&servers.collect::<Vec<_>>(), &config.search))
}

/// Returns the addresses that are mapped to the host's loopback.
#[must_use]
pub(crate) fn host_loopback(loopbacks: &[Loopback], plan: &AddressPlan) -> Vec<IpAddr> {
    let mut open = Vec::new();
    for loopback in loopbacks {
        match loopback {
            Loopback::Address(address) => open.push(*address),
            Loopback::Gateway => {
                open.extend(plan.v4.as_ref().map(|v4| IpAddr::V4(v4.gateway)));
                open.extend(plan.v6.as_ref().map(|v6| IpAddr::V6(v6.gateway)));
            }
        }
    }
    open
}

/// Returns the MTU of the guest's interface.
fn mtu(options: &GuestOptions, interface: Option<&HostInterface>) -> u16 {
    let largest = match options.guest {
        Guest::Machine(_) => 1_500,
        Guest::Command { .. } | Guest::Attach { .. } => MOST_MTU,
    };
    let of_host = interface.map(|interface| u16::try_from(interface.mtu).unwrap_or(MOST_MTU));
    options
        .mtu
        .unwrap_or_else(|| of_host.map_or(largest, |mtu| mtu.min(MOST_MTU)))
}

/// The largest MTU: the longest IPv4 packet, less the room for options of the link that Linux keeps.
pub(crate) const MOST_MTU: u16 = 65_520;

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

    #[test]
    fn gateway_means_the_gateways_of_both_families() {
        let plan = AddressPlan::usual(true);
        let other = "192.0.2.9".parse().unwrap();
        let open = host_loopback(&[Loopback::Gateway, Loopback::Address(other)], &plan);
        let expected = ["10.0.2.2", "fd70:6f6e:746f::2", "192.0.2.9"];
        assert_eq!(open, expected.map(|address| address.parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn link_local_resolver_has_the_interface_as_scope() {
        let mut plan = AddressPlan::usual(true);
        for (v4, v6, expected) in [
            ("10.0.2.3", "fd00::3", "nameserver 10.0.2.3\nnameserver fd00::3\n"),
            (
                "169.254.1.1",
                "fe80::3",
                "nameserver 169.254.1.1\nnameserver fe80::3%tap0\n",
            ),
        ] {
            plan.v4.as_mut().unwrap().dns = Some(v4.parse().unwrap());
            plan.v6.as_mut().unwrap().dns = Some(v6.parse().unwrap());
            let config = Config::new(plan.clone());
            let text = resolv_conf(&Resolvers::Host, &config, "tap0");
            assert_eq!(text.as_deref(), Some(expected));
            assert_eq!(resolv_conf(&Resolvers::None, &config, "tap0"), None);
        }
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
