//! Cases about options of the address plan and their effects on a guest.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use pontoon_netns::add_address;
use pontoon_vm_peer::tap_bridge::Faults;

use super::super::{expect, icmp, tcp_server, udp_server, vm};
use crate::carrier::Framing;
use crate::case::{Case, Context, Family};
use crate::machine::TapGuest;
use crate::network::Network;
use crate::server;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("addressing.dhcp-client-gets-routes-and-names", 30, dhcp_options),
        Case::new("addressing.ethernet-addresses", 20, ethernet),
        Case::new("addressing.search-domains", 20, search),
        Case::new("addressing.outbound-interface", 20, outbound_interface),
    ];
    cases.extend(Case::both("addressing.outbound-address", 20, outbound_address));
    cases.extend(Case::both("addressing.one-family", 20, one_family));
    cases.extend(Case::both("addressing.small-subnets", 40, small_subnets));
    cases.extend(Case::both("addressing.disabled-protocols", 40, disabled));
    cases.extend(Case::both(
        "addressing.link-local-resolver",
        20,
        link_local_resolver,
    ));
    cases
}

/// Tests the DHCP options that busybox's client passes to its script: host name, search list (119) and classless routes
/// (121).
fn dhcp_options(context: &Context) -> Result<()> {
    let options = [
        "--hostname",
        "box",
        "--fqdn",
        "box.corp.example",
        "--search",
        "corp.example",
        "--search",
        "example.org",
        "--route",
        "192.0.2.0/24,10.0.2.7",
        "--route",
        "203.0.113.0/24",
    ];
    let (_network, vm) = vm::start(context, Framing::Stream, &options)?;
    let guest = TapGuest::of(&vm, Faults::NONE)?;
    expect(
        &guest.dhcp4_options()?,
        "hostname=box search=corp.example example.org \
         staticroutes=0.0.0.0/0 10.0.2.2 192.0.2.0/24 10.0.2.7 203.0.113.0/24 0.0.0.0",
    )
}

/// Tests that the guest's interface and its gateway have the Ethernet addresses of the options.
fn ethernet(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let options = ["--mac", "02:00:5e:00:53:01", "--gateway-mac", "02:00:5e:00:53:02"];
    let line = format!(
        "cat /sys/class/net/tap0/address | tr '\\n' ' '; $E2E guest tcp {server} fetch 0 1 1048576 | tr '\\n' ' '; \
         ip neighbour show 10.0.2.2 | grep -o 'lladdr [^ ]*'"
    );
    let text = network.run().options(options).shell(&line).text()?;
    expect(&text, "02:00:5e:00:53:01 ok lladdr 02:00:5e:00:53:02")
}

/// Tests that search domains of the options replace those of the host, and that the root `.` stands for an empty list.
fn search(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    for (options, wanted) in [
        (
            &["--search", "corp.example", "--search", "example.org."][..],
            "search corp.example example.org.",
        ),
        (&["--search", "."], "search ."),
    ] {
        let run = network.run().options(options).options(["--dns", "198.51.100.2"]);
        expect(&run.shell("grep search /etc/resolv.conf").text()?, wanted)?;
    }
    Ok(())
}

/// Tests that packets have the source address of the option instead of the one that the kernel selects, and that
/// packets of the other family are not affected.
fn outbound_address(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let (other, width, another) = match family {
        Family::V4 => ("198.51.100.9", 24, Family::V6),
        Family::V6 => ("2001:db8:1::9", 64, Family::V4),
    };
    add_address("net0", &format!("{other}/{width}"))?;
    let usual = network.host_address(another).to_string();
    for (of, wanted) in [(family, other), (another, usual.as_str())] {
        let tcp = tcp_server(&network, of)?;
        let stun = SocketAddr::new(network.server_address(of), 3478);
        network.server().enter(|| server::stun::start(stun))?;
        let line = format!(
            "$E2E guest tcp {tcp} peer | tr '\\n' ' '; $E2E guest udp stun {stun} {stun} | sed 's/:[0-9]*$//; s/[][]//g'"
        );
        let text = network.run().options(["--outbound", other]).shell(&line).text()?;
        expect(&text, &format!("{wanted} {wanted}"))?;
    }
    Ok(())
}

/// Tests that sockets that are bound to an interface reach its network only.
fn outbound_interface(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let other = pontoon_netns::Namespace::new()?;
    pontoon_netns::veth("net1", &other, "left")?;
    add_address("net1", "203.0.113.1/24")?;
    let aside = other.enter(|| {
        add_address("left", "203.0.113.2/24")?;
        server::tcp::start("203.0.113.2:7000".parse()?)
    })?;
    let line =
        format!("for to in {server} {aside}; do $E2E guest tcp $to peer 2>/dev/null | tr '\\n' ' '; done");
    for (options, wanted) in [
        (
            &["--outbound", "net0", "--connect-timeout", "500ms"][..],
            "198.51.100.1",
        ),
        (
            &["--outbound", "net1", "--connect-timeout", "500ms"],
            "203.0.113.1",
        ),
    ] {
        let text = network.run().options(options).shell(&line).text()?;
        expect(&text, wanted)?;
    }
    Ok(())
}

/// Tests that a guest of one family has no address, route or resolver of the other family, and reaches hosts of its
/// own.
fn one_family(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, family)?;
    let (option, other) = match family {
        Family::V4 => ("--no-ipv6", "-6"),
        Family::V6 => ("--no-ipv4", "-4"),
    };
    let line = format!(
        "ip {other} addr show dev tap0; ip {other} route show dev tap0; grep -c nameserver /etc/resolv.conf | tr '\\n' ' '; \
         $E2E guest tcp {server} fetch 0 1 1048576"
    );
    let run = network.run().options([option]);
    expect(&run.shell(&line).text()?, "1 ok")
}

/// Tests that the guest reaches other hosts and its resolver if its subnet has no room for a gateway, if it has the
/// host number that the gateway or the DNS forwarder usually has, and if its address is link-local.
fn small_subnets(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, family)?;
    let resolver = SocketAddr::new(network.server_address(Family::V4), 53);
    network.server().enter(|| server::dns::start(resolver))?;
    let (addresses, option): (&[&str], _) = match family {
        Family::V4 => (
            &[
                "10.9.0.2/24",
                "10.9.0.3/24",
                "10.9.0.5/30",
                "10.9.0.5/31",
                "10.9.0.5/32",
                "169.254.7.7/16",
            ],
            "--no-ipv6",
        ),
        Family::V6 => (
            &[
                "fd09::2/64",
                "fd09::3/64",
                "fd09::5/126",
                "fd09::5/127",
                "fd09::5/128",
                "fe80::5/64",
                "fe80::2/64",
            ],
            "--no-ipv4",
        ),
    };
    let line = format!(
        "$E2E guest tcp {server} fetch 0 1 1048576 | tr '\\n' ' '; \
         dig @$(awk '/nameserver/ {{ print $2 }}' /etc/resolv.conf) +short +tries=2 some.test A"
    );
    let wanted = format!("ok {}", server::dns::A);
    for address in addresses {
        let options = ["--address", address, option, "--dns", "198.51.100.2"];
        let text = network.run().options(options).shell(&line).text()?;
        ensure!(
            text.trim_end() == wanted,
            "{address}: {text:?} instead of {wanted:?}"
        );
    }
    Ok(())
}

/// Tests that packets of a disabled protocol reach neither other hosts nor the gateway, and that the other protocols
/// reach both.
fn disabled(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    icmp::open_ping(context)?;
    let tcp = tcp_server(&network, family)?;
    let udp = udp_server(&network, family)?;
    let gateway = family.pick([10, 0, 2, 2].into(), "fd70:6f6e:746f::2".parse()?);
    let try_all = format!(
        "$E2E guest tcp {tcp} fetch 0 1 1000 >/dev/null 2>&1 && echo tcp; \
         $E2E guest udp peer {udp} >/dev/null 2>&1 && echo udp; \
         for to in {} {gateway}; do ping {} -c 1 -W 1 $to >/dev/null 2>&1 && echo icmp; done; true",
        tcp.ip(),
        family.flag()
    );
    let line = format!("( {try_all} ) | tr '\\n' ' '");
    for (list, wanted) in [
        ("dhcp,dhcpv6,ra", "tcp udp icmp icmp"),
        ("tcp", "udp icmp icmp"),
        ("udp", "tcp icmp icmp"),
        ("icmp", "tcp udp"),
        ("tcp,udp", "icmp icmp"),
    ] {
        let limited = line.replace("$E2E guest tcp", "timeout 2 $E2E guest tcp");
        let text = network
            .run()
            .options(["--disable", list])
            .shell(&limited)
            .text()?;
        ensure!(
            text.trim_end() == wanted,
            "--disable {list}: {text:?} instead of {wanted:?}"
        );
    }
    Ok(())
}

/// Tests that programs that read resolv.conf reach a DNS forwarder with a link-local address.
fn link_local_resolver(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let resolver = SocketAddr::new(network.server_address(Family::V4), 53);
    network.server().enter(|| server::dns::start(resolver))?;
    let (address, option, line) = match family {
        Family::V4 => ("169.254.1.1", "--no-ipv6", "nameserver 169.254.1.1"),
        Family::V6 => ("fe80::53", "--no-ipv4", "nameserver fe80::53%tap0"),
    };
    let options = ["--dns-address", address, option, "--dns", "198.51.100.2"];
    let (database, wanted) = match family {
        Family::V4 => ("ahostsv4", server::dns::A.to_string()),
        Family::V6 => ("ahostsv6", server::dns::AAAA.to_string()),
    };
    let shell = format!("cat /etc/resolv.conf; getent {database} some.test | awk '{{print $1; exit}}'");
    let text = network.run().options(options).shell(&shell).text()?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("search")).collect();
    ensure!(lines == [line, &wanted], "{text}");
    Ok(())
}
