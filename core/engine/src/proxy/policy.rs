//! Decides whether a flow that the policy permits uses the upstream proxy.

use core::net::SocketAddr;
use std::sync::Arc;

use pontoon_names::HostName;
use pontoon_proxy::{Host, Target};

use super::{NETWORKS, ProxiedConnection, Proxy, Route, RouteBy};
use crate::Instant;
use crate::config::Config;
use crate::egress::{EgressProtocol, Part, Pattern};
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
        if protocol == EgressProtocol::Tcp && proxy.addresses.contains(&remote) {
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
    pub(crate) fn learn(&self, message: &[u8], now: Instant) {
        self.egress.learn(message, now);
        if let Some(proxy) = &self.proxy {
            proxy.learn(message, now);
        }
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

impl Proxy {
    /// Returns true if `address` stands for a name that the proxy resolves, now or at another time.
    fn has_address(&self, address: core::net::IpAddr) -> bool {
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
