//! Set of published ports, and its changes while the guest runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use ipnet::IpNet;
use pontoon_engine::address_plan::AddressPlan;
use pontoon_engine::config::{Protocol, Published, PublishedKey, PublishedPath};
use pontoon_engine::policy::Owned;
use pontoon_process::error::{Error, reason};
use pontoon_worker::messages::PortUpdate;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use rustix::process::{Resource, getrlimit};

use super::port_range::PortRange;
use super::spec::{Publish, PublishedPorts};
use super::{ANY, MOST_AUTOS, disconnect_last, open_socket, refused, too_many_autos};
use crate::ephemeral_ports;

mod auto;
mod other_program;
mod values;

pub use auto::{AutoCounts, limited};

/// Set of published ports, each with its host socket: listening (TCP) or bound (UDP), and non-blocking.
#[derive(Debug)]
pub struct Ports {
    plan: AddressPlan,
    /// The host's own addresses, which no target address may be.
    owned: Owned,
    ports: BTreeMap<PublishedKey, Port>,
    /// Values with `auto`, which publish the ports on which the guest listens.
    autos: Vec<Publish>,
    /// True if the guest's listening ports can be read, so that values with `auto` are permitted.
    permits_auto: bool,
}

/// Host socket and destination of a published port.
#[derive(Clone, Debug)]
struct Port {
    guest: GuestTarget,
    /// Name of the interface to which the socket is bound.
    interface: Option<String>,
    /// True if the port is published because the guest listens on it.
    is_found: bool,
    socket: Arc<OwnedFd>,
}

/// Destination of a published port: the port of the guest, and the address if it is not the guest's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GuestTarget {
    target: Option<IpAddr>,
    port: u16,
    path: PublishedPath,
}

impl Drop for Port {
    fn drop(&mut self) {
        disconnect_last(&self.socket);
    }
}

/// Result of a change of the published ports.
#[derive(Debug)]
pub struct PortChanges {
    /// Ports that were not published before or had another destination, and new values with `auto`.
    pub added: Vec<Publish>,
    /// Ports and values that were published before and no longer are.
    pub removed: Vec<Publish>,
    /// Updates to be sent to the engine.
    pub port_updates: Vec<PortUpdate>,
    /// Updates to be sent once the engine has confirmed `port_updates`: the ports to close. Until then a revert needs no
    /// descriptor, which could be missing.
    pub closes: Vec<PortUpdate>,
    /// Ports before the change, from which it can be reverted.
    pub undo: PortUndo,
}

/// Published ports before and after a change, each with its key, from which the change can be reverted.
#[derive(Clone, Debug, Default)]
pub struct PortUndo {
    ports: Vec<(PublishedKey, Option<Port>, Option<Port>)>,
    /// Values that publish what the guest listens on, and that the change has added.
    autos_added: Vec<Publish>,
    /// Values that publish what the guest listens on, and that the change has removed.
    autos_removed: Vec<Publish>,
}

/// Reason why a change of the published ports was refused.
#[derive(Debug)]
pub enum PortRefusal {
    /// The request is invalid.
    Wrong(Error),
    /// Another socket of the host has a port of the request. The port may become free.
    InUse(Error),
    /// A port of the request already leads elsewhere, this user may not use it, or a limit is reached.
    Conflict(Error),
}

/// Ports that a change removes and adds.
#[derive(Debug, Default)]
struct Draft {
    gone: BTreeSet<PublishedKey>,
    new: BTreeMap<PublishedKey, Port>,
}

impl PortUndo {
    /// Returns true if the change has added the port or has changed its destination.
    pub fn has_added(&self, port: &Published) -> bool {
        let key = port.key();
        let mut ports = self.ports.iter();
        ports.any(|(other, _, is)| *other == key && is.is_some())
    }

    /// Returns the keys of the ports that the change has added.
    pub fn added(&self) -> impl Iterator<Item = PublishedKey> {
        let added = self.ports.iter().filter(|(_, _, is)| is.is_some());
        added.map(|(key, _, _)| *key)
    }
}

impl From<PortRefusal> for Error {
    fn from(refusal: PortRefusal) -> Self {
        match refusal {
            PortRefusal::Wrong(error) | PortRefusal::InUse(error) | PortRefusal::Conflict(error) => error,
        }
    }
}

impl Ports {
    /// Creates an empty set of published ports for a guest with these addresses.
    pub fn new(plan: AddressPlan) -> Self {
        Self {
            plan,
            owned: Owned::default(),
            ports: BTreeMap::new(),
            autos: Vec::new(),
            permits_auto: false,
        }
    }

    /// Sets whether values with `auto` are permitted.
    pub fn permitting_auto(self, permits_auto: bool) -> Self {
        Self { permits_auto, ..self }
    }

    /// Returns the addresses of the guest.
    pub fn plan(&self) -> &AddressPlan {
        &self.plan
    }

    /// Sets the host's own addresses, which no target address may be.
    pub fn set_owned(&mut self, owned: &[IpNet]) {
        self.owned = owned.iter().copied().collect();
    }

    /// Closes the ports `remove` and opens the ports `add`: either all of them, or none. A port in both lists keeps its
    /// socket, even if its destination changes; sockets of ports in neither list are not changed. `add` may contain
    /// ports that are published already, and `remove` ports that are not. Ports of [`PublishedPorts::All`] that cannot
    /// be opened are skipped, and one log line reports their number.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    pub fn change(&mut self, remove: &[Publish], add: &[Publish]) -> Result<PortChanges, PortRefusal> {
        let mut draft = Draft::default();
        let mut autos = self.autos.clone();
        for spec in remove {
            if spec.is_auto() {
                autos.retain(|other| other != spec);
                continue;
            }
            let Some(interface) = self.known_interface(spec) else {
                continue;
            };
            for (key, guest) in self.endpoints(spec, interface) {
                if self
                    .ports
                    .get(&key)
                    .is_some_and(|port| port.guest == guest && !port.is_found)
                {
                    draft.gone.insert(key);
                }
            }
        }
        // Values with `all` are last: they publish only ports that no other value publishes.
        let is_all = |spec: &&Publish| spec.ports == PublishedPorts::All;
        for spec in add
            .iter()
            .filter(|spec| !is_all(spec))
            .chain(add.iter().filter(is_all))
        {
            self.check(spec)?;
            let interface = interface_index(spec).map_err(|error| unknown_interface(spec, &error))?;
            if !spec.is_auto() {
                self.add_all(spec, interface, &mut draft)?;
            } else if !autos.contains(spec) {
                if autos.len() >= MOST_AUTOS {
                    return Err(PortRefusal::Conflict(too_many_autos(format_args!(
                        "publish {spec}"
                    ))));
                }
                autos.push(spec.clone());
            }
        }
        if remove.iter().any(Publish::is_auto) {
            draft.gone.extend(self.found_without(&autos));
        }
        Ok(self.apply(draft, autos))
    }

    /// Checks that the guest can have the ports of a new value.
    fn check(&self, spec: &Publish) -> Result<(), PortRefusal> {
        let wrong = |what: &str, advice: &str| {
            let wrong = Error::new(format!("cannot publish {spec}: {what}"));
            Err(PortRefusal::Wrong(wrong.advise(advice)))
        };
        match spec.listens_at() {
            Some(IpAddr::V6(_)) if self.plan.v6.is_none() => {
                return wrong("the guest has no IPv6", "an IPv4 address");
            }
            Some(IpAddr::V4(_)) if self.plan.v4.is_none() => {
                return wrong("the guest has no IPv4", "an IPv6 address");
            }
            _ => {}
        }
        if spec.is_auto() && !self.permits_auto {
            return wrong(
                "the ports on which this guest listens cannot be read from the host",
                "port numbers",
            );
        }
        let Some(target) = spec.target else {
            return Ok(());
        };
        let is_unreachable = match target {
            IpAddr::V4(v4) => {
                v4.is_loopback() || v4.octets()[0] == 0 || v4.octets()[0] >= 224 || v4.is_link_local()
            }
            IpAddr::V6(v6) => {
                let is_mapped = v6.to_ipv4().is_some();
                is_mapped || v6.is_unicast_link_local() || v6.is_multicast()
            }
        };
        if is_unreachable {
            return wrong(
                "no host behind the guest's link can have that address",
                "another address",
            );
        }
        if self.plan.is_engine(target) || self.plan.gateway(target) == Some(target) {
            return wrong(
                "that is an address of the gateway, not of the guest",
                "an address of the guest",
            );
        }
        if self.owned.contains(target) && !self.plan.is_guest(target) {
            return wrong("that is an address of this host", "an address of the guest");
        }
        Ok(())
    }

    /// Returns the keys of the sockets of a value, each with its destination. If the value names no address, addresses
    /// of a family that the host lacks are included.
    fn endpoints(
        &self,
        spec: &Publish,
        interface: Option<NonZeroU32>,
    ) -> impl Iterator<Item = (PublishedKey, GuestTarget)> {
        let ranges = match spec.ports {
            PublishedPorts::All => all_ports(spec),
            _ => spec.named(),
        };
        let addresses = self.addresses(spec);
        let ports = ranges.into_iter().flat_map(|range| range.first..=range.last);
        ports.flat_map(move |port| {
            let guest = GuestTarget {
                target: spec.target,
                port: spec.guest_port(port),
                path: spec.path,
            };
            let addresses = addresses.iter();
            let keys = addresses.flat_map(move |address| {
                let host = SocketAddr::new(*address, port);
                spec.protocols.iter().map(move |protocol| PublishedKey {
                    protocol,
                    host,
                    interface,
                    in_guest: false,
                })
            });
            keys.map(|key| (key, guest)).collect::<Vec<_>>()
        })
    }

    /// Returns the host addresses of a value: its own, or the unspecified address of each family that the guest has.
    fn addresses(&self, spec: &Publish) -> Vec<IpAddr> {
        match spec.listens_at() {
            Some(address) => vec![address],
            None => {
                let has = |any: &IpAddr| self.plan.guest(*any).is_some();
                ANY.into_iter().filter(has).collect()
            }
        }
    }

    /// Adds the ports of a value to a draft.
    fn add_all(
        &self,
        spec: &Publish,
        interface: Option<NonZeroU32>,
        draft: &mut Draft,
    ) -> Result<(), PortRefusal> {
        let is_all = spec.ports == PublishedPorts::All;
        let mut skipped = 0_usize;
        for (key, guest) in self.endpoints(spec, interface) {
            let here = self.ports.get(&key);
            let stays = here.filter(|port| !draft.gone.contains(&key) && !port.is_found);
            match draft.new.get(&key).or(stays) {
                Some(port) if port.guest == guest || is_all => continue,
                Some(port) => return Err(PortRefusal::Conflict(leads_elsewhere(spec, key, port.guest))),
                None => {}
            }
            if is_all && here.is_none() && self.is_of_other_program(key, &draft.new) {
                skipped += 1;
                continue;
            }
            let opened = match here {
                Some(port) => Ok(Some(Arc::clone(&port.socket))),
                None => open(spec, key, if is_all { Budget::Half } else { Budget::Reserve }),
            };
            match opened {
                Ok(Some(socket)) => {
                    let port = Port {
                        guest,
                        interface: spec.interface.clone(),
                        is_found: false,
                        socket,
                    };
                    draft.new.insert(key, port);
                }
                // The host has no IPv6.
                Ok(None) => {}
                Err(error) if is_all && is_taken(&error) => skipped += 1,
                Err(error) => {
                    let in_use = error.raw_os_error() == Some(libc::EADDRINUSE);
                    let error = refused(key.host, key.protocol, &error);
                    return Err(if in_use {
                        PortRefusal::InUse(error)
                    } else {
                        PortRefusal::Conflict(error)
                    });
                }
            }
        }
        if skipped > 0 {
            tracing::info!("{spec}: {skipped} ports are in use or not permitted, and are not published");
        }
        Ok(())
    }

    fn apply(&mut self, draft: Draft, autos: Vec<Publish>) -> PortChanges {
        let Draft { gone, new } = draft;
        let is_in = |list: &[Publish], spec: &Publish| list.contains(spec);
        let added = autos.iter().filter(|spec| !is_in(&self.autos, spec)).cloned();
        let removed = self.autos.iter().filter(|spec| !is_in(&autos, spec)).cloned();
        let mut changed = PortChanges {
            added: added.collect(),
            removed: removed.collect(),
            port_updates: Vec::new(),
            closes: Vec::new(),
            undo: PortUndo::default(),
        };
        changed.undo.autos_added.clone_from(&changed.added);
        changed.undo.autos_removed.clone_from(&changed.removed);
        self.autos = autos;
        for key in gone.into_iter().filter(|key| !new.contains_key(key)) {
            if let Some(port) = self.ports.remove(&key) {
                changed.removed.push(shown(key, &port));
                changed.closes.push(PortUpdate::Close(published(key, port.guest)));
                changed.undo.ports.push((key, Some(port), None));
            }
        }
        for (key, port) in new {
            let published = published(key, port.guest);
            let port_update = match self.ports.get_mut(&key) {
                Some(old) if old.guest == port.guest => {
                    let was = old.clone();
                    old.is_found = port.is_found;
                    changed.undo.ports.push((key, Some(was), Some(port)));
                    continue;
                }
                Some(_) => PortUpdate::Redirect(published),
                None => PortUpdate::Open(published, port.socket.clone().into()),
            };
            changed.port_updates.push(port_update);
            changed.added.push(shown(key, &port));
            let old = self.ports.insert(key, port.clone());
            changed.undo.ports.push((key, old, Some(port)));
        }
        // A change that only removes ports needs no undo: workers never refuse to close a port, and the undo would keep the
        // closed ports' sockets open.
        if changed.undo.added().next().is_none() {
            changed.undo.ports.clear();
            changed.port_updates.append(&mut changed.closes);
        }
        changed
    }

    /// Reverts a change of which `PortChanges::closes` was not sent, except for ports that were changed again since. Returns
    /// the updates for the engine.
    pub fn revert(&mut self, undo: &PortUndo) -> Vec<PortUpdate> {
        let mut updates = Vec::new();
        self.autos.retain(|spec| !undo.autos_added.contains(spec));
        for spec in &undo.autos_removed {
            if !self.autos.contains(spec) {
                self.autos.push(spec.clone());
            }
        }
        for (key, was, is) in undo.ports.iter().cloned() {
            let socket = |port: Option<&Port>| port.map(|port| (port.guest, port.socket.as_raw_fd()));
            if socket(self.ports.get(&key)) != socket(is.as_ref()) {
                continue;
            }
            match (was, is) {
                (None, Some(port)) => {
                    self.ports.remove(&key);
                    updates.push(PortUpdate::Close(published(key, port.guest)));
                }
                (Some(port), None) => {
                    self.ports.insert(key, port);
                }
                (Some(port), Some(is)) => {
                    if port.guest != is.guest {
                        updates.push(PortUpdate::Redirect(published(key, port.guest)));
                    }
                    self.ports.insert(key, port);
                }
                (None, None) => {}
            }
        }
        updates
    }

    /// Returns each published port as an option value, except those that are published because of `auto`.
    pub fn iter(&self) -> impl Iterator<Item = Publish> {
        let ports = self.ports.iter().filter(|(_, port)| !port.is_found);
        ports.map(|(key, port)| shown(*key, port))
    }

    /// Returns true if `port` is published, whose socket is bound to `host` and to no interface.
    pub fn has(&self, protocol: Protocol, host: SocketAddr, port: &Publish) -> bool {
        let key = PublishedKey {
            protocol,
            host,
            interface: None,
            in_guest: false,
        };
        let found = self.ports.get(&key).filter(|found| !found.is_found);
        found.is_some_and(|found| shown(key, found) == *port)
    }

    /// Returns each published port in the form of the engine's configuration.
    pub fn published(&self) -> Vec<Published> {
        let published = self.ports.iter().map(|(key, port)| published(*key, port.guest));
        published.collect()
    }

    /// Returns the sockets of the published ports, in the order of [`Self::published`].
    pub fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.ports.values().map(|port| Arc::clone(&port.socket)).collect()
    }

    /// Returns the index of the interface that a value names, or the inner `None` if it names none. The index of an
    /// interface that no longer exists is taken from a port that is bound to it; the outer `None` means that there is
    /// no such port.
    fn known_interface(&self, spec: &Publish) -> Option<Option<NonZeroU32>> {
        if let Ok(index) = interface_index(spec) {
            return Some(index);
        }
        let mut ports = self.ports.iter();
        let (key, _) = ports.find(|(_, port)| port.interface == spec.interface)?;
        Some(key.interface)
    }
}

/// Share of the limit on descriptors that sockets of published ports may use.
#[derive(Clone, Copy, Debug)]
enum Budget {
    /// Half of the limit, so that the other half remains for flows.
    Half,
    /// The limit without [`RESERVE`].
    Reserve,
}

/// Opens the socket of a port; `None` if the value names no address and the host has no IPv6.
fn open(spec: &Publish, key: PublishedKey, budget: Budget) -> io::Result<Option<Arc<OwnedFd>>> {
    match open_socket(key).and_then(|socket| within(budget, socket)) {
        Ok(socket) => Ok(Some(Arc::new(socket))),
        Err(error)
            if spec.address.is_none()
                && key.host.is_ipv6()
                && error.raw_os_error() == Some(libc::EAFNOSUPPORT) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns true if another socket has the port, this user may not use it, or no descriptor is free.
fn is_taken(error: &io::Error) -> bool {
    let taken = [libc::EADDRINUSE, libc::EACCES, libc::EMFILE];
    error.raw_os_error().is_some_and(|error| taken.contains(&error))
}

/// Returns the ports of [`PublishedPorts::All`]. Ephemeral ports are excluded: if sockets listened on all of them, the
/// kernel would have no port for connections of the host's programs.
fn all_ports(spec: &Publish) -> Vec<PortRange> {
    let ephemeral = [ephemeral_ports()];
    let named = spec.without_excluded(&[PortRange::ALL]).into_iter();
    named.flat_map(|range| range.without(&ephemeral)).collect()
}

/// Returns the index of the interface that a value names.
fn interface_index(spec: &Publish) -> io::Result<Option<NonZeroU32>> {
    let Some(name) = &spec.interface else {
        return Ok(None);
    };
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(NonZeroU32::new(netdevice::name_to_index(&socket, name)?))
}

fn unknown_interface(spec: &Publish, error: &io::Error) -> PortRefusal {
    let what = Error::new(format!("cannot publish {spec}: {}", reason(error)));
    PortRefusal::Conflict(what.advise("an interface of this host, see 'ip link'"))
}

fn leads_elsewhere(spec: &Publish, key: PublishedKey, guest: GuestTarget) -> Error {
    let PublishedKey { protocol, host, .. } = key;
    let to = match guest.target {
        Some(target) => format!("{}", SocketAddr::new(target, guest.port)),
        None => format!("guest port {}", guest.port),
    };
    Error::new(format!(
        "cannot publish {spec}: {host}/{protocol} already leads to {to}"
    ))
}

/// Returns the socket, or an error if its descriptor exceeds the budget. The kernel assigns the lowest free descriptor first.
fn within(budget: Budget, socket: OwnedFd) -> io::Result<OwnedFd> {
    let number = u64::try_from(socket.as_raw_fd()).unwrap_or(u64::MAX);
    let beyond = |limit: u64| match budget {
        Budget::Half => number >= limit / 2,
        Budget::Reserve => number.saturating_add(RESERVE) >= limit,
    };
    match getrlimit(Resource::Nofile).current {
        Some(limit) if beyond(limit) => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        _ => Ok(socket),
    }
}

/// Number of descriptors that published ports may not use: 16 clients each of the control socket and the metrics
/// address, 16 queues of the tap, the file of a capture, and the start of another engine.
const RESERVE: u64 = 96;

fn shown(key: PublishedKey, port: &Port) -> Publish {
    let host = key.host.port();
    Publish {
        protocols: key.protocol.into(),
        address: Some(key.host.ip()),
        interface: port.interface.clone(),
        ports: PublishedPorts::Range {
            host: PortRange {
                first: host,
                last: host,
            },
            guest: port.guest.port,
        },
        excluded: Vec::new(),
        target: port.guest.target,
        path: port.guest.path,
    }
}

fn published(key: PublishedKey, guest: GuestTarget) -> Published {
    Published {
        protocol: key.protocol,
        host: key.host,
        interface: key.interface,
        target: guest.target,
        guest_port: guest.port,
        path: guest.path,
    }
}
