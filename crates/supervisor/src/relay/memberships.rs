//! What rules want of the host's own IP: that it is a member of their groups, as without a report nobody sends them here
//! (RFC 3376, RFC 3810), and that what a ring has taken of an address and port ends there in silence.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;

use ipnet::IpNet;
use pontoon_relay::rule::Input;
use pontoon_sys::{Family, bind, filter, multicast, udp};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, socket_with, sockopt};

use super::inputs::ReceiveMode;
use super::links::Links;
use crate::error::reason;

/// What is held for a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Membership {
    interface: String,
    /// A group to be joined, or an address of the host's.
    to: IpAddr,
    /// Joined for this sender only.
    from: Option<IpAddr>,
    /// Where datagrams end that the kernel, too, takes.
    sink: Option<NonZeroU16>,
}

/// Claims, each held by a socket of its own: closing it is leaving, and no limit of a socket's counts.
#[derive(Debug, Default)]
pub(super) struct Memberships(BTreeMap<Membership, Entry>);

#[derive(Debug)]
struct Entry {
    /// Rules that want it.
    users: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting,
    /// On the interface of this index and MTU, by this socket.
    Held(u32, u32, #[expect(dead_code, reason = "it is open")] OwnedFd),
    /// Why not.
    Failed(Errno),
}

/// Bytes that every link with IPv6 carries.
const IPV6_MIN_MTU: u32 = 1280;

impl Membership {
    /// What a rule needs. Of a range nothing can be joined.
    ///
    /// What a ring has taken goes on to the host's own IP, which finds a way to itself for each packet of a group that it
    /// is a member of, and nobody at its end: that costs more than the ring. So the membership's socket is there, which
    /// IPv4 finds before it looks for a way (`udp_v4_early_demux`, Linux net/ipv4/udp.c), and takes nothing. Of what is
    /// sent to an address the host would even tell the sender that nobody is there (RFC 1122 section 4.1.3.1).
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

    /// Below the smallest MTU that there is for IPv6 (RFC 8200 section 5) the interface has no IPv6 at all, and no member of
    /// a group of it any more.
    fn survives_mtu_change(&self, before: u32, now: u32) -> bool {
        !(self.to.is_ipv6() && self.to.is_multicast()) || before == now || (before.min(now) >= IPV6_MIN_MTU)
    }

    fn log_failure(&self, error: Errno) {
        let Self { interface, to, .. } = self;
        if to.is_multicast() {
            tracing::warn!(%error, "{interface}: cannot join {to}");
        } else {
            // Somebody else has the port, say: then nobody is told that nobody is there.
            tracing::debug!(%error, "{interface}: no sink at {to}");
        }
    }
}

impl Memberships {
    /// One more rule wants it.
    pub(super) fn acquire(&mut self, membership: Membership, links: &Links) {
        let entry = self.0.entry(membership.clone()).or_insert(Entry {
            users: 0,
            state: State::Waiting,
        });
        entry.users += 1;
        entry.update(&membership, links);
    }

    /// One rule less wants it.
    pub(super) fn release(&mut self, membership: &Membership) {
        if let Some(entry) = self.0.get_mut(membership) {
            entry.users -= 1;
            if entry.users == 0 {
                self.0.remove(membership);
            }
        }
    }

    /// Whether some group is not joined though its interface is there.
    pub(super) fn incomplete(&self) -> bool {
        let fails = |(membership, entry): (&Membership, &Entry)| {
            membership.to.is_multicast() && matches!(entry.state, State::Failed(_))
        };
        self.0.iter().any(fails)
    }

    /// Why a group is not joined. That somebody else has a port is no reason to try again.
    pub(super) fn missing(&self, membership: &Membership) -> Option<String> {
        match self.0.get(membership)?.state {
            State::Failed(error) if membership.to.is_multicast() => Some(format!(
                "cannot join {}: {}",
                membership.to,
                reason(&error.into())
            )),
            State::Failed(_) | State::Held(..) | State::Waiting => None,
        }
    }

    /// Holds what interfaces that have come allow.
    pub(super) fn update(&mut self, links: &Links) {
        for (membership, entry) in &mut self.0 {
            entry.update(membership, links);
        }
    }
}

impl Entry {
    fn update(&mut self, membership: &Membership, links: &Links) {
        let Some(link) = links.get(&membership.interface) else {
            self.state = State::Waiting;
            return;
        };
        if matches!(self.state, State::Held(index, mtu, _) if index == link.index && membership.survives_mtu_change(mtu, link.mtu))
        {
            return;
        }
        self.state = match (open(membership, link.index), &self.state) {
            (Ok(socket), _) => State::Held(link.index, link.mtu, socket),
            (Err(error), State::Failed(before)) if *before == error => return,
            (Err(error), _) => {
                membership.log_failure(error);
                State::Failed(error)
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
        // Others may be at the same group and port; of what is sent to one host only the latest would get any.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    match membership.sink.map(|port| bind_sink(&socket, membership, port)) {
        // It is a member all the same.
        Some(Err(error)) if multicast => {
            tracing::debug!(%error, "{}: no sink at {}", membership.interface, membership.to);
        }
        Some(Err(error)) => return Err(error),
        Some(Ok(())) | None => {}
    }
    Ok(socket)
}

fn bind_sink(socket: &OwnedFd, membership: &Membership, port: NonZeroU16) -> Result<(), Errno> {
    // What is many datagrams is taken apart for whoever does not ask for this.
    udp::coalesce(socket)?;
    bind::to_device(socket, &membership.interface)?;
    rustix::net::bind(socket, &SocketAddr::new(membership.to, port.get()))
}

#[cfg(test)]
mod tests;
