//! The network: sender, relays and sinks, each in a namespace of its own.
//!
//! ```text
//! sender out0 --- in relay 0 out0 --- in relay 1 out0 --- in sink 0
//!                            out1 --- in sink 1
//! ```

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pontoon_netns::{Namespace, add_address, ip, sysctl, veth};

use super::sender::{self, SendPlan, SentDatagrams};
use super::sink::Sinks;

/// The arrangement of relays between sender and sinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// This number of relays, one behind the other, with one sink at the end.
    Chain(u8),
    /// One relay with this number of outputs, each with its own sink.
    Tree(u8),
}

/// Returns the IPv4 address of the sender.
pub(crate) fn sender_address() -> Ipv4Addr {
    address(0, 1)
}

fn address(link: usize, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, link as u8, last)
}

/// Returns the multicast group that relay number `hop` receives. The sender sends to group 0, and relay N to group N
/// + 1.
pub(crate) fn group(hop: usize) -> SocketAddrV4 {
    let last = hop as u8 + 1;
    SocketAddrV4::new(Ipv4Addr::new(239, 1, 1, last), 5000 + u16::from(last))
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str| digits.parse().ok().filter(|number| (1..=16).contains(number));
        let topology = match text.split_once('-') {
            Some(("one", "hop")) => Some(Self::Chain(1)),
            Some(("chain", digits)) => number(digits).map(Self::Chain),
            Some(("tree", digits)) => number(digits).map(Self::Tree),
            _ => None,
        };
        topology.ok_or_else(|| "the form is one-hop, chain-N or tree-N (N is 1 to 16)".to_owned())
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(1) => f.write_str("one-hop"),
            Self::Chain(count) => write!(f, "chain-{count}"),
            Self::Tree(count) => write!(f, "tree-{count}"),
        }
    }
}

/// The network namespaces of sender, relays and sinks, which exist as long as this value or a process inside.
pub(super) struct RelayNetwork {
    sender: Namespace,
    relays: Vec<Namespace>,
    sinks: Vec<Namespace>,
}

/// One relay's position in the network: it receives group `number` on the interface `in` and sends to group `number`
/// + 1 on each of `out0`, `out1`, ...
pub(crate) struct Hop<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) number: usize,
    /// The relay's IPv4 address on each output interface.
    pub(crate) outputs: Vec<Ipv4Addr>,
}

impl RelayNetwork {
    pub(super) fn new(topology: Topology) -> Result<Self> {
        let (relays, sinks) = match topology {
            Topology::Chain(count) => (count, 1),
            Topology::Tree(count) => (1, count),
        };
        let make = |count| (0..count).map(|_| Namespace::new()).collect::<Result<Vec<_>>>();
        let network = Self {
            sender: Namespace::new()?,
            relays: make(relays)?,
            sinks: make(sinks)?,
        };
        let row: Vec<&Namespace> = [&network.sender].into_iter().chain(&network.relays).collect();
        for (link, pair) in row.windows(2).enumerate() {
            join(pair[0], 0, pair[1], link)?;
        }
        let last = row[row.len() - 1];
        for (output, sink) in network.sinks.iter().enumerate() {
            join(last, output, sink, row.len() + output)?;
        }
        network.sender.enter(|| ip("route add 224.0.0.0/4 dev out0"))?;
        Ok(network)
    }

    pub(super) fn hops(&self) -> impl Iterator<Item = Hop<'_>> {
        let count = self.relays.len();
        self.relays.iter().enumerate().map(move |(number, namespace)| {
            let links = if number + 1 == count {
                count + 1..count + 1 + self.sinks.len()
            } else {
                number + 1..number + 2
            };
            Hop {
                namespace,
                number,
                outputs: links.map(|link| address(link, 1)).collect(),
            }
        })
    }

    pub(super) fn outputs(&self) -> usize {
        self.sinks.len()
    }

    /// Returns the group that the sinks receive. `is_rewritten` is true for relays that send to the group of the next
    /// hop.
    pub(super) fn last_group(&self, is_rewritten: bool) -> SocketAddrV4 {
        group(if is_rewritten { self.relays.len() } else { 0 })
    }

    pub(super) fn first_sink(&self) -> &Namespace {
        &self.sinks[0]
    }

    pub(super) fn sinks(&self, group: SocketAddrV4) -> Result<Sinks> {
        Sinks::open(&self.sinks, group)
    }

    /// Disables `tx-udp-segmentation` of the sender's interface, so that the kernel segments the datagrams of one
    /// send call before the link.
    pub(super) fn disable_tx_segmentation(&self) -> Result<()> {
        self.sender.enter(|| {
            let mut ethtool = Command::new("ethtool");
            let status = ethtool
                .args(["-K", "out0", "tx-udp-segmentation", "off"])
                .status();
            let status = status.context("cannot run ethtool (try: install ethtool)")?;
            ensure!(status.success(), "ethtool: {status}");
            Ok(())
        })
    }

    pub(super) fn send(&self, plan: SendPlan, cpu: usize) -> Result<SentDatagrams> {
        self.sender
            .enter(|| sender::send(SocketAddr::V4(group(0)), plan, cpu))
    }

    /// Sends probes until datagrams arrive at every sink.
    pub(super) fn wait_until_forwarding(&self, sinks: &Sinks) -> Result<()> {
        let probe = self.sender.enter(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_multicast_ttl_v4(sender::HOPS)?;
            socket.connect(SocketAddr::V4(group(0)))?;
            Ok(socket)
        })?;
        let begin = Instant::now();
        while !sinks.all_reached()? {
            ensure!(begin.elapsed() < TIMEOUT, "no datagram arrives at the sinks");
            probe.send(&[0; 16])?;
            std::thread::sleep(Duration::from_millis(20));
        }
        // Waits for the last probes, which must not be counted as datagrams of the measurement.
        sinks.final_count()?;
        Ok(())
    }
}

/// Time limit for all relays to begin to forward.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Connects two namespaces by link number `link`: address 10.0.LINK.1 at `outN` of `left`, 10.0.LINK.2 at `in` of
/// `right`.
fn join(left: &Namespace, output: usize, right: &Namespace, link: usize) -> Result<()> {
    let quiet = || {
        sysctl("net/ipv4/conf/all/rp_filter", "0")?;
        sysctl("net/ipv4/conf/default/rp_filter", "0")?;
        sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
        sysctl("net/ipv6/conf/default/disable_ipv6", "1")
    };
    left.enter(quiet)?;
    right.enter(quiet)?;
    left.enter(|| {
        let name = format!("out{output}");
        veth(&name, right, "in")?;
        add_address(&name, &format!("{}/24", address(link, 1)))
    })?;
    right.enter(|| add_address("in", &format!("{}/24", address(link, 2))))
}
