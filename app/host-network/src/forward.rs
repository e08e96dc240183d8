//! Guest forwards: the values of the option `--guest-forward`, and their changes while the guest runs.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use pontoon_engine::address_plan::AddressPlan;
use pontoon_engine::config::{Protocol, Published, PublishedPath};
use pontoon_engine::policy::{GuestForward, is_metadata};
use pontoon_process::error::Error;
use pontoon_worker::messages::ForwardUpdate;

use crate::listeners::ListenerSet;
use crate::publish::port_range::PortRange;
use crate::publish::spec::{Protocols, Publish, PublishedPorts};
use crate::publish::{AutoCounts, MOST_AUTOS, limited, too_many_autos};

/// Value of `--guest-forward`: `[ADDR:]PORTS[:[TARGET:]PORTS][/tcp|/udp|/both]`. The guest reaches the second PORTS of
/// the host's address TARGET (default: its loopback address) at the first PORTS of ADDR (default: the gateway). The
/// syntax is that of `--publish`; ADDR may also be `localhost`, which means the guest's loopback addresses of both families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward(Publish);

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix(LOCALHOST) {
            let Self(mut spec) = rest.parse()?;
            if spec.address.is_some() {
                return Err("'localhost' excludes an address".into());
            }
            check_loopback(&spec)?;
            spec.path = PublishedPath::FromGuest;
            return Ok(Self(spec));
        }
        let spec: Publish = text.parse()?;
        if spec.interface.is_some() {
            return Err("an interface of the host is for --publish only".into());
        }
        if spec.path != PublishedPath::Shortest {
            return Err("a path is for --publish only".into());
        }
        if spec.ports == PublishedPorts::All {
            return Err("'all' is for --publish only: 'auto', a range, or --host-loopback".into());
        }
        match spec.address {
            Some(address) if address.to_canonical().is_loopback() => check_loopback(&spec)?,
            Some(address) if !is_of_link(address) => {
                return Err(format!("the guest cannot reach the host at {address}"));
            }
            Some(_) | None => {}
        }
        if let Some(target) = spec.target.filter(|target| !is_of_host(*target)) {
            return Err(format!("the host cannot connect to {target}"));
        }
        Ok(Self(spec))
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.path == PublishedPath::FromGuest {
            f.write_str(LOCALHOST)?;
        }
        self.0.fmt(f)
    }
}

/// Start of a value whose addresses are the loopback addresses of the guest, of both families.
const LOCALHOST: &str = "localhost:";

/// Checks a value whose address is a loopback address of the guest, where a socket listens in the guest's network namespace.
fn check_loopback(spec: &Publish) -> Result<(), String> {
    if spec.protocols != Protocols::Tcp {
        return Err("a loopback address of the guest is for TCP only".into());
    }
    if spec.is_auto() {
        return Err("'auto' excludes a loopback address of the guest".into());
    }
    match spec.target {
        Some(target) if !target.is_loopback() => {
            Err("a loopback address of the guest leads to one of the host only".into())
        }
        _ => Ok(()),
    }
}

/// Returns true if packets of the guest to `address` can reach the engine, and no metadata service has the address.
fn is_of_link(address: IpAddr) -> bool {
    let is_unicast = match address {
        IpAddr::V4(v4) => !v4.is_loopback() && v4.octets()[0] != 0 && v4.octets()[0] < 224,
        IpAddr::V6(v6) => v6.to_ipv4().is_none() && !v6.is_multicast() && !v6.is_unicast_link_local(),
    };
    is_unicast && !is_metadata(address)
}

/// Returns true if the host can connect to `address`.
fn is_of_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[0] != 0 && v4.octets()[0] < 224,
        IpAddr::V6(v6) => {
            let is_mapped = v6.to_ipv4().is_some() && !v6.is_loopback();
            !is_mapped && !v6.is_multicast() && !v6.is_unicast_link_local()
        }
    }
}

impl Forward {
    /// Returns true if the value forwards to the ports on which the host listens (`auto`).
    #[must_use]
    pub fn is_auto(&self) -> bool {
        self.0.is_auto()
    }

    /// Returns the value with one port in place of its ports.
    fn single(&self, protocol: Protocol, port: u16) -> Self {
        let range = PortRange {
            first: port,
            last: port,
        };
        Self(Publish {
            protocols: protocol.into(),
            ports: PublishedPorts::Range {
                host: range,
                guest: port,
            },
            excluded: Vec::new(),
            ..self.0.clone()
        })
    }

    /// Returns the forwards of the value, of both families unless it names an address.
    fn expand(&self, plan: &AddressPlan) -> Vec<GuestForward> {
        let addresses = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let ends = addresses.into_iter().filter_map(|loopback: IpAddr| {
            let gateway = plan.gateway(loopback)?;
            let is_of_family = |address: Option<IpAddr>| {
                address.is_none_or(|address| address.is_ipv4() == loopback.is_ipv4())
            };
            (is_of_family(self.0.address) && is_of_family(self.0.target)).then(|| {
                let default = match self.0.path {
                    PublishedPath::FromGuest => loopback,
                    _ => gateway,
                };
                let (from, to) = (self.0.address, self.0.target);
                (from.unwrap_or(default), to.unwrap_or(loopback))
            })
        });
        let of_end = |(from, to): (IpAddr, IpAddr)| {
            let of_range = move |range: PortRange| {
                let of_protocol = move |protocol| GuestForward {
                    protocol,
                    from: SocketAddr::new(from, range.first),
                    to: SocketAddr::new(to, self.0.guest_port(range.first)),
                    count: range.count(),
                };
                self.0.protocols.iter().map(of_protocol)
            };
            merged(self.0.named()).into_iter().flat_map(of_range)
        };
        ends.flat_map(of_end).collect()
    }
}

/// Returns the ports of a forward at a loopback address of the guest.
fn loopback_ports(forward: &GuestForward) -> impl Iterator<Item = Published> + use<> {
    let GuestForward {
        from,
        to,
        protocol,
        count,
    } = *forward;
    let count = if from.ip().is_loopback() { count } else { 0 };
    (0..count).map(move |offset| Published {
        target: Some(to.ip()),
        path: PublishedPath::FromGuest,
        ..Published::new(
            protocol,
            SocketAddr::new(from.ip(), from.port() + offset),
            to.port() + offset,
        )
    })
}

/// Returns the ports of `ranges` in as few ranges as possible, in ascending order.
fn merged(mut ranges: Vec<PortRange>) -> Vec<PortRange> {
    ranges.sort_unstable();
    let mut all: Vec<PortRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.first <= last.last.saturating_add(1) => last.last = last.last.max(range.last),
            _ => all.push(range),
        }
    }
    all
}

/// Set of guest forwards.
#[derive(Debug)]
pub struct Forwards {
    plan: AddressPlan,
    /// Values that name their ports, each with its forwards.
    named: Vec<(Forward, Vec<GuestForward>)>,
    /// Values with `auto`, which forward to the ports on which the host listens.
    autos: Vec<Forward>,
    /// Forwards to ports on which the host listens, because of `autos`.
    found: BTreeSet<GuestForward>,
    /// Reason for which no value with a loopback address of the guest can be added; `None` if it can.
    no_loopback: Option<&'static str>,
}

/// Result of a change of the guest forwards.
#[derive(Debug, Default)]
pub struct ForwardChanges {
    /// Values that are new.
    pub added: Vec<Forward>,
    /// Values that were removed.
    pub removed: Vec<Forward>,
    /// Updates to be sent to the engine.
    pub updates: Vec<ForwardUpdate>,
}

/// Limit on the forwards of all values together, without those of values with `auto`.
const MOST_FORWARDS: usize = 4_096;

/// Limit on the ports at loopback addresses of the guest, each of which is a socket.
const MOST_LOOPBACK_PORTS: usize = 512;

impl Forwards {
    /// Creates an empty set for a guest with these addresses.
    pub fn new(plan: AddressPlan) -> Self {
        Self {
            plan,
            named: Vec::new(),
            autos: Vec::new(),
            found: BTreeSet::new(),
            no_loopback: Some("the guest has no network namespace of this host"),
        }
    }

    /// Permits values with a loopback address of the guest, if `has_namespace`: until [`Self::close_loopback`] is called.
    #[must_use]
    pub fn permitting_loopback(mut self, has_namespace: bool) -> Self {
        if has_namespace {
            self.no_loopback = None;
        }
        self
    }

    /// Returns the ports at loopback addresses of the guest, where sockets are to listen. Later on, such values can only be
    /// removed.
    pub fn close_loopback(&mut self) -> Vec<Published> {
        self.no_loopback = Some("it can be added at the start only");
        let named = self.named.iter().flat_map(|(_, forwards)| forwards);
        named.flat_map(loopback_ports).collect()
    }

    /// Removes and adds values: either all of them, or none. `add` may contain values that exist, and `remove` values that do
    /// not.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    pub fn change(&mut self, remove: &[Forward], add: &[Forward]) -> Result<ForwardChanges, Error> {
        let mut named = self.named.clone();
        named.retain(|(spec, _)| !remove.contains(spec));
        let mut autos = self.autos.clone();
        autos.retain(|spec| !remove.contains(spec));
        for spec in add {
            match spec.is_auto() {
                true if autos.contains(spec) => {}
                true if autos.len() >= MOST_AUTOS => {
                    return Err(too_many_autos(format_args!("forward {spec}")));
                }
                true => autos.push(spec.clone()),
                false if named.iter().any(|(other, _)| other == spec) => {}
                false => {
                    let forwards = self.checked(spec, &named)?;
                    named.push((spec.clone(), forwards));
                }
            }
        }
        let mut changed = ForwardChanges::default();
        let removed = self.named.iter().filter(|old| !named.contains(old));
        let added = named.iter().filter(|new| !self.named.contains(new));
        for (spec, forwards) in removed {
            changed.removed.push(spec.clone());
            changed
                .updates
                .extend(forwards.iter().copied().map(ForwardUpdate::Remove));
        }
        // A forward that was found gives way, and ends with the last `auto` value that covers it.
        let new: Vec<_> = added.collect();
        let keeps_autos = self.autos.iter().all(|spec| autos.contains(spec));
        let is_covered = |found: &GuestForward| {
            let mut specs = autos.iter();
            keeps_autos || specs.any(|spec| self.is_found_by(spec, found))
        };
        let is_new = |found: &GuestForward| {
            let mut all = new.iter().flat_map(|(_, forwards)| forwards);
            all.any(|forward| forward.overlaps(found))
        };
        let replaced: Vec<_> = self
            .found
            .iter()
            .copied()
            .filter(|found| is_new(found) || !is_covered(found))
            .collect();
        changed
            .updates
            .extend(replaced.iter().copied().map(ForwardUpdate::Remove));
        for (spec, forwards) in new {
            changed.added.push(spec.clone());
            changed
                .updates
                .extend(forwards.iter().copied().map(ForwardUpdate::Add));
        }
        let differs = |spec: &&Forward, list: &[Forward]| !list.contains(*spec);
        changed
            .removed
            .extend(self.autos.iter().filter(|spec| differs(spec, &autos)).cloned());
        changed
            .added
            .extend(autos.iter().filter(|spec| differs(spec, &self.autos)).cloned());
        self.found.retain(|found| !replaced.contains(found));
        (self.named, self.autos) = (named, autos);
        Ok(changed)
    }

    /// Returns the forwards of a new value, or an error if one is not possible or overlaps those of another value.
    fn checked(
        &self,
        spec: &Forward,
        others: &[(Forward, Vec<GuestForward>)],
    ) -> Result<Vec<GuestForward>, Error> {
        let refused = |what: String, advice: &str| {
            Err(Error::new(format!("cannot forward {spec}: {what}")).advise(advice))
        };
        let forwards = spec.expand(&self.plan);
        if forwards.is_empty() {
            return refused(
                "the guest has no address of that family".to_owned(),
                "an address of the other family",
            );
        }
        let count: usize = others.iter().map(|(_, forwards)| forwards.len()).sum();
        if count + forwards.len() > MOST_FORWARDS {
            return refused(format!("more than {MOST_FORWARDS} forwards"), "ranges of ports");
        }
        let ports = |forwards: &[GuestForward]| forwards.iter().flat_map(loopback_ports).count();
        let new_ports = ports(&forwards);
        if let Some(why) = self.no_loopback.filter(|_| new_ports > 0) {
            return refused(format!("a loopback address of the guest: {why}"), "the gateway's");
        }
        let old_ports: usize = others.iter().map(|(_, forwards)| ports(forwards)).sum();
        if old_ports + new_ports > MOST_LOOPBACK_PORTS {
            return refused(
                format!("more than {MOST_LOOPBACK_PORTS} ports at loopback addresses of the guest"),
                "the gateway's",
            );
        }
        for forward in &forwards {
            if self.plan.is_guest(forward.from.ip()) {
                return refused(
                    format!("{} is the guest's own address", forward.from.ip()),
                    "the gateway's",
                );
            }
            let dns = self.plan.dns().map(|dns| SocketAddr::new(dns, 53));
            if dns.into_iter().any(|dns| forward.contains(forward.protocol, dns)) {
                return refused(
                    "the DNS forwarder has port 53 of that address".to_owned(),
                    "another port",
                );
            }
            let mut all = others
                .iter()
                .filter(|(_, list)| list.iter().any(|other| other.overlaps(forward)));
            if let Some((other, _)) = all.next() {
                return refused(format!("{other} forwards the same port"), "another port");
            }
        }
        Ok(forwards)
    }

    /// Returns the values that name their ports.
    pub fn iter(&self) -> impl Iterator<Item = &Forward> {
        self.named.iter().map(|(spec, _)| spec)
    }

    /// Returns the values with `auto`, which forward to the ports on which the host listens.
    pub fn autos(&self) -> &[Forward] {
        &self.autos
    }

    /// Returns the forwards of values with `auto`.
    pub fn found(&self) -> impl Iterator<Item = &GuestForward> {
        self.found.iter()
    }

    /// Returns true if the host's listening ports have to be scanned.
    pub fn needs_scan(&self) -> bool {
        !self.autos.is_empty() || !self.found.is_empty()
    }

    /// Returns the forwards of all values that name their ports.
    pub fn forwards(&self) -> Vec<GuestForward> {
        self.named
            .iter()
            .flat_map(|(_, forwards)| forwards.clone())
            .collect()
    }

    /// Adds forwards to ports on which the host has begun to listen, and removes those on which it does not listen any
    /// more. `own` are ports of the host on which Pontoon itself listens for the guest; they are not forwarded.
    pub fn apply_scan(
        &mut self,
        listeners: &ListenerSet,
        own: &BTreeSet<(Protocol, u16)>,
    ) -> (Vec<ForwardUpdate>, AutoCounts) {
        let mut counts = AutoCounts::default();
        let is_wanted = |protocol, port| {
            let mut autos = self.autos.iter();
            !own.contains(&(protocol, port)) && autos.any(|spec| spec.0.auto_contains(protocol, port))
        };
        let ports = limited(listeners, &is_wanted, &mut counts);
        let mut wanted = BTreeSet::new();
        for (protocol, port) in ports {
            let before = wanted.len();
            for spec in self
                .autos
                .iter()
                .filter(|spec| spec.0.auto_contains(protocol, port))
            {
                wanted.extend(self.found_forwards(spec, protocol, port, listeners));
            }
            match wanted.len() > before {
                true => counts.open += 1,
                false => counts.taken += 1,
            }
        }
        let gone = self.found.difference(&wanted).copied().map(ForwardUpdate::Remove);
        let new = wanted.difference(&self.found).copied().map(ForwardUpdate::Add);
        let updates = gone.chain(new).collect();
        self.found = wanted;
        (updates, counts)
    }

    /// Returns true if a forward to a port on which the host listens is one of the `auto` value `spec`.
    fn is_found_by(&self, spec: &Forward, found: &GuestForward) -> bool {
        let port = found.to.port();
        let mut forwards = spec.single(found.protocol, port).expand(&self.plan).into_iter();
        spec.0.auto_contains(found.protocol, port) && forwards.any(|forward| forward == *found)
    }

    /// Returns the forwards to a port on which the host listens, except those that a value names.
    fn found_forwards(
        &self,
        spec: &Forward,
        protocol: Protocol,
        port: u16,
        listeners: &ListenerSet,
    ) -> Vec<GuestForward> {
        let mut forwards = spec.single(protocol, port).expand(&self.plan);
        forwards.retain(|forward| {
            let mut named = self.named.iter().flat_map(|(_, list)| list);
            let is_taken = named.any(|other| other.overlaps(forward));
            let is_dns = self.plan.is_dns(forward.from.ip()) && port == 53;
            !is_taken && !is_dns && listeners.contains(protocol, forward.to.is_ipv6(), port)
        });
        forwards
    }
}

#[cfg(test)]
mod tests;
