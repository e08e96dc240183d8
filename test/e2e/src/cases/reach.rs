//! Cases about the reachability of every class of addresses, over TCP, UDP and ICMP, from a guest that builds its
//! frames itself.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use pontoon_netns::{add_address, ip};

use super::{icmp, tcp_server, udp_server};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::server;

/// Port of the servers on the host and at the far end, TCP and UDP.
const PORT: u16 = 7000;

/// IPv4 addresses that are refused with any options.
const NEVER_V4: &[&str] = &[
    "0.0.0.0",
    "0.1.2.3",
    "127.0.0.1",
    "127.1.2.3",
    "169.254.169.254",
    "169.254.1.1",
    "168.63.129.16",
    "100.100.100.200",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "198.51.100.255",
];

/// IPv6 addresses that are refused with any options. `127.0.0.1` is 7f00:1, `169.254.169.254` is a9fe:a9fe.
const NEVER_V6: &[&str] = &[
    "::",
    "::1",
    "::7f00:1",
    "::ffff:0:0",
    "::ffff:7f00:1",
    "::ffff:0:7f00:1",
    "::ffff:a9fe:a9fe",
    "::ffff:c633:6401",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::",
    "fe80::1",
    "fe80::a9fe:a9fe",
    "ff02::1",
    "ff05::2",
    "ff0e::1",
    "fd00:ec2::254",
    "fd20:ce::254",
];

pub(super) fn cases() -> Vec<Case> {
    let flags: [(&str, &'static [&'static str], PermittedDestinations); 4] = [
        (
            "reach.by-default",
            &[],
            PermittedDestinations {
                loopback: false,
                own: false,
            },
        ),
        (
            "reach.host-loopback",
            &["--host-loopback"],
            PermittedDestinations {
                loopback: true,
                own: false,
            },
        ),
        (
            "reach.host-addresses",
            &["--host-addresses"],
            PermittedDestinations {
                loopback: false,
                own: true,
            },
        ),
        (
            "reach.every-flag",
            &["--host-loopback", "--host-addresses"],
            PermittedDestinations {
                loopback: true,
                own: true,
            },
        ),
    ];
    let case = |(name, options, opens)| {
        Case::both(name, 20, move |context, family| {
            reach(context, family, options, opens)
        })
        .map(Case::pontoon_only)
    };
    let metadata = Case::both("reach.metadata", 20, metadata).map(Case::pontoon_only);
    flags.into_iter().flat_map(case).chain(metadata).collect()
}

/// Destinations that the options of a case permit, in addition to public addresses.
#[derive(Clone, Copy)]
struct PermittedDestinations {
    /// True if the host's loopback is reachable, at the gateway's address.
    loopback: bool,
    /// True if the host's own addresses are reachable.
    own: bool,
}

fn reach(context: &Context, family: Family, options: &[&str], opens: PermittedDestinations) -> Result<()> {
    let network = Network::new(context)?;
    icmp::open_ping(context)?;
    // Servers on all addresses detect any address that is not refused.
    let everywhere = SocketAddr::new(family.unspecified(), PORT);
    server::tcp::start(everywhere)?;
    server::udp::start(everywhere)?;
    for address in [
        "169.254.169.254/32",
        "168.63.129.16/32",
        "100.100.100.200/32",
        "240.0.0.1/32",
        "fe80::a9fe:a9fe/128",
        "fd00:ec2::254/128",
        "fd20:ce::254/128",
    ] {
        add_address("lo", address)?;
    }
    // An address that no interface has, and that a route of type `local` makes the host's.
    let (range, routed) = match family {
        Family::V4 => ("198.18.7.0/24", "198.18.7.9"),
        Family::V6 => ("2001:db8:77::/64", "2001:db8:77::9"),
    };
    ip(&format!("route add local {range} dev lo"))?;
    tcp_server(&network, family)?;
    udp_server(&network, family)?;

    let (server, own) = (
        network.server_address(family).to_string(),
        network.host_address(family).to_string(),
    );
    let never = if family == Family::V4 { NEVER_V4 } else { NEVER_V6 };
    let port = PORT.to_string();
    let mut words = vec!["raw", "reach", family.suffix(), &port, "gateway", &own, &server];
    // If the host's own addresses are permitted, the kernel selects the source address of the response, so the
    // address is not tried.
    if !opens.own {
        words.push(routed);
    }
    words.extend(never);
    let text = network.run().options(options).guest(words).text()?;

    // The engine answers a ping to the gateway itself, without a socket.
    let answered: Vec<&str> = text.lines().filter(|line| *line != "gateway icmp").collect();
    let mut wanted = Vec::new();
    if opens.loopback {
        wanted.extend(["gateway tcp", "gateway udp"].map(String::from));
    }
    if opens.own {
        wanted.extend(["tcp", "udp", "icmp"].map(|protocol| format!("{own} {protocol}")));
    }
    wanted.extend(["tcp", "udp", "icmp"].map(|protocol| format!("{server} {protocol}")));
    wanted.push("end".to_string());
    ensure!(answered == wanted, "answered: {answered:?}\n  wanted: {wanted:?}");
    Ok(())
}

/// Tests a metadata service's address at the far end, which one option permits, and which only a rule with that
/// address denies then.
fn metadata(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let (address, prefix) = match family {
        Family::V4 => ("168.63.129.16", 32),
        Family::V6 => ("fd20:ce::254", 128),
    };
    network.server().enter(|| {
        add_address("lo", &format!("{address}/{prefix}"))?;
        server::tcp::start(SocketAddr::new(family.unspecified(), PORT))
    })?;
    let port = PORT.to_string();
    let reached = |options: &[&str]| -> Result<bool> {
        let words = ["raw", "reach", family.suffix(), &port, address];
        let text = network.run().options(options).guest(words).text()?;
        Ok(text.lines().any(|line| line == format!("{address} tcp")))
    };
    ensure!(!reached(&[])?, "the metadata address is reachable by default");
    ensure!(reached(&["--metadata"])?, "closed with --metadata");
    ensure!(
        !reached(&["--metadata", "--deny", address])?,
        "open in spite of a rule"
    );
    Ok(())
}
