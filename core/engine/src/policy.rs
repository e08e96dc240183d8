//! The policy on the guest's source and destination addresses, applied before a host socket is opened.
//!
//! A source address must be one to which a reply could be sent ([`may_send`]). A destination is checked in three steps.
//! First the address that the guest has sent: some classes of addresses are always refused, because `connect` to
//! several of them (`0.0.0.0`, `::`, `::ffff:127.0.0.1`) reaches the host's own loopback. Then the translated address:
//! the host's loopback and addresses of the host are permitted only by options. Finally the egress rules of the user
//! ([`Egress`]).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use arrayvec::ArrayVec;
use pontoon_names::HostName;
use pontoon_names::client_hello::ClientHello;

use crate::Instant;
use crate::address_plan::{AddressPlan, SubnetExtent};
use crate::config::Protocol;
use crate::egress::{
    Decision, DecisionGround, Destination, DestinationSelection, Egress, EgressProtocol, Unproven,
};
use crate::flow_events::RefusalReason;
use crate::proxy::Proxy;

mod forward;
mod metadata;
mod owned;

pub use forward::{GuestForward, GuestForwards};
pub use metadata::is_metadata;
pub use owned::Owned;

/// The reason why the policy refuses a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The address is of a class that is never reachable, or is a metadata service and `--metadata` was not given.
    Class,
    /// No host has the address: it is in the guest's subnet, or it is an IPv6 address and IPv6 is disabled.
    Unassigned,
    /// The address leads to the host's loopback, which the guest may not reach there.
    HostLoopback,
    /// The address belongs to the host, and `--host-addresses` was not given.
    HostAddress,
    /// The egress rules of the user refuse the destination.
    Rule,
    /// The destination is the upstream proxy itself, or is reached through it and the flow is no TCP connection.
    Proxy,
}

/// A destination that the policy permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permitted {
    /// Address and port on the host's side.
    pub remote: SocketAddr,
    /// The allow rule that permits the destination, if there is one.
    pub ground: Option<DecisionGround>,
    /// True if the TCP connection has to prove the domain of a rule.
    pub on_proof: bool,
}

impl Permitted {
    /// Returns the permission to send to `remote` on this ground, without a proof.
    pub const fn new(remote: SocketAddr, ground: Option<DecisionGround>) -> Self {
        Self {
            remote,
            ground,
            on_proof: false,
        }
    }
}

/// The egress rules' decision about an existing TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The rules permit the connection.
    Permitted,
    /// The rules permit the connection once it proves the domain of one of them.
    OnProof,
    /// The rules refuse the connection.
    Refused,
}

/// The refusal of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The reason.
    pub refusal: Refusal,
    /// The ground on which the egress rules refuse the destination, if they do.
    pub ground: Option<DecisionGround>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            ground: None,
        }
    }
}

impl From<DecisionGround> for Refused {
    fn from(ground: DecisionGround) -> Self {
        Self {
            refusal: Refusal::Rule,
            ground: Some(ground),
        }
    }
}

impl From<Refused> for RefusalReason {
    fn from(refused: Refused) -> Self {
        match refused.ground {
            Some(ground) => Self::Egress(ground),
            None => Self::Policy(refused.refusal),
        }
    }
}

/// Returns the destination of a TCP connection, as allow rules compare it.
const fn tcp_destination(written: SocketAddr, remote: IpAddr, name: Option<&HostName>) -> Destination<'_> {
    Destination {
        protocol: EgressProtocol::Tcp,
        written: written.ip(),
        remote,
        embedded: &[],
        name,
        port: Some(written.port()),
    }
}

/// Converts a decision of the egress rules about a destination that is `remote` on the host's side.
fn permission(decision: Decision, remote: SocketAddr) -> Result<Permitted, Refused> {
    match decision {
        Decision::Allowed(ground) => Ok(Permitted::new(remote, ground)),
        Decision::AllowedOnProof => Ok(Permitted {
            on_proof: true,
            ..Permitted::new(remote, None)
        }),
        Decision::Refused(ground) => Err(ground.into()),
    }
}

/// The policy of one worker. `check_egress` is the only place where destinations of TCP, UDP and ICMP are checked.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Addresses and routes of the guest's link.
    pub plan: AddressPlan,
    /// Addresses that are translated to the host's loopback address (`--host-loopback`).
    pub host_loopback: Vec<IpAddr>,
    /// Addresses that reach the host at [`Self::host`].
    pub mapped_host: Vec<IpAddr>,
    /// The addresses from which the host sends to other hosts: IPv4, IPv6. They are updated while running.
    pub host: [Option<IpAddr>; 2],
    /// True if the guest may reach the host's own addresses (`--host-addresses`).
    pub host_addresses: bool,
    /// True if the guest may reach metadata services of cloud providers (`--metadata`).
    pub metadata: bool,
    /// The host's own addresses, which the supervisor updates while the engine runs.
    pub owned: Owned,
    /// The ports at which the guest reaches ports of the host (`--guest-forward`).
    pub forwards: GuestForwards,
    /// The egress rules of the user.
    pub egress: Egress,
    /// The upstream proxy.
    pub proxy: Option<Arc<Proxy>>,
}

impl Policy {
    /// Returns the host-side destination of a packet that the guest has sent to `written` and `port`, and counts the rule that
    /// matches. The port of an echo request is ignored.
    ///
    /// # Errors
    /// The policy refuses the destination, and no host socket is opened for it.
    pub fn check_egress(
        &mut self,
        protocol: EgressProtocol,
        written: IpAddr,
        port: u16,
        now: Instant,
    ) -> Result<Permitted, Refused> {
        let remote = self.translate(protocol, SocketAddr::new(written, port))?;
        if self.egress.is_open() {
            self.check_proxy(protocol, SocketAddr::new(written, port), remote, now)?;
            return Ok(Permitted::new(remote, None));
        }
        let name = self.assigned_name(written);
        let to = Destination {
            protocol,
            written,
            remote: remote.ip(),
            embedded: &embedded(written).unwrap_or_default(),
            name: name.as_ref(),
            port: (protocol != EgressProtocol::Icmp).then_some(port),
        };
        let permitted = permission(self.egress.decide(&to, now), remote)?;
        self.check_proxy(protocol, SocketAddr::new(written, port), remote, now)?;
        Ok(permitted)
    }

    /// Checks the destination of a flow for which a rule was counted before, as [`Self::check_egress`]. Nothing is counted.
    pub(crate) fn check_again(
        &self,
        protocol: EgressProtocol,
        written: IpAddr,
        port: u16,
        now: Instant,
    ) -> Result<Permitted, Refused> {
        let remote = self.translate(protocol, SocketAddr::new(written, port))?;
        let named = (protocol != EgressProtocol::Icmp).then_some(port);
        let decision =
            self.with_destination(protocol, written, named, |to| self.egress.decide_again(to, now));
        let permitted = permission(decision, remote)?;
        self.check_proxy(protocol, SocketAddr::new(written, port), remote, now)?;
        Ok(permitted)
    }

    /// Returns the egress rules' decision about an existing TCP connection to `written`, of which the SYN was received at
    /// `opened` and which has proved the name in the ClientHello `proved`.
    pub(crate) fn standing(
        &self,
        written: SocketAddr,
        opened: Instant,
        proved: Option<&ClientHello>,
        now: Instant,
    ) -> Standing {
        if self.egress.is_open() {
            return Standing::Permitted;
        }
        let (protocol, port) = (EgressProtocol::Tcp, Some(written.port()));
        self.with_destination(protocol, written.ip(), port, |to| {
            match (self.egress.decide_again(to, now), proved) {
                (Decision::Allowed(_), _) => Standing::Permitted,
                // The address may not be pinned any more.
                (Decision::AllowedOnProof | Decision::Refused(DecisionGround::Unlisted), Some(hello))
                    if self.egress.is_proved(to, hello, opened) =>
                {
                    Standing::Permitted
                }
                (Decision::AllowedOnProof | Decision::Refused(DecisionGround::Unlisted), None)
                    if self.egress.has_candidate(to, opened) =>
                {
                    Standing::OnProof
                }
                (Decision::AllowedOnProof | Decision::Refused(_), _) => Standing::Refused,
            }
        })
    }

    /// Returns the rule that permits the TCP connection to `written`, of which the SYN was received at `opened`, by its
    /// ClientHello, and counts it.
    ///
    /// # Errors
    /// The reason why no rule permits the connection.
    pub(crate) fn prove(
        &mut self,
        written: SocketAddr,
        hello: &ClientHello,
        opened: Instant,
    ) -> Result<DecisionGround, Unproven> {
        let name = self.assigned_name(written.ip());
        let to = tcp_destination(written, self.remote(written), name.as_ref());
        self.egress.prove(&to, hello, opened)
    }

    /// Counts a TCP connection to `written`, of which the SYN was received at `opened`, as refused because it has not proved a
    /// name. Returns the first rule that could have permitted it.
    pub(crate) fn refuse_unproven(
        &mut self,
        written: SocketAddr,
        why: &Unproven,
        opened: Instant,
        now: Instant,
    ) -> Option<DecisionGround> {
        let name = self.assigned_name(written.ip());
        let to = tcp_destination(written, self.remote(written), name.as_ref());
        self.egress.refuse_unproven(&to, why, opened, now)
    }

    /// Returns the translated address of an existing connection's destination, or that address itself if it is not permitted
    /// any more.
    fn remote(&self, written: SocketAddr) -> IpAddr {
        let remote = self.translate(EgressProtocol::Tcp, written);
        remote.map_or(written.ip(), |remote| remote.ip())
    }

    /// Returns true if the egress rules permit an existing flow to `written`; without a port, if they permit some port.
    #[must_use]
    pub fn allows(&self, protocol: EgressProtocol, written: IpAddr, port: Option<u16>, now: Instant) -> bool {
        self.with_destination(protocol, written, port, |to| self.egress.allows(to, now))
    }

    /// Returns true if `selection` contains the destination `written` of an existing flow.
    pub(crate) fn is_selected(
        &self,
        selection: &DestinationSelection,
        protocol: EgressProtocol,
        written: IpAddr,
        port: Option<u16>,
        now: Instant,
    ) -> bool {
        self.with_destination(protocol, written, port, |to| selection.contains(to, now))
    }

    /// Passes the destination of an existing flow, as egress rules compare it, to `look`.
    pub(crate) fn with_destination<R>(
        &self,
        protocol: EgressProtocol,
        written: IpAddr,
        port: Option<u16>,
        look: impl FnOnce(&Destination<'_>) -> R,
    ) -> R {
        let remote = self.translate(protocol, SocketAddr::new(written, port.unwrap_or(0)));
        look(&Destination {
            protocol,
            written,
            remote: remote.map_or(written, |remote| remote.ip()),
            embedded: &embedded(written).unwrap_or_default(),
            name: self.assigned_name(written).as_ref(),
            port,
        })
    }

    /// Returns the egress rule that allows a flow to `written`; `None` if there is no allow rule, or none that matches.
    #[must_use]
    pub fn allowing_rule(
        &self,
        protocol: EgressProtocol,
        written: SocketAddr,
        now: Instant,
    ) -> Option<String> {
        let (address, port) = (written.ip(), written.port());
        let remote = self.translate(protocol, written).ok()?;
        let name = self.assigned_name(address);
        let to = Destination {
            protocol,
            written: address,
            remote: remote.ip(),
            embedded: &embedded(address).unwrap_or_default(),
            name: name.as_ref(),
            port: (protocol != EgressProtocol::Icmp).then_some(port),
        };
        self.egress.allowing_rule(&to, now).map(ToString::to_string)
    }

    /// Checks a destination address and port like [`Self::check_egress`], but without the egress rules, and translates them:
    /// by the guest forwards, or else by [`Self::translate_destination`].
    ///
    /// # Errors
    /// The destination is refused, independent of the egress rules.
    pub fn translate(&self, protocol: EgressProtocol, written: SocketAddr) -> Result<SocketAddr, Refusal> {
        if let Some(remote) = self.forward(protocol, written) {
            return Ok(remote);
        }
        let remote = self.translate_destination(written.ip())?;
        Ok(SocketAddr::new(remote, written.port()))
    }

    /// Returns the host-side destination of the guest forward at `written`, if there is one.
    #[must_use]
    pub fn forward(&self, protocol: EgressProtocol, written: SocketAddr) -> Option<SocketAddr> {
        let protocol = match protocol {
            EgressProtocol::Tcp => Protocol::Tcp,
            EgressProtocol::Udp => Protocol::Udp,
            EgressProtocol::Icmp => return None,
        };
        self.forwards.translate(protocol, written)
    }

    /// Checks a destination address like [`Self::check_egress`], but without the guest forwards and the egress rules, and
    /// translates it.
    ///
    /// # Errors
    /// The destination is refused, independent of the egress rules.
    pub fn translate_destination(&self, written: IpAddr) -> Result<IpAddr, Refusal> {
        if self.plan.gateway(written).is_none() {
            return Err(Refusal::Unassigned);
        }
        let is_metadata = is_metadata(written);
        let is_mapped = self.host_loopback.contains(&written) || self.mapped_host.contains(&written);
        match written {
            _ if is_metadata && self.metadata => {}
            // No network of the host has such an address.
            IpAddr::V4(v4) if is_mapped && is_link_local_unicast(v4) && !is_metadata => {}
            // A plan of the host's network has a link-local gateway if the host has one.
            IpAddr::V6(v6)
                if is_mapped && v6.is_unicast_link_local() && self.plan.gateway(written) == Some(written) => {
            }
            IpAddr::V4(v4) => self.class_v4(v4)?,
            IpAddr::V6(v6) => {
                self.class_v6(v6)?;
                self.embedded(v6)?;
            }
        }
        if self.host_loopback.contains(&written) {
            return Ok(loopback(written));
        }
        if self.mapped_host.contains(&written) {
            return self.host_address(written).ok_or(Refusal::Unassigned);
        }
        if is_metadata && !self.metadata {
            return Err(Refusal::Class);
        }
        if self.plan.extent == SubnetExtent::Link && self.plan.gateway(written) == Some(written) {
            return Err(Refusal::HostLoopback);
        }
        if self.plan.is_link_only(written) {
            return Err(Refusal::Unassigned);
        }
        if self.owned.contains(written) && !self.host_addresses {
            return Err(Refusal::HostAddress);
        }
        Ok(written)
    }

    /// Returns the address from which the host sends to other hosts, in `like`'s family.
    fn host_address(&self, like: IpAddr) -> Option<IpAddr> {
        self.host[usize::from(like.is_ipv6())]
    }

    /// Returns the address by which a client at `peer` appears to the guest: itself, or where it cannot be shown, the
    /// address that is mapped to it or the gateway. Loopback, link-local and unspecified addresses cannot be shown, nor can
    /// those of the guest and of its link, the host's where it is mapped, and those of a family that the guest lacks.
    /// The caller picks a fresh port if the address is not the client's own.
    #[must_use]
    pub fn visible_client_addr(&self, peer: IpAddr) -> IpAddr {
        let peer = peer.to_canonical();
        let mapped = |list: &[IpAddr]| {
            let mut list = list.iter();
            list.find(|address| address.is_ipv4() == peer.is_ipv4()).copied()
        };
        let class = match peer {
            IpAddr::V4(v4) => self.class_v4(v4),
            IpAddr::V6(v6) => self.class_v6(v6),
        };
        let Some(gateway) = self.plan.gateway(peer) else {
            // The guest has one family at least.
            let other: IpAddr = match peer {
                IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED.into(),
            };
            return self.plan.gateway(other).unwrap_or(other);
        };
        let is_own = self.host_loopback.contains(&peer)
            || self.mapped_host.contains(&peer)
            || self.plan.is_link_only(peer);
        if peer.is_loopback() {
            mapped(&self.host_loopback).unwrap_or(gateway)
        } else if self.host_address(peer) == Some(peer) {
            match mapped(&self.mapped_host) {
                Some(address) => address,
                None if is_own => gateway,
                None => peer,
            }
        } else if class.is_err() || is_own {
            gateway
        } else {
            peer
        }
    }

    /// Returns the address by which a client at `peer` appears to the guest's address `guest`, like
    /// [`Self::visible_client_addr`], but never `guest` itself: a host drops packets whose source is its own address.
    #[must_use]
    pub fn visible_client_of(&self, guest: IpAddr, peer: IpAddr) -> IpAddr {
        match self.visible_client_addr(peer) {
            shown if shown == guest => self.plan.gateway(guest).unwrap_or(shown),
            shown => shown,
        }
    }

    /// Refuses IPv4 addresses that are never reachable (RFC 6890, RFC 1122 section 3.2.1.3).
    fn class_v4(&self, written: Ipv4Addr) -> Result<(), Refusal> {
        match written.octets() {
            [0 | 127, ..] | [169, 254, ..] | [224..=255, ..] => Err(Refusal::Class),
            _ if self.plan.is_subnet_wide(written.into()) => Err(Refusal::Class),
            _ => Ok(()),
        }
    }

    /// Refuses IPv6 addresses that are never reachable (RFC 6890, RFC 4291).
    fn class_v6(&self, written: Ipv6Addr) -> Result<(), Refusal> {
        match written.segments() {
            // ::, ::1, and the IPv4-compatible, IPv4-mapped (RFC 4291 section 2.5.5) and IPv4-translated (RFC 2765)
            // addresses.
            [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0, 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => {
                Err(Refusal::Class)
            }
            [0xfe80..=0xfebf, ..] | [0xff00..=0xffff, ..] => Err(Refusal::Class),
            _ if self.plan.is_subnet_wide(written.into()) => Err(Refusal::Class),
            _ => Ok(()),
        }
    }

    /// Checks the IPv4 addresses embedded in an IPv6 address, each like a destination.
    fn embedded(&self, written: Ipv6Addr) -> Result<(), Refusal> {
        let Some(readings) = embedded(written.into()) else {
            return Ok(());
        };
        if readings.is_empty() {
            return Err(Refusal::Class);
        }
        readings.into_iter().try_for_each(|reading| self.inner(reading))
    }

    fn inner(&self, written: Ipv4Addr) -> Result<(), Refusal> {
        // `--metadata` permits these addresses themselves, not IPv6 addresses that a translator maps to them.
        if is_metadata(written.into()) {
            return Err(Refusal::Class);
        }
        match self.translate_destination(written.into())? {
            to if to.is_loopback() => Err(Refusal::HostLoopback),
            _ => Ok(()),
        }
    }
}

/// Returns the IPv4 addresses that a translator or relay (NAT64, 6to4) would extract from an IPv6 address; `None` if it
/// is of neither kind.
pub(crate) fn embedded(written: IpAddr) -> Option<ArrayVec<Ipv4Addr, 4>> {
    let IpAddr::V6(written) = written else {
        return None;
    };
    let [_, _, a, b, c, d, ..] = written.octets();
    let [.., w, x, y, z] = written.octets();
    match written.segments() {
        // NAT64, well-known prefix (RFC 6052).
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some([Ipv4Addr::new(w, x, y, z)].into_iter().collect()),
        // 6to4 (RFC 3056).
        [0x2002, ..] => Some([Ipv4Addr::new(a, b, c, d)].into_iter().collect()),
        // NAT64, prefix for local use (RFC 8215).
        [0x64, 0xff9b, 1, ..] => Some(local_nat64(written.octets())),
        _ => None,
    }
}

/// Returns the IPv4 addresses in an address of NAT64's local-use prefix. An operator's prefix in this block may have
/// any length of RFC 6052, which the engine does not know, so an address is extracted for every length. A result that
/// begins with 0 or ends in .0.0 is not an address of a host, but a part of the prefix or suffix of another length, and
/// is omitted. If no result remains, the IPv6 address leads to no host.
fn local_nat64(octets: [u8; 16]) -> ArrayVec<Ipv4Addr, 4> {
    [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], [12, 13, 14, 15]]
        .map(|places| places.map(|place: usize| octets[place]))
        .into_iter()
        .filter(|[a, _, c, d]| *a != 0 && [*c, *d] != [0, 0])
        .map(Ipv4Addr::from)
        .collect()
}

/// Returns true if the guest may send packets from the source address `source`: it is not unspecified, loopback or
/// multicast, so that a reply could be sent to it (RFC 1122 section 3.2.1.3, RFC 4291 sections 2.5.2, 2.5.3 and 2.7).
#[must_use]
pub fn may_send(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(from) => !matches!(from.octets(), [0 | 127 | 224..=255, ..]),
        IpAddr::V6(from) => !(from.is_unspecified() || from.is_loopback() || from.is_multicast()),
    }
}

/// Returns true if a host may have this IPv4 link-local address (RFC 3927 section 2.1).
fn is_link_local_unicast(address: Ipv4Addr) -> bool {
    matches!(address.octets(), [169, 254, 1..=254, _])
}

fn loopback(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

#[cfg(test)]
mod tests;
