//! The ears and the voice of proxies: what hosts on a link say of groups, and what we ask them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use pontoon_relay::Rule;
use pontoon_relay::membership::{Querier, message};
use pontoon_relay::proxy::{Proxy, Wanted};
use pontoon_sys::{Family, filter, packet};

use super::counter_rows;
use super::links::{Link, Links};

/// All proxies.
#[derive(Debug)]
pub(super) struct Proxies {
    begin: Instant,
    proxies: Vec<Proxying>,
}

#[derive(Debug)]
struct Proxying {
    proxy: Proxy,
    /// By interface and whether it is IPv6.
    ears: BTreeMap<(String, bool), Ear>,
    /// Interfaces that are not there, which has been said.
    missing: BTreeSet<String>,
}

/// A place to hear and to ask at.
#[derive(Debug)]
struct Ear {
    index: u32,
    /// Where queries come from; while there is nothing, hosts are only heard.
    own: Option<IpAddr>,
    socket: OwnedFd,
    querier: Querier,
}

/// Bytes of the longest message on a link.
const LONGEST: usize = 9000;

/// Messages of one look, so that a flood leaves time for everything else.
const BATCH: usize = 64;

impl Proxies {
    /// Several with one upstream are one, as what they want would be rules with one input.
    pub(super) fn new(proxies: &[Proxy]) -> Self {
        let proxying = |proxy| Proxying {
            proxy,
            ears: BTreeMap::new(),
            missing: BTreeSet::new(),
        };
        Self {
            begin: Instant::now(),
            proxies: Proxy::merge(proxies).into_iter().map(proxying).collect(),
        }
    }

    /// Opens and closes as the interfaces are now.
    pub(super) fn update(&mut self, links: &Links) {
        let now = self.now();
        for proxying in &mut self.proxies {
            proxying.update(links, now);
        }
    }

    /// Readable when somebody has said something.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ears().map(|ear| ear.socket.as_fd())
    }

    /// When to turn next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.ears().map(|ear| self.begin + ear.querier.next_tick()).min()
    }

    /// Takes in what was said, asks what is due, and says what that leads to, and how much of it so many rows of the
    /// counters are not enough for.
    pub(super) fn turn(&mut self, rows: usize) -> (Vec<Rule>, usize) {
        let now = self.now();
        for ((name, _), ear) in self.proxies.iter_mut().flat_map(|proxying| &mut proxying.ears) {
            if let Err(error) = ear.turn(now) {
                tracing::debug!(%error, "{name}: asking for groups");
            }
        }
        // Where it is too much, it is cut off where the most is wanted: others are not to have less for that.
        let mut most = usize::MAX;
        loop {
            let (rules, longest, left_out) = self.rules(now, most);
            if most == 0 || counter_rows::needed(&rules) <= rows {
                return (rules, left_out);
            }
            most = longest.min(most) / 2;
        }
    }

    /// What leads to at most so many wishes of each interface and family; how many the longest list has, and how many are
    /// not among them.
    fn rules(&self, now: Duration, most: usize) -> (Vec<Rule>, usize, usize) {
        let (mut rules, mut longest, mut left_out) = (Vec::new(), 0, 0);
        for Proxying { proxy, ears, .. } in &self.proxies {
            let mut wanted = Vec::new();
            for ((name, _), ear) in ears {
                let wishes: Vec<_> = ear.querier.wanted(now).collect();
                longest = longest.max(wishes.len());
                left_out += wishes.len().saturating_sub(most);
                wanted.extend(wishes.into_iter().take(most).map(|(group, from)| Wanted {
                    behind: name.clone(),
                    group,
                    from,
                }));
            }
            rules.extend(proxy.rules(&wanted));
        }
        (rules, longest, left_out)
    }

    fn ears(&self) -> impl Iterator<Item = &Ear> {
        self.proxies.iter().flat_map(|proxying| proxying.ears.values())
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }
}

impl Proxying {
    fn update(&mut self, links: &Links, now: Duration) {
        for name in self.proxy.downstream.iter().chain([&self.proxy.upstream]) {
            if links.get(name).is_some() {
                self.missing.remove(name);
            } else if self.missing.insert(name.clone()) {
                tracing::warn!("{name}: no such interface; the proxy waits for it");
            }
        }
        for name in &self.proxy.downstream {
            for family in [Family::V4, Family::V6] {
                let key = (name.clone(), family == Family::V6);
                let link = links.get(name).filter(|link| link.up);
                let own = link.and_then(|link| own_address(link, family));
                if let Some(ear) = self.ears.get_mut(&key)
                    && link.is_some_and(|link| link.index == ear.index)
                {
                    ear.ask_from(own, now);
                    continue;
                }
                self.ears.remove(&key);
                let found = link.map(|link| link.index).zip(own);
                match found.map(|(index, own)| Ear::open(index, own, now)) {
                    None => {}
                    Some(Ok(ear)) => {
                        self.ears.insert(key, ear);
                    }
                    Some(Err(error)) => tracing::warn!(%error, "{name}: cannot hear who wants groups"),
                }
            }
        }
    }
}

/// Queries of MLD come from the link's own address (RFC 3810 section 5).
fn own_address(link: &Link, family: Family) -> Option<IpAddr> {
    let mut addresses = link.addresses(family).map(|own| own.address);
    addresses.find(|address| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    })
}

impl Ear {
    fn open(index: u32, own: IpAddr, now: Duration) -> io::Result<Self> {
        let family = Family::of(own);
        let socket = packet::plain(index, family, |socket| match family {
            Family::V4 => filter::attach(socket, IGMP),
            Family::V6 => filter::attach(socket, MLD),
        })?;
        packet::all_groups(&socket, index, true)?;
        Ok(Self {
            index,
            own: Some(own),
            socket,
            querier: Querier::new(own, now),
        })
    }

    /// Hosts that have been heard are not to be forgotten because an address of ours is another one.
    fn ask_from(&mut self, own: Option<IpAddr>, now: Duration) {
        if let Some(address) = own
            && self.own != own
        {
            self.querier.set_address(address, now);
        }
        self.own = own;
    }

    fn turn(&mut self, now: Duration) -> io::Result<()> {
        let mut buffer = [0; LONGEST];
        for _ in 0..BATCH {
            match rustix::net::recv(&self.socket, &mut buffer[..], rustix::net::RecvFlags::DONTWAIT) {
                Ok((len, _)) => {
                    if let Some(heard) = buffer.get(..len).and_then(message::parse) {
                        self.querier.handle(heard, now);
                    }
                }
                Err(rustix::io::Errno::AGAIN) => break,
                // The interface has gone down, say, which is about to be told.
                Err(error) => return Err(error.into()),
            }
        }
        for query in self.querier.tick(now) {
            if let Some(own) = self.own
                && let Some((bytes, to)) = query.packet(own)
            {
                packet::send_to_group(&self.socket, self.index, to, &bytes)?;
            }
        }
        Ok(())
    }
}

/// Protocol 2.
const IGMP: [(u16, u8, u8, u32); 4] = [
    (0x30, 0, 0, 9),
    (0x15, 0, 1, 2),
    (0x06, 0, 0, 0x4_0000),
    (0x06, 0, 0, 0),
];

/// Hop-by-hop options, and ICMPv6 behind them.
const MLD: [(u16, u8, u8, u32); 6] = [
    (0x30, 0, 0, 6),
    (0x15, 0, 3, 0),
    (0x30, 0, 0, 40),
    (0x15, 0, 1, 58),
    (0x06, 0, 0, 0x4_0000),
    (0x06, 0, 0, 0),
];

#[cfg(test)]
mod tests;
