//! Address plans: the addresses, routes and names that a guest gets, and the addresses by which clients appear to it.

mod changes;
mod clients;
mod host_plan;
mod options;

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::{add_address, ip, sysctl};

use super::{expect, tcp_server};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::process;
use crate::server;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("addressing.host-plan", 20, host_plan),
        Case::new("addressing.host-plan-without-ipv6", 20, host_plan_without_ipv6),
        Case::new("addressing.host-plan-without-default-route", 20, no_default_route),
        Case::new("addressing.given-addresses", 20, given_addresses),
        Case::new("addressing.invalid-options", 20, invalid_options),
    ];
    cases.extend(Case::both("addressing.mapped-host", 20, mapped_host));
    cases.extend(clients::cases());
    cases.extend(host_plan::cases());
    cases.extend(changes::cases());
    cases.extend(options::cases());
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// Fields of `ip addr` and `ip route` that a guest's interface has in common with the host's: addresses, routes with a gateway.
const FIELDS: &str = "ip -o addr show dev net0 scope global | awk '{print $4}' | sort; \
    (ip -4 route; ip -6 route) | grep -o '^.* via [^ ]* dev [^ ]*' | sort; \
    ip -o link show net0 | grep -o 'mtu [0-9]*'";

/// The guest has the host's addresses, routes, MTU and interface name, in both families, with several addresses in each.
fn host_plan(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    for address in ["198.51.100.9/24", "198.51.7.1/28", "2001:db8:1::9/64"] {
        add_address("net0", address)?;
    }
    ip("route add 203.0.113.0/24 via 198.51.100.2")?;
    ip("route add 2001:db8:9::/48 via 2001:db8:1::2")?;
    network.set_mtu(0, 1400)?;
    let outside = process::output(std::process::Command::new("sh").args(["-c", FIELDS]))?;
    ensure!(outside.lines().count() >= 9, "the host has:\n{outside}");
    let inside = network
        .run()
        .options(["--addressing", "host"])
        .shell(FIELDS)
        .text()?;
    ensure!(
        inside == outside,
        "the host has:\n{outside}the guest has:\n{inside}"
    );
    for family in [Family::V4, Family::V6] {
        let server = tcp_server(&network, family)?.to_string();
        let words = ["tcp", &server, "fetch", "0", "1", "1048576"];
        let run = network.run().options(["--addressing", "host:net0"]);
        expect(&run.guest(words).text()?, "ok")?;
    }
    Ok(())
}

/// A host without IPv6 has a guest without IPv6.
fn host_plan_without_ipv6(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    sysctl("net/ipv6/conf/net0/disable_ipv6", "1")?;
    let server = tcp_server(&network, Family::V4)?;
    let line = format!("ip -6 addr show dev net0 scope global; $E2E guest tcp {server} fetch 0 1 1048576");
    let run = network.run().options(["--addressing", "host"]);
    expect(&run.shell(&line).text()?, "ok")
}

/// Without a default route, an interface has to be named; its guest has no default route either.
fn no_default_route(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    ip("route del default")?;
    ip("route del default via 2001:db8:1::2")?;
    let refused = network
        .run()
        .options(["--addressing", "host"])
        .command(["true"])
        .output()?;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        refused.status.code() == Some(1)
            && text.contains("the host has no default route (try: --addressing host:IFACE"),
        "{text}"
    );
    let server = tcp_server(&network, Family::V4)?;
    let line = format!("ip route show default; $E2E guest tcp {server} fetch 0 1 1048576");
    let run = network.run().options(["--addressing", "host:net0"]);
    expect(&run.shell(&line).text()?, "ok")
}

/// Addresses, gateway, route and DNS address by options; all other destinations are reached by the gateway.
fn given_addresses(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let options = [
        "--address",
        "10.9.0.100/24",
        "--address",
        "10.9.1.100/24",
        "--gateway",
        "10.9.0.1",
        "--route",
        "198.51.100.0/24,10.9.1.7",
        "--dns-address",
        "169.254.1.1",
        "--no-ipv6",
        "--mtu",
        "1400",
    ];
    let line = format!(
        "ip -o -4 addr show dev tap0 | awk '{{print $4}}' | sort | tr '\\n' ' '; \
         ip route show default | cut -d' ' -f3 | tr '\\n' ' '; ip route get {} | grep -o 'via [^ ]*' | tr '\\n' ' '; \
         grep nameserver /etc/resolv.conf | tr '\\n' ' '; cat /sys/class/net/tap0/mtu; $E2E guest tcp {server} peer",
        server.ip()
    );
    let text = network.run().options(options).shell(&line).text()?;
    let expected = format!(
        "10.9.0.100/24 10.9.1.100/24 10.9.0.1 via 10.9.1.7 nameserver 169.254.1.1 1400\n{}",
        network.host_address(Family::V4)
    );
    expect(&text, &expected)
}

/// One line on standard error and exit status 2 or 1, for values that exclude each other.
fn invalid_options(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    for (options, text) in [
        (
            &["--addressing", "host:nowhere0"][..],
            "error: the host has no interface nowhere0 (try: ip link)",
        ),
        (
            &["--addressing", "host", "--ipv4", "10.9.0.0/24"],
            "error: 10.9.0.0/24 is a private subnet, which --addressing host excludes (try: --address ADDR/LEN)",
        ),
        (
            &["--gateway", "10.0.2.1", "--gateway", "10.0.2.9"],
            "error: --gateway is given twice for one family (try: one IPv4 and one IPv6 address at most)",
        ),
        (
            &["--gateway", "10.0.2.15"],
            "error: 10.0.2.15 is the guest's address and the gateway's (try: --gateway ADDR)",
        ),
        (
            &["--no-ipv6", "--route", "2001:db8::/32,fd00::1"],
            "error: --route 2001:db8::/32: the guest has no IPv6",
        ),
        (
            &["--no-ipv4", "--no-ipv6"],
            "error: the guest has neither IPv4 nor IPv6",
        ),
        (
            &["--address", "10.9.0.255/24"],
            "error: --address 10.9.0.255 is the network or broadcast address of the guest's subnet (try: another \
             address of 10.9.0.0/24)",
        ),
        (
            &["--address", "10.9.0.5/24", "--address", "10.9.0.5/24"],
            "error: --address 10.9.0.5 is given twice (try: one of them)",
        ),
        (
            &["--ipv4", "10.8.0.0/24", "--address", "10.9.0.5/24"],
            "error: --ipv4 10.8.0.0/24 and --address 10.9.0.5/24 exclude each other (try: one of them)",
        ),
        (
            &["--map-host", "10.0.2.15"],
            "error: 10.0.2.15 is the guest's address and that of --map-host",
        ),
        (
            &["--host-loopback", "--map-host", "10.0.2.2"],
            "error: --host-loopback and --map-host both map 10.0.2.2 (try: another address)",
        ),
        (
            &["--no-ipv6", "--map-host", "fd00:1::2"],
            "error: --map-host fd00:1::2: the guest has no IPv6",
        ),
        (
            &["--dns", "none", "--dns-address", "10.0.2.9"],
            "error: --dns-address 10.0.2.9 is the DNS forwarder's, which --dns none disables (try: one of them)",
        ),
        (
            &["--route", "0.0.0.0/0,10.0.2.7"],
            "error: invalid value '0.0.0.0/0,10.0.2.7' for '--route <ROUTE>': the default route, which --gateway sets \
             (try: pontoon run --help)",
        ),
        (
            &["--fqdn", "box..example"],
            "error: invalid value 'box..example' for '--fqdn <NAME>': not a domain name (try: pontoon run --help)",
        ),
        (
            &["--mac", "03:00:00:00:00:01"],
            "error: invalid value '03:00:00:00:00:01' for '--mac <ADDR>': not a unicast address (try: pontoon run \
             --help)",
        ),
        (
            &["--outbound", "0.0.0.0"],
            "error: invalid value '0.0.0.0' for '--outbound <ADDR|IFACE>': no host on a network has such an address \
             (try: pontoon run --help)",
        ),
    ] {
        let refused = network.run().options(options).command(["true"]).output()?;
        let written = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(
            !refused.status.success() && written.trim_end() == text,
            "{options:?}: {:?} {written}",
            refused.status
        );
    }
    Ok(())
}

/// A mapped address reaches the host at the address from which it sends, also after that address has changed; the host's
/// address itself stays refused.
fn mapped_host(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let own = network.host_address(family);
    let everywhere = SocketAddr::new(family.unspecified(), 7000);
    server::tcp::start(everywhere)?;
    let mapped = family.pick([169, 254, 1, 2].into(), "fd00:1::2".parse()?);
    let to = SocketAddr::new(mapped, 7000);
    let mut running = network
        .run()
        .options(["--map-host", &mapped.to_string()])
        .shell(super::OBEDIENT)
        .spawn()?
        .listening()?;
    let fetch = format!("$E2E guest tcp {to} fetch 0 1 1048576");
    expect(&running.ask(&fetch)?, "ok")?;
    let direct = SocketAddr::new(own, 7000);
    let refused = running.ask(&format!(
        "$E2E guest tcp {direct} refused >/dev/null && echo refused"
    ))?;
    expect(&refused, "refused").context("the host's own address")?;
    // The host gets another address, and loses the first. Without the setting, the kernel would remove both.
    sysctl("net/ipv4/conf/net0/promote_secondaries", "1")?;
    let (other, width) = match family {
        Family::V4 => ("198.51.100.77", 24),
        Family::V6 => ("2001:db8:1::77", 64),
    };
    add_address("net0", &format!("{other}/{width}"))?;
    let gateway = network.server_address(family);
    ip(&format!("addr del {own}/{width} dev net0"))?;
    ip(&format!("route replace default via {gateway} src {other}"))?;
    process::wait_until(
        "the new address is reached",
        std::time::Duration::from_secs(5),
        || Ok(running.ask(&format!("{fetch} 2>/dev/null || echo no"))?.trim() == "ok"),
    )?;
    Ok(())
}
