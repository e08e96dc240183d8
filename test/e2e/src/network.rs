//! The network around the host that a case plays: namespaces joined by veth pairs, in a row.
//!
//! ```text
//! guest ~~~ host (the case's own namespace) --- router --- ... --- server
//!              link 0: .1              .2   link 1: .1
//! ```
//!
//! Link N is 198.51.(100+N).0/24 and `2001:db8:(1+N)::/64`. The host's default routes point at its neighbour.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use pontoon_netns::{Namespace, add_address, ip, prepare, sysctl, veth};

use crate::case::{Context, Family};
use crate::run::PontoonRun;

/// The namespaces in a row behind the host.
pub(crate) struct Network<'a> {
    context: &'a Context,
    /// Namespaces of the routers, and of the server at the end.
    nodes: Vec<Namespace>,
    /// Namespace in place of the guest if there is no program under test.
    direct: Option<Namespace>,
}

impl<'a> Network<'a> {
    /// Creates a network of host and server, with one link between them.
    pub(crate) fn new(context: &'a Context) -> Result<Self> {
        Self::with_routers(context, 0)
    }

    pub(crate) fn with_routers(context: &'a Context, routers: u8) -> Result<Self> {
        prepare()?;
        let nodes = (0..=routers)
            .map(|_| Namespace::new())
            .collect::<Result<Vec<_>>>()?;
        for (right, link) in nodes.iter().zip(0..) {
            let (name, before) = if link == 0 {
                ("net0", None)
            } else {
                ("right", nodes.get(usize::from(link) - 1))
            };
            let left = || {
                veth(name, right, "left")?;
                addresses(
                    name,
                    &format!("{}/24", v4(link, 1)),
                    &format!("{}/64", v6(link, 1)),
                )
            };
            before.map_or_else(left, |before| before.enter(left))?;
            right.enter(|| {
                addresses(
                    "left",
                    &format!("{}/24", v4(link, 2)),
                    &format!("{}/64", v6(link, 2)),
                )?;
                // The default route leads to the left neighbour.
                ip(&format!("route add default via {}", v4(link, 1)))?;
                ip(&format!("route add default via {}", v6(link, 1)))
            })?;
            // The routes to all links on the right lead to the right neighbour.
            match before {
                None => {
                    ip(&format!("route add default via {}", v4(link, 2)))?;
                    ip(&format!("route add default via {}", v6(link, 2)))?;
                }
                Some(before) => before.enter(|| {
                    for later in link + 1..=routers {
                        ip(&format!("route add {}/24 via {}", v4(later, 0), v4(link, 2)))?;
                        ip(&format!("route add {}/64 via {}", v6(later, 0), v6(link, 2)))?;
                    }
                    forward()
                })?,
            }
        }
        let direct = if context.program.binary.is_none() {
            Some(direct_guest()?)
        } else {
            None
        };
        Ok(Self {
            context,
            nodes,
            direct,
        })
    }

    /// Returns a `pontoon run` on the host of this network, to be configured.
    pub(crate) fn run(&self) -> PontoonRun<'_> {
        PontoonRun::new(&self.context.program, self.direct.as_ref())
    }

    /// Returns the namespace at the far end, which has the servers.
    pub(crate) fn server(&self) -> &Namespace {
        &self.nodes[self.nodes.len() - 1]
    }

    /// Returns the namespace at the other end of the first link.
    pub(crate) fn neighbour(&self) -> &Namespace {
        &self.nodes[0]
    }

    /// Returns the address of the far end.
    pub(crate) fn server_address(&self, family: Family) -> IpAddr {
        let link = self.nodes.len() as u8 - 1;
        family.pick(v4(link, 2), v6(link, 2))
    }

    /// Sets the MTU at both ends of link `index`.
    pub(crate) fn set_mtu(&self, index: usize, mtu: u16) -> Result<()> {
        let left = |name: &str| ip(&format!("link set {name} mtu {mtu}"));
        match index.checked_sub(1) {
            None => left("net0")?,
            Some(before) => self.nodes[before].enter(|| left("right"))?,
        }
        self.nodes[index].enter(|| left("left"))
    }

    /// Returns the host's address on its first link.
    pub(crate) fn host_address(&self, family: Family) -> IpAddr {
        family.pick(v4(0, 1), v6(0, 1))
    }

    /// Adds an address of the first link's subnet, with the last byte `last`, to the far end of a network with one
    /// link.
    pub(crate) fn add_server_address(&self, family: Family, last: u8) -> Result<IpAddr> {
        let added = family.pick(v4(0, last), v6(0, last));
        let width = if family == Family::V4 { 24 } else { 64 };
        self.server()
            .enter(|| add_address("left", &format!("{added}/{width}")))?;
        Ok(added)
    }
}

fn addresses(interface: &str, v4: &str, v6: &str) -> Result<()> {
    add_address(interface, v4)?;
    add_address(interface, v6)
}

fn forward() -> Result<()> {
    sysctl("net/ipv4/ip_forward", "1")?;
    sysctl("net/ipv6/conf/all/forwarding", "1")?;
    // Removes the rate limit of ICMP errors, as every probe of a traceroute must be answered.
    sysctl("net/ipv4/icmp_ratelimit", "0")?;
    sysctl("net/ipv6/icmp/ratelimit", "0")
}

fn v4(link: u8, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100 + link, last)
}

fn v6(link: u8, last: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 1 + u16::from(link), 0, 0, 0, 0, last.into())
}

/// Creates a namespace with the addresses of a guest, for which the host routes.
fn direct_guest() -> Result<Namespace> {
    let guest = Namespace::new()?;
    veth("guest0", &guest, "eth0")?;
    addresses("guest0", "10.0.2.2/24", "fd70:6f6e:746f::2/64")?;
    forward()?;
    guest.enter(|| {
        addresses("eth0", "10.0.2.15/24", "fd70:6f6e:746f::15/64")?;
        ip("route add default via 10.0.2.2")?;
        ip("route add default via fd70:6f6e:746f::2")
    })?;
    Ok(guest)
}
