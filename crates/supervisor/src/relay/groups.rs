//! Groups that the rules want: without a report nobody sends them here (RFC 3376, RFC 3810).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use ipnet::IpNet;
use pontoon_relay::rule::Input;
use pontoon_sys::{Family, multicast};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, socket_with};

use super::links::Links;

/// What is joined.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Membership {
    interface: String,
    group: IpAddr,
    /// From this sender only.
    from: Option<IpAddr>,
}

/// Memberships, each held by a socket of its own: closing it is leaving, and no limit of a socket's counts.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<Membership, Joined>);

#[derive(Debug)]
struct Joined {
    /// Rules that want it.
    users: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting,
    /// On the interface of this index, by this socket.
    Held(u32, #[expect(dead_code, reason = "it is open")] OwnedFd),
    /// Why not.
    Failed(Errno),
}

impl Membership {
    /// What a rule needs. Of a range of groups nothing can be joined, and nothing needs to be for unicast.
    pub(super) fn of(input: &Input) -> Option<Self> {
        let single = |net: IpNet| (net.prefix_len() == net.max_prefix_len()).then(|| net.addr());
        let group = single(input.to).filter(IpAddr::is_multicast)?;
        Some(Self {
            interface: input.interface.clone(),
            group,
            from: input.from.and_then(single),
        })
    }
}

impl Groups {
    /// One more rule wants it.
    pub(super) fn acquire(&mut self, membership: Membership, links: &Links) {
        let joined = self.0.entry(membership.clone()).or_insert(Joined {
            users: 0,
            state: State::Waiting,
        });
        joined.users += 1;
        joined.update(&membership, links);
    }

    /// One rule less wants it.
    pub(super) fn release(&mut self, membership: &Membership) {
        if let Some(joined) = self.0.get_mut(membership) {
            joined.users -= 1;
            if joined.users == 0 {
                self.0.remove(membership);
            }
        }
    }

    /// Joins on interfaces that have come.
    pub(super) fn update(&mut self, links: &Links) {
        for (membership, joined) in &mut self.0 {
            joined.update(membership, links);
        }
    }
}

impl Joined {
    fn update(&mut self, membership: &Membership, links: &Links) {
        let Some(link) = links.get(&membership.interface) else {
            self.state = State::Waiting;
            return;
        };
        if matches!(self.state, State::Held(index, _) if index == link.index) {
            return;
        }
        self.state = match (join(membership, link.index), &self.state) {
            (Ok(socket), _) => State::Held(link.index, socket),
            (Err(error), State::Failed(before)) if *before == error => return,
            (Err(error), _) => {
                tracing::warn!(%error, "{}: cannot join {}", membership.interface, membership.group);
                State::Failed(error)
            }
        };
    }
}

fn join(membership: &Membership, index: u32) -> Result<OwnedFd, Errno> {
    // Bound to no port, it never receives anything.
    let domain = Family::of(membership.group).domain();
    let socket = socket_with(domain, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    multicast::join(&socket, index, membership.group, membership.from)?;
    Ok(socket)
}
