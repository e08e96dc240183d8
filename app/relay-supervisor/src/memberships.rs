//! Sockets that the host's IP layer needs for rules: memberships of their groups, without whose reports routers and
//! switches forward no datagrams to this host (RFC 3376, RFC 3810), and sinks, which discard the copies that IP delivers of
//! datagrams that a ring has received.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;

use ipnet::IpNet;
use pontoon_process::error::reason;
use pontoon_relay::rule::Input;
use pontoon_sys::{Family, bind, filter, multicast, udp};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, socket_with, sockopt};

use crate::inputs::ReceiveMode;
use crate::links::Links;

/// Group to join, or address to bind to, for a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Membership {
    interface: String,
    /// Multicast group, or an address of this host.
    to: IpAddr,
    /// Only sender for which the group is joined (source-specific multicast).
    from: Option<IpAddr>,
    /// Port of the socket that discards the datagrams that the host's IP layer delivers.
    sink: Option<NonZeroU16>,
}

/// Memberships of all rules, each with its own socket: closing it leaves the group, and limits per socket do not apply.
#[derive(Debug)]
pub(super) struct Memberships {
    entries: BTreeMap<Membership, MembershipEntry>,
    /// Limit on open sockets; the other descriptors are for rings, outputs, clients and workers.
    max_open: usize,
    /// Number of open sockets.
    open: usize,
    /// True if a warning that the limit has refused sockets has been logged.
    refusal_logged: bool,
}

/// State of the socket of one membership.
#[derive(Debug)]
struct MembershipEntry {
    /// Number of rules that need the membership.
    users: usize,
    state: MembershipState,
}

/// State of a membership's socket.
#[derive(Debug)]
enum MembershipState {
    /// The socket is not open, because the interface does not exist.
    Waiting,
    /// The socket is open, on the interface with this index and MTU.
    Held(u32, u32, #[expect(dead_code, reason = "it is open")] OwnedFd),
    /// The socket could not be opened, for this reason.
    Failed(Errno),
    /// The socket is not open, because the limit on open sockets is reached.
    Refused,
}

/// Minimum MTU of a link with IPv6 in bytes (RFC 8200 section 5).
const IPV6_MIN_MTU: u32 = 1280;

impl Membership {
    /// Returns the membership that a rule needs; `None` for a range of groups, which cannot be joined.
    ///
    /// A packet that a ring has received is also delivered to the host's IP layer, which looks up a route for each packet
    /// of a joined group and finds no receiver; that costs more than receiving from the ring. So the membership's socket is
    /// bound to group and port: IPv4 finds the socket before the route lookup (`udp_v4_early_demux`, Linux net/ipv4/udp.c),
    /// and the socket's filter drops the packet. Without a socket for a unicast address the host would answer with ICMP
    /// port unreachable (RFC 1122 section 4.1.3.1).
    pub(super) fn of(input: &Input, engine: ReceiveMode) -> Option<Self> {
        let single = |net: IpNet| (net.prefix_len() == net.max_prefix_len()).then(|| net.addr());
        let to = single(input.to)?;
        let ends_here = engine == ReceiveMode::Ring && (to.is_ipv4() || !to.is_multicast());
        let sink = input.port.filter(|_| ends_here);
        (to.is_multicast() || sink.is_some()).then(|| Self {
            interface: input.interface.clone(),
            to,
            from: input.from.and_then(single).filter(|_| to.is_multicast()),
            sink,
        })
    }

    /// Returns true if the membership persists when the interface's MTU changes from `before` to `now`. Below the minimum
    /// MTU of IPv6 (RFC 8200 section 5) the kernel disables IPv6 on the interface and drops its memberships.
    fn survives_mtu_change(&self, before: u32, now: u32) -> bool {
        !(self.to.is_ipv6() && self.to.is_multicast()) || before == now || (before.min(now) >= IPV6_MIN_MTU)
    }

    fn log_failure(&self, error: Errno) {
        let Self { interface, to, .. } = self;
        if to.is_multicast() {
            tracing::warn!(%error, "{interface}: cannot join {to}");
        } else {
            // An error means, for example, that another program has the port; then senders may receive ICMP port
            // unreachable.
            tracing::debug!(%error, "{interface}: no sink at {to}");
        }
    }
}

impl Memberships {
    /// Returns an empty set of memberships, with a limit of `max_open` sockets.
    pub(super) fn new(max_open: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            max_open,
            open: 0,
            refusal_logged: false,
        }
    }

    /// Adds a rule that needs `membership`; opens its socket if the rule is the first.
    pub(super) fn acquire(&mut self, membership: Membership, links: &Links) {
        let entry = self.entries.entry(membership.clone()).or_insert(MembershipEntry {
            users: 0,
            state: MembershipState::Waiting,
        });
        entry.users += 1;
        entry.update(&membership, links, &mut self.open, self.max_open);
    }

    /// Removes a rule that needed `membership`; closes its socket if the rule was the last.
    pub(super) fn release(&mut self, membership: &Membership) {
        if let Some(entry) = self.entries.get_mut(membership) {
            entry.users -= 1;
            if entry.users == 0 {
                self.open -= usize::from(entry.is_open());
                self.entries.remove(membership);
            }
        }
    }

    /// Returns true if a group is not joined although its interface exists, and another attempt may succeed. A socket that
    /// the limit refuses is not retried.
    pub(super) fn incomplete(&self) -> bool {
        let has_room = self.open < self.max_open;
        let may_succeed = |(membership, entry): (&Membership, &MembershipEntry)| match entry.state {
            MembershipState::Failed(_) => membership.to.is_multicast(),
            MembershipState::Refused => has_room,
            MembershipState::Waiting | MembershipState::Held(..) => false,
        };
        self.entries.iter().any(may_succeed)
    }

    /// Returns the number of sockets that are not open because the limit is reached.
    pub(super) fn refused(&self) -> usize {
        let entries = self.entries.values();
        entries
            .filter(|entry| matches!(entry.state, MembershipState::Refused))
            .count()
    }

    /// Returns the reason why the group of `membership` is not joined; `None` if it is. A port that is in use is not
    /// retried.
    pub(super) fn missing(&self, membership: &Membership) -> Option<String> {
        match self.entries.get(membership)?.state {
            MembershipState::Failed(error) if membership.to.is_multicast() => Some(format!(
                "cannot join {}: {}",
                membership.to,
                reason(&error.into())
            )),
            MembershipState::Refused if membership.to.is_multicast() => Some(format!(
                "cannot join {}: the limit on sockets is reached",
                membership.to
            )),
            MembershipState::Failed(_)
            | MembershipState::Refused
            | MembershipState::Held(..)
            | MembershipState::Waiting => None,
        }
    }

    /// Opens and closes sockets according to the state of the interfaces.
    pub(super) fn update(&mut self, links: &Links) {
        for (membership, entry) in &mut self.entries {
            entry.update(membership, links, &mut self.open, self.max_open);
        }
        self.log_refused();
    }

    /// Opens sockets that the limit has refused, up to the limit.
    pub(super) fn open_refused(&mut self, links: &Links) {
        let refused = |(_, entry): &(&Membership, &mut MembershipEntry)| {
            matches!(entry.state, MembershipState::Refused)
        };
        if self.open < self.max_open {
            for (membership, entry) in self.entries.iter_mut().filter(refused) {
                entry.update(membership, links, &mut self.open, self.max_open);
            }
        }
        self.log_refused();
    }

    /// Logs when the limit begins to refuse sockets, and when no socket is refused any more.
    fn log_refused(&mut self) {
        let (refused, limit) = (self.refused(), self.max_open);
        match (self.refusal_logged, refused) {
            (false, 1..) => tracing::warn!(
                "{refused} groups or addresses have no socket: the descriptor limit (ulimit -Hn) leaves room for {limit}"
            ),
            (true, 0) => tracing::info!("all groups and addresses have sockets again"),
            _ => {}
        }
        self.refusal_logged = refused > 0;
    }
}

impl MembershipEntry {
    fn is_open(&self) -> bool {
        matches!(self.state, MembershipState::Held(..))
    }

    /// Opens or closes the socket of `membership` according to the state of its interface. `open` is the number of open
    /// sockets.
    fn update(&mut self, membership: &Membership, links: &Links, open: &mut usize, max_open: usize) {
        *open -= usize::from(self.is_open());
        self.adapt(membership, links, *open < max_open);
        *open += usize::from(self.is_open());
    }

    fn adapt(&mut self, membership: &Membership, links: &Links, has_room: bool) {
        let Some(link) = links.get(&membership.interface) else {
            self.state = MembershipState::Waiting;
            return;
        };
        if matches!(self.state, MembershipState::Held(index, mtu, _) if index == link.index && membership.survives_mtu_change(mtu, link.mtu))
        {
            return;
        }
        if !has_room {
            self.state = MembershipState::Refused;
            return;
        }
        self.state = match (open(membership, link.index), &self.state) {
            (Ok(socket), _) => MembershipState::Held(link.index, link.mtu, socket),
            (Err(error), MembershipState::Failed(before)) if *before == error => return,
            (Err(error), _) => {
                membership.log_failure(error);
                MembershipState::Failed(error)
            }
        };
    }
}

fn open(membership: &Membership, index: u32) -> Result<OwnedFd, Errno> {
    let domain = Family::of(membership.to).domain();
    let socket = socket_with(domain, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    filter::refuse_all(&socket)?;
    let multicast = membership.to.is_multicast();
    if multicast {
        multicast::join(&socket, index, membership.to, membership.from)?;
        // Other programs may be bound to the same group and port. Of sockets bound to a unicast address, only the last
        // would receive.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    match membership.sink.map(|port| bind_sink(&socket, membership, port)) {
        // The group is joined even if its sink cannot be opened.
        Some(Err(error)) if multicast => {
            tracing::debug!(%error, "{}: no sink at {}", membership.interface, membership.to);
        }
        Some(Err(error)) => return Err(error),
        Some(Ok(())) | None => {}
    }
    Ok(socket)
}

fn bind_sink(socket: &OwnedFd, membership: &Membership, port: NonZeroU16) -> Result<(), Errno> {
    // Without UDP_GRO at the receiver, the kernel would split a packet of several coalesced datagrams.
    udp::coalesce(socket)?;
    bind::to_device(socket, &membership.interface)?;
    rustix::net::bind(socket, &SocketAddr::new(membership.to, port.get()))
}

#[cfg(test)]
mod tests;
