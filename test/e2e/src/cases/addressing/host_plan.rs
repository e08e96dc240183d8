//! Cases about plans of unusual networks of the host: point-to-point interfaces, gateways outside of the subnet,
//! several default routes.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use pontoon_netns::{add_address, ip};

use super::super::expect;
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::{guest, process, server};

pub(super) fn cases() -> Vec<Case> {
    let plan = |name: &str, run: fn(&Context) -> Result<()>| {
        Case::new(&format!("addressing.host-plan-{name}"), 30, run)
    };
    vec![
        plan("of-a-point-to-point-interface", point_to_point),
        plan("of-an-address-with-a-peer", peer),
        plan("with-a-gateway-outside-of-the-subnet", outside),
        plan("with-a-link-local-gateway", link_local),
        plan("of-the-default-route-with-the-lowest-metric", metrics),
        plan("without-a-default-route-has-names", names_without_default),
        plan("loses-its-interface", interface_vanishes),
    ]
}

/// Runs a shell command in a guest with the plan of the host, and returns its output.
fn inside(network: &Network<'_>, options: &[&str], line: &str) -> Result<String> {
    network.run().options(options).shell(line).text()
}

/// Tests a default route without a gateway, and an address that is the only one of its subnet (WireGuard).
fn point_to_point(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    ip("tuntap add dev wg0 mode tun
        link set wg0 up mtu 1420
        address add 10.6.0.2/32 dev wg0
        address add fd06::2/128 dev wg0
        route add 10.7.0.0/16 dev wg0
        route replace default dev wg0
        route del default via 2001:db8:1::2
        route add ::/0 dev wg0")?;
    let line = "ip -o addr show dev wg0 scope global | awk '{print $4}' | tr '\\n' ' '; \
        ip -4 route show default | grep -o 'default via [^ ]*' | tr '\\n' ' '; ip -6 route show default | grep -o 'via [^ ]*' | tr '\\n' ' '; \
        ip route show 10.7.0.0/16 | grep -o 'dev [^ ]*' | tr '\\n' ' '; cat /sys/class/net/wg0/mtu";
    expect(
        &inside(&network, &["--addressing", "host"], line)?,
        "10.6.0.2/32 fd06::2/128 default via 169.254.2.1 via fe80::2 dev wg0 1420",
    )?;
    // The guest reaches the host's other network, too.
    let server = super::super::tcp_server(&network, Family::V4)?;
    let line = format!("$E2E guest tcp {server} fetch 0 1 1048576");
    expect(&inside(&network, &["--addressing", "host:wg0"], &line)?, "ok")
}

/// Tests that the guest has a route to the peer of the host's address, which no other route of the guest contains.
fn peer(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    ip("tuntap add dev ppp0 mode tun
        link set ppp0 up
        address add 10.6.0.2 peer 10.6.0.1/32 dev ppp0
        address add fd06::2 peer fd06::1/128 dev ppp0 nodad")?;
    // The kernel adds the IPv6 route to the peer later.
    process::wait_until("the host has a route to the peer", Duration::from_secs(5), || {
        let mut show = Command::new("ip");
        Ok(!process::output(show.args(["-6", "route", "show", "fd06::1"]))?.is_empty())
    })?;
    let line = "ip -o addr show dev ppp0 scope global | awk '{print $4}' | tr '\\n' ' '; \
        ip route get 10.6.0.1 | grep -o 'dev [^ ]*' | tr '\\n' ' '; ip -6 route get fd06::1 | grep -o 'dev [^ ]*'";
    expect(
        &inside(&network, &["--addressing", "host:ppp0"], line)?,
        "10.6.0.2/32 fd06::2/128 dev ppp0 dev ppp0",
    )
}

/// Tests a gateway that no subnet contains, which the host reaches by a route on the link or by the flag `onlink`.
fn outside(context: &Context) -> Result<()> {
    let line = "ip -o -4 addr show dev net0 scope global | awk '{print $4}' | tr '\\n' ' '; \
        ip route show default | grep -o 'via [^ ]*' | tr '\\n' ' '; $E2E guest tcp";
    for routes in [
        "route add 198.51.100.2 dev net0 scope link
         route add default via 198.51.100.2",
        "route add default via 198.51.100.2 dev net0 onlink",
    ] {
        let network = Network::new(context)?;
        let server = super::super::tcp_server(&network, Family::V4)?;
        ip("address del 198.51.100.1/24 dev net0
            address add 198.51.100.1/32 dev net0")?;
        ip(routes)?;
        let text = inside(
            &network,
            &["--addressing", "host"],
            &format!("{line} {server} fetch 0 1 1048576"),
        )?;
        expect(&text, "198.51.100.1/32 via 198.51.100.2 ok")?;
        ip("link del net0")?;
    }
    Ok(())
}

/// Tests a link-local gateway, as of a router that sends router advertisements. It can be mapped to the host's
/// loopback, and the resolver has an address that resolv.conf can contain without an interface name.
fn link_local(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    network.server().enter(|| add_address("left", "fe80::1/64"))?;
    ip("route del default via 2001:db8:1::2
        route add ::/0 via fe80::1 dev net0")?;
    let server = super::super::tcp_server(&network, Family::V6)?;
    let loopback = std::net::SocketAddr::new(Family::V6.loopback(), 7001);
    server::tcp::start(loopback)?;
    let line = format!(
        "ip -6 route show default | grep -o 'via [^ ]*' | tr '\\n' ' '; grep -c fe80 /etc/resolv.conf | tr '\\n' ' '; \
         $E2E guest tcp {server} fetch 0 1 1048576 | tr '\\n' ' '; \
         index=$(cat /sys/class/net/net0/ifindex); $E2E guest tcp \"[fe80::1%$index]:7001\" peer"
    );
    let text = inside(&network, &["--addressing", "host", "--host-loopback"], &line)?;
    expect(&text, "via fe80::1 0 ok ::1")
}

/// Tests that of two default routes, and of two routes to another destination, the one with the lower metric is used.
fn metrics(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let other = pontoon_netns::Namespace::new()?;
    pontoon_netns::veth("net1", &other, "left")?;
    add_address("net1", "203.0.113.1/24")?;
    ip("route del default via 198.51.100.2
        route add default via 198.51.100.2 metric 200
        route add default via 198.51.100.3 metric 300
        route add default via 203.0.113.2 metric 100
        route add 192.0.2.0/24 via 198.51.100.8 metric 8
        route add 192.0.2.0/24 via 198.51.100.7 metric 7")?;
    let line = "ip -4 route | grep -o '^.* via [^ ]* dev [^ ]*' | sort | tr '\\n' ','";
    let options = ["--addressing", "host", "--no-ipv6"];
    expect(
        &inside(&network, &options, line)?,
        "default via 203.0.113.2 dev net1,",
    )?;
    let options = ["--addressing", "host:net0", "--no-ipv6"];
    expect(
        &inside(&network, &options, line)?,
        "192.0.2.0/24 via 198.51.100.7 dev net0,default via 198.51.100.2 dev net0,",
    )
}

/// Tests that a guest without a default route reaches its DNS forwarder.
fn names_without_default(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    ip("route del default
        route del default via 2001:db8:1::2")?;
    let resolver = std::net::SocketAddr::new(network.server_address(Family::V4), 53);
    network.server().enter(|| server::dns::start(resolver))?;
    let line = "ip route show default; for server in $(awk '/nameserver/ { print $2 }' /etc/resolv.conf); do \
        dig @$server +short +tries=2 some.test A | tr '\\n' ' '; done";
    let options = ["--addressing", "host:net0", "--dns", &resolver.ip().to_string()];
    let wanted = server::dns::A.to_string();
    expect(&inside(&network, &options, line)?, &format!("{wanted} {wanted}"))
}

/// Tests that a guest keeps its addresses when the host's interface is deleted, and reaches other hosts again when the
/// host has another one.
fn interface_vanishes(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let run = network
        .run()
        .options(["--addressing", "host", "--connect-timeout", "500ms"]);
    let mut running = run.shell(super::super::OBEDIENT).spawn()?.listening()?;
    let address = "ip -o -4 addr show dev net0 | awk '{print $4}'";
    expect(&running.ask(address)?, "198.51.100.1/24")?;
    ip("link del net0")?;
    let next = pontoon_netns::Namespace::new()?;
    let server = next.enter(|| server::tcp::start("0.0.0.0:7000".parse()?))?;
    let to = std::net::SocketAddr::new([203, 0, 113, 2].into(), server.port());
    let ask = format!("$E2E guest tcp {to} fetch 0 1 1048576 2>/dev/null || echo no");
    ensure!(running.ask(&ask)? == "no", "reached without an interface");
    pontoon_netns::veth("net1", &next, "left")?;
    add_address("net1", "203.0.113.1/24")?;
    next.enter(|| add_address("left", "203.0.113.2/24"))?;
    guest::routes::neighbour(to.ip())?;
    expect(&running.ask(&ask)?, "ok")?;
    expect(&running.ask(address)?, "198.51.100.1/24")
}
