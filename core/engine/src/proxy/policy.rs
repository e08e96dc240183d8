//! Decides whether a flow that the policy permits uses the upstream proxy.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use pontoon_names::HostName;
use pontoon_proxy::{Host, Target};

use super::{NETWORKS, ProxiedConnection, Proxy, Route, RouteBy};
use crate::Instant;
use crate::config::Config;
use crate::egress::{DnsAnswer, EgressProtocol, Part, Pattern};
use crate::policy::{Policy, Refusal, is_metadata};

impl Policy {
    /// Checks a flow that the rules permit, from `written` to the translated destination `remote`.
    ///
    /// # Errors
    /// The destination is the proxy itself; or it is reached through the proxy, and the flow is no TCP connection or the
    /// address has no name.
    pub(crate) fn check_proxy(
        &self,
        protocol: EgressProtocol,
        written: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<(), Refusal> {
        let Some(proxy) = &self.proxy else {
            return Ok(());
        };
        if protocol == EgressProtocol::Tcp && self.is_proxy_itself(proxy, remote) {
            return Err(Refusal::Proxy);
        }
        match self.leads_to_proxy(proxy, protocol, written, remote, now) {
            false => Ok(()),
            true if protocol != EgressProtocol::Tcp => Err(Refusal::Proxy),
            true => target(proxy, written, now).map(drop),
        }
    }

    /// Returns the route of a TCP connection that [`Self::check_proxy`] has permitted.
    pub(crate) fn route(
        &self,
        written: SocketAddr,
        remote: SocketAddr,
        by: RouteBy<'_>,
        now: Instant,
    ) -> Route {
        let Some(proxy) = &self.proxy else {
            return Route::Direct;
        };
        let by = match fixed_route(proxy, written, remote) {
            Some(_) => RouteBy::Address,
            None => by,
        };
        let (protocol, port) = (EgressProtocol::Tcp, Some(written.port()));
        let uses_proxy = self.with_destination(protocol, written.ip(), port, |to| match by {
            RouteBy::Address => match self.leads_to_proxy(proxy, protocol, written, remote, now) {
                true => Part::All,
                false => Part::None,
            },
            RouteBy::Candidates => {
                let names = self.egress.candidate_names(to, now);
                let parts = names.map(|names| proxy.destinations.proxied_names(to, names, now));
                let common = parts.reduce(|one, other| if one == other { one } else { Part::Some });
                common.unwrap_or(Part::None)
            }
            RouteBy::Name(name) => {
                let name = Pattern::Exactly(name.as_str().to_owned());
                proxy.destinations.proxied_names(to, &name, now)
            }
        });
        match uses_proxy {
            Part::None => Route::Direct,
            Part::Some => Route::ByName,
            Part::All => target(proxy, written, now).map_or(Route::Direct, |target| {
                Route::Proxy(ProxiedConnection {
                    proxy: Arc::clone(proxy),
                    target,
                })
            }),
        }
    }

    /// Learns the addresses of domains in rules from a DNS response, before the response is forwarded to the guest.
    ///
    /// # Errors
    /// The response has an address that stands for a name which the proxy resolves, and must not be forwarded: the guest would
    /// reach that name in place of the queried one.
    pub(crate) fn learn(&self, message: &[u8], now: Instant) -> Result<(), ReservedAddress> {
        let Some(proxy) = &self.proxy else {
            self.egress.learn(message, now);
            return Ok(());
        };
        let Some(answer) = DnsAnswer::parse(message) else {
            return Ok(());
        };
        if proxy.names.is_some() && answer.has_address_in(&NETWORKS) {
            return Err(ReservedAddress);
        }
        self.egress.learn_addresses(&answer, now);
        proxy.learn(&answer, now);
        Ok(())
    }

    /// Returns the name for which an address stands that the guest sends to, because the proxy resolves the name.
    pub(crate) fn assigned_name(&self, written: IpAddr) -> Option<HostName> {
        self.proxy.as_ref()?.names.as_ref()?.assigned(written)
    }

    /// Notes that flows lead to `addresses`, so that they stand for their names for longer. Returns true if one of them does.
    pub(crate) fn renew_names(&self, addresses: &[IpAddr], now: Instant) -> bool {
        let names = self.proxy.as_ref().and_then(|proxy| proxy.names.as_ref());
        names.is_some_and(|names| {
            let renewed = addresses.iter().filter(|address| names.renew(**address, now));
            renewed.count() > 0
        })
    }

    /// Returns true if `remote` is the proxy. One on this host may listen on all addresses of the host.
    fn is_proxy_itself(&self, proxy: &Proxy, remote: SocketAddr) -> bool {
        let is_host = |address: IpAddr| address.is_loopback() || self.owned.contains(address);
        proxy.addresses.iter().any(|own| {
            own.port() == remote.port()
                && (own.ip() == remote.ip() || is_host(own.ip()) && is_host(remote.ip()))
        })
    }

    /// Returns true if a flow to `written`, which is translated to `remote`, uses the proxy. Translated destinations are
    /// those of the host, and a metadata service has its meaning at the host only.
    fn leads_to_proxy(
        &self,
        proxy: &Proxy,
        protocol: EgressProtocol,
        written: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> bool {
        if let Some(uses_proxy) = fixed_route(proxy, written, remote) {
            return uses_proxy;
        }
        let port = (protocol != EgressProtocol::Icmp).then_some(written.port());
        self.with_destination(protocol, written.ip(), port, |to| {
            proxy.destinations.contains(to, now)
        })
    }
}

/// A DNS response has an address of [`NETWORKS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReservedAddress;

impl Proxy {
    /// Returns true if `address` stands for a name that the proxy resolves, now or at another time.
    fn has_address(&self, address: IpAddr) -> bool {
        self.names.is_some() && NETWORKS.iter().any(|network| network.contains(&address))
    }

    /// Returns true if the proxy resolves `name`. The names of the host itself would lead to the proxy's host.
    pub(crate) fn resolves(&self, name: &HostName) -> bool {
        let is_local = name.as_str().rsplit('.').next() == Some("localhost");
        self.names.is_some() && !is_local && self.destinations.contains_name(name)
    }
}

impl Config {
    /// Returns true if the DNS forwarder answers names in place of the proxy.
    pub(crate) fn has_proxy_names(&self) -> bool {
        self.proxy.as_ref().is_some_and(|proxy| proxy.names.is_some())
    }
}

/// Returns true if each flow to `written`, which is translated to `remote`, uses the proxy, and false if none does; `None` if
/// rules decide.
fn fixed_route(proxy: &Proxy, written: SocketAddr, remote: SocketAddr) -> Option<bool> {
    match written != remote || is_metadata(written.ip()) {
        true => Some(false),
        false => proxy.has_address(written.ip()).then_some(true),
    }
}

/// Returns the destination that the proxy receives for a connection to `written`: a name if the address stands for one.
fn target(proxy: &Proxy, written: SocketAddr, now: Instant) -> Result<Target, Refusal> {
    let Some(names) = proxy.names.as_ref().filter(|_| proxy.has_address(written.ip())) else {
        return Ok(written.into());
    };
    let name = names.name(written.ip(), now).ok_or(Refusal::Unassigned)?;
    Ok(Target {
        host: Host::Name(name),
        port: written.port(),
    })
}
