//! The network around the host that a case plays: namespaces joined by veth pairs, in a row.
//!
//! ```text
//! guest ~~~ host (the case's own namespace) --- router --- ... --- server
//!              link 0: .1              .2   link 1: .1
//! ```
//!
//! Link N is 198.51.(100+N).0/24 and `2001:db8:(1+N)::/64`. The host's default routes point at its neighbour.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::case::{Context, Family};
use crate::process;
use crate::run::Run;

/// A network namespace that lives as long as this value and what runs inside.
pub(crate) struct Namespace(File);

impl Namespace {
    pub(crate) fn new() -> Result<Self> {
        let made = std::thread::spawn(|| -> Result<Self> {
            // SAFETY: only descriptors are shared with other threads, and NEWNET takes none of them away.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
            let namespace = Self(File::open("/proc/thread-self/ns/net")?);
            begin()?;
            Ok(namespace)
        });
        process::join(made)
    }

    /// Runs `inside` on a thread in this namespace. Sockets, threads and programs made there stay there.
    pub(crate) fn enter<T: Send>(&self, inside: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
                inside()
            });
            thread
                .join()
                .unwrap_or_else(|_| anyhow::bail!("a thread in a namespace panicked"))
        })
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// The row of namespaces behind the host.
pub(crate) struct Network<'a> {
    context: &'a Context,
    /// Routers, then the server.
    nodes: Vec<Namespace>,
    /// Stands in for the guest when there is no program under test.
    direct: Option<Namespace>,
}

impl<'a> Network<'a> {
    /// Host and server, joined by one link.
    pub(crate) fn new(context: &'a Context) -> Result<Self> {
        Self::with_routers(context, 0)
    }

    pub(crate) fn with_routers(context: &'a Context, routers: u8) -> Result<Self> {
        begin()?;
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
                join(name, right, "left")?;
                address(
                    name,
                    &format!("{}/24", v4(link, 1)),
                    &format!("{}/64", v6(link, 1)),
                )
            };
            before.map_or_else(left, |before| before.enter(left))?;
            right.enter(|| {
                address(
                    "left",
                    &format!("{}/24", v4(link, 2)),
                    &format!("{}/64", v6(link, 2)),
                )?;
                // Everything to the left is behind the left neighbour.
                ip(&format!("route add default via {}", v4(link, 1)))?;
                ip(&format!("route add default via {}", v6(link, 1)))
            })?;
            // Everything to the right is behind the right neighbour.
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

    /// `pontoon run` on the host of this network.
    pub(crate) fn run(&self) -> Run<'_> {
        Run::new(&self.context.program, self.direct.as_ref())
    }

    /// The namespace at the far end.
    pub(crate) fn server(&self) -> &Namespace {
        &self.nodes[self.nodes.len() - 1]
    }

    /// The far end's address.
    pub(crate) fn server_address(&self, family: Family) -> IpAddr {
        let link = self.nodes.len() as u8 - 1;
        family.pick(v4(link, 2), v6(link, 2))
    }

    /// Sets what both ends of link `index` take.
    pub(crate) fn set_mtu(&self, index: usize, mtu: u16) -> Result<()> {
        let left = |name: &str| ip(&format!("link set {name} mtu {mtu}"));
        match index.checked_sub(1) {
            None => left("net0")?,
            Some(before) => self.nodes[before].enter(|| left("right"))?,
        }
        self.nodes[index].enter(|| left("left"))
    }

    /// The host's address on its first link.
    pub(crate) fn host_address(&self, family: Family) -> IpAddr {
        family.pick(v4(0, 1), v6(0, 1))
    }

    /// Adds another address, of the host's part of the first link, to the far end of a one-link network.
    pub(crate) fn add_server_address(&self, family: Family, last: u8) -> Result<IpAddr> {
        let added = family.pick(v4(0, last), v6(0, last));
        let width = if family == Family::V4 { 24 } else { 64 };
        self.server()
            .enter(|| add_address("left", &format!("{added}/{width}")))?;
        Ok(added)
    }
}

/// Prepares the caller's namespace, still empty, for links whose addresses can be used at once.
fn begin() -> Result<()> {
    sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    sysctl("net/ipv6/conf/default/dad_transmits", "0")?;
    ip("link set lo up")
}

/// Runs `ip` with `arguments` in the caller's namespace.
pub(crate) fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .context("cannot run ip")?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {}", why.trim());
    Ok(())
}

/// Writes a sysctl of the caller's network namespace: `net/ipv4/...`.
pub(crate) fn sysctl(path: &str, value: &str) -> Result<()> {
    std::fs::write(format!("/proc/sys/{path}"), value).with_context(|| format!("cannot write sysctl {path}"))
}

pub(crate) fn add_address(interface: &str, address: &str) -> Result<()> {
    let nodad = if address.contains(':') { " nodad" } else { "" };
    ip(&format!("address add {address} dev {interface}{nodad}"))
}

fn address(interface: &str, v4: &str, v6: &str) -> Result<()> {
    add_address(interface, v4)?;
    add_address(interface, v6)
}

/// A veth pair from the caller's namespace to another. Both ends are up before they get addresses: otherwise the
/// first IPv6 packets wait a second for the kernel to notice the carrier.
pub(crate) fn join(name: &str, other: &Namespace, peer: &str) -> Result<()> {
    ip(&format!(
        "link add {name} type veth peer name {peer} netns {}",
        other.path()
    ))?;
    other.enter(|| ip(&format!("link set {peer} up")))?;
    ip(&format!("link set {name} up"))
}

fn forward() -> Result<()> {
    sysctl("net/ipv4/ip_forward", "1")?;
    sysctl("net/ipv6/conf/all/forwarding", "1")?;
    // Every probe of a traceroute gets its answer.
    sysctl("net/ipv4/icmp_ratelimit", "0")?;
    sysctl("net/ipv6/icmp/ratelimit", "0")
}

fn v4(link: u8, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100 + link, last)
}

fn v6(link: u8, last: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 1 + u16::from(link), 0, 0, 0, 0, last.into())
}

/// A namespace with the addresses that a guest would have, routed by the host.
fn direct_guest() -> Result<Namespace> {
    let guest = Namespace::new()?;
    join("guest0", &guest, "eth0")?;
    address("guest0", "10.0.2.2/24", "fd70:6f6e:746f::2/64")?;
    forward()?;
    guest.enter(|| {
        address("eth0", "10.0.2.15/24", "fd70:6f6e:746f::15/64")?;
        ip("route add default via 10.0.2.2")?;
        ip("route add default via fd70:6f6e:746f::2")
    })?;
    Ok(guest)
}
